//! Metrics declared as a struct: a field is a family, its documentation the help text.

/// Declares a struct of metrics, and `register`, which registers them all: a counter, gauge or
/// histogram with its name, after its labels and its buckets where it has any. The help text is the
/// field's documentation. Without labels the field is the one series, with labels the family. Fields
/// behind `with` are no metrics, and parameters of `register`.
///
/// ```
/// telemetry::families! {
///     /// What a listener counts.
///     pub struct Metrics {
///         /// Time of a handshake, in seconds.
///         pub handshakes: histogram([0.1, 1.0]) = "handshake_seconds",
///         /// Bytes relayed, by direction.
///         pub bytes: counter["direction"] = "relayed_bytes_total",
///     } with {
///         /// The listener's port.
///         pub port: u16,
///     }
/// }
/// let registry = telemetry::Registry::new();
/// let metrics = Metrics::register(&registry, 443);
/// metrics.handshakes.observe(0.5);
/// metrics.bytes.with(&["upstream"]).inc();
/// let described = registry.describe();
/// assert_eq!(described[1].help, "Bytes relayed, by direction.");
/// assert_eq!(described[1].labels, ["direction"]);
/// assert_eq!((metrics.handshakes.count(), metrics.port), (1, 443));
/// ```
#[macro_export]
macro_rules! families {
    (@type counter) => { $crate::metrics::Counter };
    (@type gauge) => { $crate::metrics::Gauge };
    (@type histogram) => { $crate::metrics::Histogram };
    (@type $kind:ident $labels:tt) => {
        $crate::metrics::Family<$crate::families!(@type $kind)>
    };
    (@field $family:expr) => { $family.with(&[]) };
    (@field $family:expr, $labels:tt) => { $family };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                $field_vis:vis $field:ident:
                    $kind:ident $([$($label:literal),+])? $(($buckets:expr))? = $metric:literal,
            )+
        } $(with {
            $($(#[$other_meta:meta])* $other_vis:vis $other:ident: $type:ty,)+
        })?
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $(
                $(#[doc = $help])+
                $field_vis $field: $crate::families!(@type $kind $([$($label),+])?),
            )+
            $($($(#[$other_meta])* $other_vis $other: $type,)+)?
        }

        impl $name {
            /// Registers the families.
            ///
            /// # Panics
            /// When one of them is registered already.
            $vis fn register(registry: &$crate::Registry $($(, $other: $type)+)?) -> Self {
                Self {
                    $($field: $crate::families!(@field registry.$kind(
                        $metric,
                        concat!($($help),+).trim_start(),
                        &[$($($label),+)?],
                        $(&$buckets,)?
                    ) $(, [$($label),+])?),)+
                    $($($other,)+)?
                }
            }
        }
    };
}
