//! The flags that both programs have, among them all of klog's.
//!
//! A macro and not a field of its own, because keys of the file are flat: serde can flatten, but
//! then no longer tell unknown keys. Flags whose default differs are declared by each program.

/// Declares the flags of one program: the given ones and the common ones.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr;)* }) => {
        $crate::flags::common::with_common! { $(#[$meta])* $name { $($(#[$field_meta])* $field: $type = $default;)* } {
            /// Accepted, has no effect: klog's.
            add_dir_header: bool = false;
            /// Address of the admin endpoint; empty is every address.
            admin_bind_address: String = "127.0.0.1".to_owned();
            /// Accepted, has no effect: klog's. Logs always go to standard error.
            alsologtostderr: bool = false;
            /// Accepted, has no effect: there is no lock contention to profile.
            enable_contention_profiling: bool = false;
            /// Accepted, has no effect: profiles are taken from outside the process.
            enable_profiling: bool = false;
            /// Accepted, has no effect: JSON is spoken with the API server.
            kube_api_content_type: String = "application/vnd.kubernetes.protobuf".to_owned();
            /// Accepted, has no effect: klog's.
            log_backtrace_at: String = ":0".to_owned();
            /// Accepted, has no effect: klog's. Logs always go to standard error.
            log_dir: RelPath = RelPath::default();
            /// Accepted, has no effect: klog's. Logs always go to standard error.
            log_file: RelPath = RelPath::default();
            /// Accepted, has no effect: klog's.
            log_file_max_size: u64 = 1800;
            /// How logs are written to standard error.
            log_format: LogWord = LogWord::Text;
            /// Accepted, has no effect when false: klog's. Logs always go to standard error.
            logtostderr: bool = true;
            /// Octets that may be held for tunnels, all together; at least 4MiB, which is what
            /// one tunnel may have.
            max_buffered_bytes: ByteSize = ByteSize(256 << 20);
            /// Accepted, has no effect: klog's.
            one_output: bool = false;
            /// Accepted, has no effect: klog's.
            skip_headers: bool = false;
            /// Accepted, has no effect: klog's.
            skip_log_headers: bool = false;
            /// What happens once 4MiB wait for a tunnel's reader and the peer knows no flow control:
            /// all tunnels of the peer wait for it; with close, for a second if it takes nothing.
            slow_consumer: OverflowWord = OverflowWord::Close;
            /// Accepted, has no effect: klog's. Logs always go to standard error.
            stderrthreshold: String = "2".to_owned();
            /// Verbosity of logs: up to 4 info, 5 to 7 debug, from 8 on trace. RUST_LOG wins.
            v: i32 = 4;
            /// Verbosity of single modules, as in server=5,link=8; patterns have no effect.
            vmodule: Vec<String> = Vec::new();
        } }
    };
}

/// Makes one struct of two groups of fields.
macro_rules! with_common {
    ($(#[$meta:meta])* $name:ident
     { $($(#[$own_meta:meta])* $own:ident: $own_type:ty = $own_default:expr;)* }
     { $($(#[$meta_c:meta])* $common:ident: $type_c:ty = $default_c:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            $($(#[$own_meta])* pub(crate) $own: $own_type,)*
            $($(#[$meta_c])* pub(crate) $common: $type_c,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($own: $own_default,)*
                    $($common: $default_c,)*
                }
            }
        }
    };
}

pub(crate) use {flags, with_common};
