//! Checks that both programs make.
//!
//! [`Checks`] collects all invalid values, each with its flag, so that one start shows them together.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use settings::{ByteSize, ConfigErrors, GoDuration, RelPath};

use super::read::Given;
use super::shared::{BufferFlags, NoEffectFlags};
use super::{Environment, FlagError};
use crate::registry::PairPaths;

/// The share of one tunnel, `knp_proto::LinkConfig::tunnel_bytes`.
const MIN_BUFFERED: ByteSize = ByteSize(4 << 20);

/// Maximum length of the name of a server or agent, far below the limit of a header.
const MAX_NAME: usize = 253;

/// What is wrong with flags, and what deserves a warning.
#[derive(Debug)]
pub(crate) struct Checks<'a> {
    pub(crate) given: &'a Given,
    pub(crate) environment: &'a Environment,
    errors: ConfigErrors,
    warnings: Vec<String>,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(given: &'a Given, environment: &'a Environment) -> Self {
        Self {
            given,
            environment,
            errors: ConfigErrors::new(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn refuse(&mut self, flag: &str, message: impl Display) {
        self.errors.add(self.given.shown(flag), message);
    }

    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Returns the warnings.
    ///
    /// # Errors
    /// All that was refused.
    pub(crate) fn finish(self) -> Result<Vec<String>, FlagError> {
        match self.errors.is_empty() {
            true => Ok(self.warnings),
            false => Err(FlagError::Values(self.errors)),
        }
    }

    /// A port that needs no privileges and is outside the ephemeral range, which is upstream's
    /// rule; or 0, for a free one.
    pub(crate) fn own_port(&mut self, flag: &str, port: u32) -> u16 {
        if port != 0 && !(1024..=49_151).contains(&port) {
            self.refuse(flag, format!("{port} is neither 0 nor from 1024 to 49151"));
        }
        u16::try_from(port).unwrap_or_default()
    }

    /// A port of at least `min`.
    pub(crate) fn port(&mut self, flag: &str, port: u32, min: u32) -> u16 {
        if !(min..=65_535).contains(&port) {
            self.refuse(flag, format!("{port} is not from {min} to 65535"));
        }
        u16::try_from(port).unwrap_or_default()
    }

    /// An address to listen on.
    pub(crate) fn address(&mut self, flag: &str, host: &str, port: u16) -> SocketAddr {
        let ip = match host {
            "" => Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            host => unbracketed(host).parse(),
        };
        if ip.is_err() {
            let message = format!("{host:?} is not an IP address; empty is all addresses");
            self.refuse(flag, message);
        }
        SocketAddr::new(ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port)
    }

    /// A number that must not be 0.
    pub(crate) fn positive(&mut self, flag: &str, number: u32) -> usize {
        if number == 0 {
            self.refuse(flag, "0 is not at least 1");
        }
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    /// A duration that must not be 0.
    pub(crate) fn positive_time(&mut self, flag: &str, duration: GoDuration) -> Duration {
        if duration.get().is_zero() {
            self.refuse(flag, "0s is not more than 0");
        }
        duration.get()
    }

    /// Upstream's rules for flags that do nothing here.
    pub(crate) fn upstream_rules(&mut self, channel_size: i64, idle: &NoEffectFlags) {
        if channel_size <= 0 {
            let message = format!("{channel_size} is not at least 1");
            self.refuse("xfr-channel-size", message);
        }
        if idle.enable_contention_profiling && !idle.enable_profiling {
            let message = "must not be given without --enable-profiling";
            self.refuse("enable-contention-profiling", message);
        }
    }

    /// Bytes that may be buffered, at least those of one tunnel.
    pub(crate) fn buffered(&mut self, buffers: &BufferFlags) -> usize {
        let size = buffers.max_buffered_bytes;
        if size < MIN_BUFFERED {
            let message = format!("{size} is not at least {MIN_BUFFERED}");
            self.refuse("max-buffered-bytes", message);
        }
        usize::try_from(size.get()).unwrap_or(usize::MAX)
    }

    /// Certificate and key, both or none.
    pub(crate) fn key_pair(
        &mut self,
        flags: (&str, &str),
        cert: &RelPath,
        key: &RelPath,
    ) -> Option<PairPaths> {
        match (path(cert), path(key)) {
            (Some(cert), Some(key)) => return Some(PairPaths { cert, key }),
            (None, None) => {}
            (Some(_), None) => self.refuse(flags.1, format!("must be given with --{}", flags.0)),
            (None, Some(_)) => self.refuse(flags.0, format!("must be given with --{}", flags.1)),
        }
        None
    }

    /// A name that is sent as metadata: from the command line, the environment or the file, or
    /// random.
    pub(crate) fn name(&mut self, flag: &str, given: &str, variable: Option<&str>) -> String {
        let name = match variable {
            Some(name) if given.is_empty() || self.given.in_file(flag) => name,
            None if given.is_empty() => return random_uuid(),
            _ => given,
        };
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) || name.len() > MAX_NAME {
            let message = format!(
                "{name:?} has more than {MAX_NAME} characters, or other than visible ASCII"
            );
            self.refuse(flag, message);
        }
        name.to_owned()
    }

    /// The kubeconfig of the API server that `flag` needs; none is the pod's own.
    pub(crate) fn api_server(&mut self, flag: &str, kubeconfig: &RelPath) -> Option<PathBuf> {
        if kubeconfig.is_empty() && !self.environment.in_cluster {
            let message = format!("must be given with --{flag}: this process is not in a pod");
            self.refuse("kubeconfig", message);
        }
        path(kubeconfig)
    }
}

/// The path, unless it is empty.
pub(crate) fn path(path: &RelPath) -> Option<PathBuf> {
    (!path.is_empty()).then(|| path.0.clone())
}

/// The host without the brackets of an IPv6 address.
pub(crate) fn unbracketed(host: &str) -> &str {
    let bare = host.strip_prefix('[');
    bare.and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A random UUID (RFC 9562, version 4); without randomness there is no TLS either.
fn random_uuid() -> String {
    let mut bytes = [0_u8; 16];
    let _ = SystemRandom::new().fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    parts.join("-")
}
