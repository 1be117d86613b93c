//! Flags, environment and configuration of the node proxy, validated.
//!
//! Produces a [`Config`] that needs no further checking. The only file of this binary that reads
//! the environment.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};
use net_config::{AddressParams, DeviceKind};
use preamble::Version;
use route::{EndpointAddress, TcpOptions};
use serve::Family;
use settings::{AdminAddress, ConfigError, ConfigErrors, yaml};
use telemetry::{AccessFormat, EndpointAddr, LogFormat};

use self::file::{
    AccessLogFormat, DnsFile, FamilyFile, InterfaceFile, KindFile, Mode, UpstreamFile,
};
use crate::dns::DnsParams;

mod file;

pub use self::file::File;
pub(crate) use self::file::NoTrackFile;

/// Most worker threads; a node proxy needs one.
const MOST_WORKERS: usize = 64;

/// Carries connections of a shoot's node to its API server, through the gateway of its seed.
#[derive(Clone, Debug, Parser)]
#[command(name = "apiserver-proxy", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Flags {
    /// Configuration file (YAML).
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        default_value = "/etc/rhizome/apiserver-proxy.yaml"
    )]
    pub config: PathBuf,

    /// Validate the configuration, print what is in effect, and exit.
    #[arg(long)]
    pub check: bool,

    /// How logs are written to standard error: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub log_format: LogFormat,

    /// What to do instead of proxying.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of proxying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Take the addresses off the node, and the device and rules that were made for them.
    Cleanup,
    /// Put the addresses on the node once and exit, as an init container does.
    Setup,
    /// Ask the running process, at its admin address, whether it serves, as a startup probe does.
    Started,
}

const EXAMPLES: &str = "\
Examples:
  apiserver-proxy --config apiserver-proxy.yaml
  apiserver-proxy --config apiserver-proxy.yaml --check
  apiserver-proxy setup --config apiserver-proxy.yaml

Signals:
  SIGTERM, SIGINT  drain and exit; the second time exit at once
  SIGHUP           look after the rules of noTrack now, not only each minute

Environment:
  RUST_LOG         log levels, such as info or info,net_config=debug

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) upstream: Upstream,
    pub(crate) interface: AddressParams,
    /// Take everything back at exit.
    pub(crate) cleanup: bool,
    pub(crate) no_track: NoTrackFile,
    pub(crate) connections: u64,
    pub(crate) workers: usize,
    pub(crate) splice: bool,
    pub(crate) tcp: TcpOptions,
    pub(crate) drain: serve::DrainParams,
    pub(crate) probes: SocketAddr,
    pub(crate) admin: EndpointAddr,
    pub(crate) access_log: AccessFormat,
    pub(crate) dns: Option<DnsParams>,
    effective: serde_json::Value,
}

/// The gateway.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) address: EndpointAddress,
    pub(crate) announce: Announce,
    pub(crate) connect_timeout: Duration,
    pub(crate) family: Family,
}

/// What the gateway is sent first.
#[derive(Clone, Debug)]
pub(crate) enum Announce {
    /// A CONNECT request whose header carries this value.
    Connect { destination: String },
    /// A PROXY header, toward the given destination or the one the client connected to.
    Proxy {
        version: Version,
        destination: Option<SocketAddr>,
    },
}

impl Announce {
    /// Returns the mode as the configuration names it.
    pub(crate) fn mode(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "http-connect",
            Self::Proxy { .. } => "proxy-protocol",
        }
    }
}

impl Config {
    /// Reads and validates the configuration file at `path`.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::validated(yaml::load(path)?, path)
    }

    /// As [`Config::load`], from text.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn from_text(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        Self::validated(yaml::from_str(text, origin)?, origin)
    }

    /// Returns the configuration in effect, defaults included.
    #[must_use]
    pub fn effective(&self) -> &serde_json::Value {
        &self.effective
    }

    fn validated(file: File, origin: &Path) -> Result<Self, ConfigError> {
        let mut errors = ConfigErrors::new();
        file.tcp.validate("tcp", &mut errors);
        if let Err(error) = serve::try_tcp_options(&(&file.tcp).into()) {
            errors.add("tcp", error);
        }
        if file.limits.connections == 0 {
            errors.add("limits.connections", "0 would refuse every connection");
        }
        if !(1..=MOST_WORKERS).contains(&file.workers) {
            errors.add("workers", format!("not between 1 and {MOST_WORKERS}"));
        }
        file.interface.validate(&mut errors);
        let listen = file.listen_addresses(&mut errors);
        let upstream = file.upstream.validated(&listen, &mut errors);
        let dns = file.dns.as_ref().map(|dns| dns.validated(&mut errors));
        let interface = file.interface_params(&listen, dns.as_ref());
        errors.into_result(origin)?;
        let Some(upstream) = upstream else {
            unreachable!("an invalid upstream is an error")
        };
        let effective = settings::redact(&file).unwrap_or_default();
        Ok(Self {
            listen,
            upstream,
            interface,
            cleanup: file.interface.cleanup,
            no_track: file.no_track,
            connections: file.limits.connections,
            workers: file.workers,
            splice: file.splice,
            tcp: (&file.tcp).into(),
            drain: serve::DrainParams {
                delay: file.drain.delay.0,
                timeout: file.drain.timeout.0,
            },
            probes: file.probes.address(),
            admin: match file.admin.address.clone() {
                AdminAddress::Off => EndpointAddr::None,
                AdminAddress::Tcp(address) => EndpointAddr::Tcp(address.get()),
                AdminAddress::Unix(path) => EndpointAddr::Unix(path),
            },
            access_log: match file.access_log.format {
                AccessLogFormat::Json => AccessFormat::Json,
                AccessLogFormat::Off => AccessFormat::Off,
                AccessLogFormat::Text => AccessFormat::Text,
            },
            dns,
            effective,
        })
    }
}

impl File {
    fn listen_addresses(&self, errors: &mut ConfigErrors) -> Vec<SocketAddr> {
        if self.listen.is_empty() {
            errors.add("listen", "at least one address is needed");
        }
        let mut seen = BTreeSet::new();
        for (index, address) in self.listen.iter().enumerate() {
            let address = address.get();
            if address.port() != 0 && !seen.insert(address) {
                errors.add(
                    format!("listen[{index}]"),
                    format!("{address} is listed twice"),
                );
            }
            if self.interface.manage && address.ip().is_unspecified() {
                let why = "an unspecified address cannot be put on a device; \
                           name the address, or set interface.manage to false";
                errors.add(format!("listen[{index}]"), why);
            }
        }
        self.listen.iter().map(|address| address.get()).collect()
    }

    fn interface_params(&self, listen: &[SocketAddr], dns: Option<&DnsParams>) -> AddressParams {
        let wanted = listen
            .iter()
            .map(SocketAddr::ip)
            .chain(dns.map(|dns| dns.address.ip()));
        // Addresses of the host itself need no device of ours.
        let addresses: Vec<_> = wanted
            .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
            .collect();
        AddressParams {
            device: self.interface.name.clone(),
            kind: match self.interface.kind {
                KindFile::Auto => DeviceKind::Auto,
                KindFile::Bridge => DeviceKind::Bridge,
                KindFile::Dummy => DeviceKind::Dummy,
                KindFile::Ifb => DeviceKind::Ifb,
                KindFile::Lo => DeviceKind::Loopback,
            },
            manage: self.interface.manage && !addresses.is_empty(),
            addresses,
        }
    }
}

impl InterfaceFile {
    fn validate(&self, errors: &mut ConfigErrors) {
        // What the kernel takes as the name of a device.
        let banned = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        let name = &self.name;
        if !(1..=15).contains(&name.len())
            || [".", ".."].contains(&name.as_str())
            || name.contains(banned)
        {
            let why = "not the name of a device: 1 to 15 bytes, without blank, slash and colon";
            errors.add("interface.name", why);
        }
    }
}

impl UpstreamFile {
    fn validated(&self, listen: &[SocketAddr], errors: &mut ConfigErrors) -> Option<Upstream> {
        if self.connect_timeout.0.is_zero() {
            errors.add("upstream.connectTimeout", "0 would fail every attempt");
        }
        let address: Result<EndpointAddress, _> = self.address.parse();
        let address = address
            .map_err(|error| errors.add("upstream.address", error))
            .ok();
        if let Some(EndpointAddress::Ip(address)) = &address
            && listen.contains(address)
        {
            errors.add("upstream.address", "the proxy itself listens there");
        }
        let announce = match self.mode {
            Mode::HttpConnect => self.connect(errors),
            Mode::ProxyProtocol => self.proxy(errors),
        };
        Some(Upstream {
            address: address?,
            announce: announce?,
            connect_timeout: self.connect_timeout.0,
            family: match self.dns.family {
                FamilyFile::Auto => Family::Auto,
                FamilyFile::Ipv4 => Family::Ipv4,
                FamilyFile::Ipv6 => Family::Ipv6,
            },
        })
    }

    fn connect(&self, errors: &mut ConfigErrors) -> Option<Announce> {
        let Some(destination) = self.destination.clone().filter(|value| !value.is_empty()) else {
            errors.add(
                "upstream.destination",
                "mode http-connect needs the header's value",
            );
            return None;
        };
        if !destination.bytes().all(|b| b.is_ascii_graphic()) {
            errors.add(
                "upstream.destination",
                "not a value that a header can carry",
            );
            return None;
        }
        Some(Announce::Connect { destination })
    }

    fn proxy(&self, errors: &mut ConfigErrors) -> Option<Announce> {
        let version = match self.version {
            1 => Version::V1,
            2 => Version::V2,
            other => {
                errors.add(
                    "upstream.version",
                    format!("there is no version {other}: 1 or 2"),
                );
                return None;
            }
        };
        let parsed = self.destination.as_deref().map(str::parse).transpose();
        let destination = parsed
            .map_err(|_| errors.add("upstream.destination", "mode proxy-protocol takes IP:PORT"))
            .ok()?;
        Some(Announce::Proxy {
            version,
            destination,
        })
    }
}

impl DnsFile {
    fn validated(&self, errors: &mut ConfigErrors) -> DnsParams {
        let params = DnsParams {
            address: self.address.get(),
            zone: self.zone.clone(),
            answer: self.answer.clone(),
            forward: self.forward.clone(),
        };
        if params.answer.is_empty() {
            errors.add("dns.answer", "at least one address is needed");
        }
        if let Err(error) = params.check() {
            errors.add("dns", error);
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
listen: ["10.1.2.3:443"]
upstream: { address: "api.example.com:8443", mode: proxy-protocol,
            version: 2, connectTimeout: 5s, dns: { family: auto } }
interface: { name: apiserver-proxy, kind: auto, manage: true, cleanup: false }
noTrack: off
splice: true
limits: { connections: 10000 }
probes: { address: "[::]:16910" }
dns: { address: "10.0.0.2:53", zone: "kubernetes.default.svc.cluster.local", answer: ["10.0.0.2"], forward: ["169.254.20.10:53"] }
"#;

    fn config(text: &str) -> Result<Config, String> {
        Config::from_text(text, Path::new("proxy.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_sample_is_what_the_defaults_are() {
        let sample = config(SAMPLE).unwrap();
        let minimal = config(
            r#"
listen: ["10.1.2.3:443"]
upstream: { address: "api.example.com:8443", mode: proxy-protocol }
dns: { address: "10.0.0.2:53", zone: "kubernetes.default.svc.cluster.local", answer: ["10.0.0.2"], forward: ["169.254.20.10:53"] }
"#,
        )
        .unwrap();
        assert_eq!(sample.effective(), minimal.effective());
        let addresses: Vec<String> = sample
            .interface
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(addresses, ["10.1.2.3", "10.0.0.2"]);
    }

    #[test]
    fn connect_needs_a_destination() {
        let text = SAMPLE.replace("mode: proxy-protocol", "mode: http-connect");
        let error = config(&text).unwrap_err();
        assert!(
            error.contains("upstream.destination: mode http-connect needs"),
            "{error}"
        );
        let value = "outbound|443||kube-apiserver.shoot--foo--bar.svc.cluster.local";
        let text = text.replace("version: 2", &format!("destination: \"{value}\""));
        match config(&text).unwrap().upstream.announce {
            Announce::Connect { destination } => assert_eq!(destination, value),
            announce @ Announce::Proxy { .. } => panic!("{announce:?}"),
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, problem) in [
            (
                "10.1.2.3:443",
                "[::]:443",
                "listen[0]: an unspecified address",
            ),
            (
                "version: 2",
                "version: 3",
                "upstream.version: there is no version 3",
            ),
            (
                "version: 2",
                "destination: nowhere",
                "upstream.destination: mode proxy-protocol",
            ),
            (
                "connectTimeout: 5s",
                "connectTimeout: 0s",
                "upstream.connectTimeout: 0 would fail",
            ),
            (
                "api.example.com:8443",
                "api.example.com",
                "upstream.address",
            ),
            ("noTrack: off", "notrack: off", "proxy.yaml:6:"),
            ("10000", "0", "limits.connections: 0 would refuse"),
        ] {
            let error = config(&SAMPLE.replace(from, to)).unwrap_err();
            assert!(error.contains(problem), "{problem:?} is not in {error}");
        }
    }
}
