//! Flags, environment and configuration of the node proxy, validated.
//!
//! [`Config`] is the file as serde reads it; loaded, it needs no further checking. What the comments
//! of its keys say is also what the published schema says. The only file of this binary that reads
//! the environment.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use net_config::AddressParams;
use route::TcpOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serve::{DirectoryError, check_handover};
use settings::{
    AccessLogSettings, AdminSettings, ConfigErrors, DrainSettings, HandoverSettings, ListenAddress,
    ProbesSettings, TcpSettings, Validate,
};
use telemetry::{EndpointAddr, LogFormat};

use crate::dns::DnsParams;

mod interface;
mod upstream;

use self::interface::Interface;
pub(crate) use self::interface::NoTrackMode;
pub(crate) use self::upstream::{Announce, Upstream};

/// Upper bound of worker threads; a node proxy needs one.
const MAX_WORKERS: usize = 64;

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
    /// Keep the addresses on the node for another proxy, as a sidecar of it does; `upstream` is not
    /// needed.
    Keep,
    /// Put the addresses on the node once, make the directory of `handover.socket`, and exit, as an init
    /// container does.
    Setup,
    /// Ask the running process, at its admin address, whether it serves, as a startup probe does.
    Started,
}

const EXAMPLES: &str = "\
Examples:
  apiserver-proxy --config apiserver-proxy.yaml
  apiserver-proxy --config apiserver-proxy.yaml --check
  apiserver-proxy setup --config apiserver-proxy.yaml
  apiserver-proxy keep --config apiserver-proxy.yaml

Signals:
  SIGTERM, SIGINT  drain and exit; the second time exit at once
  SIGHUP           look after the rules of noTrack now, not only each minute

Environment:
  RUST_LOG         log levels, such as info or info,net_config=debug

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";

/// The configuration file of `apiserver-proxy`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "File")]
pub struct Config {
    /// Addresses pods reach the API server at; they are put on `interface` as well.
    listen: Vec<ListenAddress>,
    /// The gateway, and how it is told where to go; only `keep`, `setup` and `cleanup` do without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upstream: Option<Upstream>,
    /// The device that holds the addresses.
    #[serde(default)]
    interface: Interface,
    /// Rules that keep connection tracking away from the addresses.
    #[serde(default)]
    pub(crate) no_track: NoTrackMode,
    /// Bounds.
    #[serde(default)]
    pub(crate) limits: Limits,
    /// Worker threads.
    #[serde(default = "one")]
    pub(crate) workers: usize,
    /// Whether bulk passes by splice(2), within the kernel; `false` copies every byte.
    #[serde(default = "settings::yes")]
    pub(crate) splice: bool,
    /// Options of every TCP socket.
    #[serde(default)]
    pub(crate) tcp: TcpSettings,
    /// How the process stops.
    #[serde(default)]
    pub(crate) drain: DrainSettings,
    /// How a process that replaces this one takes its connections over; without, they are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handover: Option<HandoverSettings>,
    /// Where `/healthz`, `/readyz` (also `/ready`) and `/metrics` answer.
    #[serde(default = "default_probes")]
    pub(crate) probes: ProbesSettings,
    /// Where operators look in; off, because the host network is shared.
    #[serde(default)]
    pub(crate) admin: AdminSettings,
    /// The access log, written to standard output.
    #[serde(default)]
    pub(crate) access_log: AccessLogSettings,
    /// A DNS server that answers one name itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dns: Option<DnsParams>,
    /// `tcp`, as sockets take them.
    #[serde(skip)]
    pub(crate) tcp_options: TcpOptions,
}

fn one() -> usize {
    1
}

fn default_probes() -> ProbesSettings {
    ProbesSettings::on_port(16910)
}

/// A configuration of addresses alone.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("upstream: must be given; only `keep`, `setup` and `cleanup` do without")]
pub struct NoUpstream;

/// Bounds.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "LimitsFile")]
pub(crate) struct Limits {
    /// Connections at once; above it new ones are refused and counted. Lowered at start, with a
    /// warning, to what the descriptor limit carries.
    pub(crate) connections: u64,
    /// Connections of one client, an IPv4 address or an IPv6 /64, so that one pod leaves places for the kubelet; 0
    /// for no limit. All of the host's network share its address.
    pub(crate) connections_per_source: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_source: 0,
        }
    }
}

impl Config {
    /// Returns the addresses that pods connect to.
    pub(crate) fn listen(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.listen.iter().map(|address| address.get())
    }

    /// Returns where operators look in.
    pub fn admin(&self) -> &EndpointAddr {
        &self.admin.address
    }

    /// Checks that it is a proxy's: that it names the gateway.
    ///
    /// # Errors
    /// It does not.
    pub fn check_proxy(&self) -> Result<(), NoUpstream> {
        self.upstream.as_ref().map(|_| ()).ok_or(NoUpstream)
    }

    /// Checks what it points to.
    ///
    /// # Errors
    /// The directory of `handover` is not as it has to be.
    pub fn check(&self) -> Result<(), DirectoryError> {
        if let Some(handover) = &self.handover {
            check_handover(&handover.socket)?;
        }
        Ok(())
    }

    /// Returns the device and the addresses that are kept on it.
    pub(crate) fn interface(&self) -> AddressParams {
        let dns = self.dns.iter().map(|dns| dns.address.get());
        let wanted = self.listen().chain(dns).map(|address| address.ip());
        // Addresses of the host itself need no device of ours.
        let addresses: Vec<_> = wanted
            .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
            .collect();
        AddressParams {
            device: self.interface.name.clone(),
            kind: self.interface.kind.into(),
            manage: self.interface.manage && !addresses.is_empty(),
            addresses,
        }
    }

    /// Tells whether the node is left as it was found at exit.
    pub(crate) fn cleanup(&self) -> bool {
        self.interface.cleanup
    }

    fn validate_listen(&self, errors: &mut ConfigErrors) {
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
    }
}

impl Validate for Config {
    fn validate(&mut self, _origin: &Path, errors: &mut ConfigErrors) {
        self.tcp.validate("tcp", errors);
        self.tcp_options = (&self.tcp).into();
        if let Err(error) = serve::try_tcp_options(&self.tcp_options) {
            errors.add("tcp", error);
        }
        if self.limits.connections == 0 {
            errors.add("limits.connections", "0 would refuse every connection");
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            errors.add("workers", format!("not between 1 and {MAX_WORKERS}"));
        }
        if let Some(handover) = &self.handover {
            handover.validate("handover", errors);
        }
        self.interface.validate(errors);
        self.validate_listen(errors);
        let listen: Vec<_> = self.listen().collect();
        if let Some(upstream) = &mut self.upstream {
            upstream.validate(&listen, errors);
        }
        if let Some(dns) = &mut self.dns {
            dns.validate(errors);
        }
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
limits: { connections: 10000, connectionsPerSource: 0 }
probes: { address: "[::]:16910" }
dns: { address: "10.0.0.2:53", zone: "kubernetes.default.svc.cluster.local", answer: ["10.0.0.2"], forward: ["169.254.20.10:53"] }
"#;

    fn config(text: &str) -> Result<Config, String> {
        settings::from_text(text, Path::new("proxy.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn documented_sample_equals_defaults() {
        let sample = config(SAMPLE).unwrap();
        let minimal = config(
            r#"
listen: ["10.1.2.3:443"]
upstream: { address: "api.example.com:8443", mode: proxy-protocol }
dns: { address: "10.0.0.2:53", zone: "kubernetes.default.svc.cluster.local", answer: ["10.0.0.2"], forward: ["169.254.20.10:53"] }
"#,
        )
        .unwrap();
        assert_eq!(settings::effective(&sample), settings::effective(&minimal));
        let addresses = sample.interface().addresses;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
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
        match config(&text).unwrap().upstream.unwrap().announce {
            Announce::Connect { destination } => assert_eq!(destination, value),
            announce @ Announce::Proxy { .. } => panic!("{announce:?}"),
        }
    }

    #[test]
    fn mistakes_are_named() {
        let zone = "kubernetes.default.svc.cluster.local";
        for row in [
            "10.1.2.3:443 => [::]:443 => listen[0]: an unspecified address",
            "version: 2 => version: 3 => upstream.version: there is no version 3",
            "version: 2 => destination: nowhere => upstream.destination: mode proxy-protocol",
            "Timeout: 5s => Timeout: 0s => upstream.connectTimeout: 0 would fail",
            "api.example.com:8443 => api.example.com => upstream.address",
            "noTrack: off => notrack: off => proxy.yaml:6:",
            "splice: true => handover: { socket: run/x } => handover.socket: must be the absolute",
            "splice: true => handover: { socket: /run/x, timeout: 0s } => handover.timeout: 0 would",
            "connections: 10000 => connections: 0 => limits.connections: 0 would refuse",
            "10.0.0.2:53 => [::]:53 => dns.address: answers would leave",
            "169.254.20.10:53 => 10.0.0.2:53 => dns.forward[0]: forwarding to 10.0.0.2:53",
            "169.254.20.10:53 => [::ffff:10.0.0.2]:53 => dns.forward[0]: forwarding to",
            "[\"10.0.0.2\"] => [] => dns.answer: at least one",
            &format!("{zone} => . => dns.zone: the root of all names"),
            &format!("{zone} => a..b => dns.zone: "),
        ] {
            let [from, to, problem] = row.split(" => ").collect::<Vec<_>>()[..] else {
                panic!("{row}")
            };
            let error = config(&SAMPLE.replace(from, to)).expect_err(row);
            assert!(error.contains(problem), "{problem:?} is not in {error}");
        }
    }
}
