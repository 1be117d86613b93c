//! What both programs check alike, and the pieces of configuration they share.
//!
//! [`Checks`] collects all that is wrong, each with its flag, so that one start shows every mistake.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use settings::{ByteSize, ConfigErrors, RelPath};

use super::read::Given;
use super::{Environment, FlagError};

/// What is wrong with flags, and what is worth a warning.
#[derive(Debug)]
pub(crate) struct Checks<'a> {
    given: &'a Given,
    errors: ConfigErrors,
    warnings: Vec<String>,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(given: &'a Given) -> Self {
        Self {
            given,
            errors: ConfigErrors::new(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn given(&self, flag: &str) -> bool {
        self.given.has(flag)
    }

    pub(crate) fn refuse(&mut self, flag: &str, message: impl std::fmt::Display) {
        self.errors.add(self.given.shown(flag), message);
    }

    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub(crate) fn finish(self) -> Result<Vec<String>, FlagError> {
        if self.errors.is_empty() {
            Ok(self.warnings)
        } else {
            Err(FlagError::Values(self.errors))
        }
    }

    /// A port that processes without privileges may have and that the kernel gives to nobody else,
    /// which is upstream's rule; or 0, for which the kernel picks one.
    pub(crate) fn own_port(&mut self, flag: &str, port: u32) -> u16 {
        if port != 0 && !(1024..=49_151).contains(&port) {
            self.refuse(flag, format!("{port} is neither 0 nor from 1024 to 49151"));
        }
        u16::try_from(port).unwrap_or_default()
    }

    /// Any port.
    pub(crate) fn port(&mut self, flag: &str, port: u32, zero: bool) -> u16 {
        let least = u32::from(!zero);
        if !(least..=65_535).contains(&port) {
            self.refuse(flag, format!("{port} is not from {least} to 65535"));
        }
        u16::try_from(port).unwrap_or_default()
    }

    /// An address to listen on.
    pub(crate) fn address(&mut self, flag: &str, host: &str, port: u16) -> SocketAddr {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let ip = match host {
            "" => Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            host => bare.unwrap_or(host).parse(),
        };
        if ip.is_err() {
            let message = format!("{host:?} is no IP address; empty is every address");
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

    /// Upstream's queues of packets, which there are none of here.
    pub(crate) fn channel_size(&mut self, size: i64) {
        if size <= 0 {
            self.refuse("xfr-channel-size", format!("{size} is not at least 1"));
        }
    }

    /// Upstream's rule for profiles, which there are none of here.
    pub(crate) fn profiling(&mut self, enabled: bool, contention: bool) {
        if contention && !enabled {
            let message = "must not be given without --enable-profiling";
            self.refuse("enable-contention-profiling", message);
        }
    }

    /// Octets of a process, at least those of one tunnel.
    pub(crate) fn buffered(&mut self, size: ByteSize) -> usize {
        let flag = "max-buffered-bytes";
        if size.get() < LEAST_BUFFERED {
            let least = ByteSize(LEAST_BUFFERED);
            self.refuse(flag, format!("{size} is not at least {least}"));
        }
        usize::try_from(size.get()).unwrap_or(usize::MAX)
    }

    /// Certificate and key, both or none.
    pub(crate) fn key_pair(
        &mut self,
        flags: (&str, &str),
        cert: &RelPath,
        key: &RelPath,
    ) -> Option<KeyPair> {
        match (path(cert), path(key)) {
            (Some(cert), Some(key)) => return Some(KeyPair { cert, key }),
            (None, None) => {}
            (Some(_), None) => self.refuse(flags.1, format!("must be given with --{}", flags.0)),
            (None, Some(_)) => self.refuse(flags.0, format!("must be given with --{}", flags.1)),
        }
        None
    }

    /// A name that is sent as metadata; from the flag, the environment, or drawn.
    pub(crate) fn name(&mut self, flag: &str, given: &str, variable: Option<&str>) -> String {
        let name = match (given, variable) {
            ("", Some(name)) => name,
            ("", None) => return random_uuid(),
            (name, _) => name,
        };
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) || name.len() > MAX_NAME {
            let message = format!(
                "{name:?} has more than {MAX_NAME} characters, or other than visible ASCII"
            );
            self.refuse(flag, message);
        }
        name.to_owned()
    }

    /// The kubeconfig of the API server that `flag` needs; none is that of the pod.
    pub(crate) fn api_server(
        &mut self,
        flag: &str,
        kubeconfig: &RelPath,
        environment: &Environment,
    ) -> Option<PathBuf> {
        if kubeconfig.is_empty() && !environment.in_cluster {
            let message = format!("must be given with --{flag}, for this runs in no pod");
            self.refuse("kubeconfig", message);
        }
        path(kubeconfig)
    }

    /// A duration that must not be 0.
    pub(crate) fn lasting(&mut self, flag: &str, duration: Duration) -> Duration {
        if duration.is_zero() {
            self.refuse(flag, "0s is not more than nothing");
        }
        duration
    }
}

/// The path, unless nothing was written.
pub(crate) fn path(path: &RelPath) -> Option<PathBuf> {
    (!path.is_empty()).then(|| path.0.clone())
}

/// A random UUID (RFC 9562, version 4); without randomness there is no TLS either.
fn random_uuid() -> String {
    let mut octets = [0_u8; 16];
    let _ = SystemRandom::new().fill(&mut octets);
    octets[6] = octets[6] & 0x0f | 0x40;
    octets[8] = octets[8] & 0x3f | 0x80;
    let hex: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    let (a, rest) = hex.split_at(8);
    let (b, rest) = rest.split_at(4);
    let (c, rest) = rest.split_at(4);
    let (d, e) = rest.split_at(4);
    [a, b, c, d, e].join("-")
}

/// One tunnel's, `knp_proto::LinkConfig::tunnel_bytes`.
const LEAST_BUFFERED: u64 = 4 << 20;

/// Longest name of a server or agent, far below what a header may have.
const MAX_NAME: usize = 253;

/// A certificate chain and its key, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The chain.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// Pings on a link that has been without traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// After how long without traffic.
    pub time: Duration,
    /// How long the answer may take.
    pub timeout: Duration,
}
