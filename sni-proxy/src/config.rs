//! Flags, environment, configuration file, defaults and validation of the gateway.
//!
//! [`Config`] is the file as serde reads it; loaded, it needs no further checking. What the comments
//! of its keys say is also what the published schema says. The only file of this binary that reads
//! the environment. The routing file has a module of its own, `routes`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use route::{IpPrefix, TcpOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{
    AccessLogFormat, AdminSettings, ConfigErrors, DrainSettings, HandoverSettings, ProbesSettings,
    TcpSettings, Validate,
};
use telemetry::{EndpointAddr, LogFormat};

mod connect;
mod limits;
mod listener;
mod source;
mod trace;

use self::connect::ConnectSettings;
pub(crate) use self::connect::Otherwise;
use self::limits::Limits;
pub(crate) use self::limits::WireGuardLimits;
pub(crate) use self::listener::ListenerConfig;
pub use self::listener::{Protocol, ProxyProtocol};
use self::source::RoutingSettings;
pub(crate) use self::source::{RouteSource, XdsConfig};
pub(crate) use self::trace::Output;
pub use self::trace::{Command, TraceFlags};

/// Upper bound of workers; more than any machine has use for.
const MAX_WORKERS: usize = 1024;

/// Upper bound of listeners that routes of a server can tell apart.
const MAX_XDS_LISTENERS: usize = 64;

/// TLS passthrough by server name, PROXY protocol and HTTP CONNECT: the gateway of a seed.
#[derive(Clone, Debug, Parser)]
#[command(name = "sni-proxy", version, max_term_width = 100, after_help = EXAMPLES)]
#[command(subcommand_negates_reqs = true)]
pub struct Flags {
    /// Configuration file (YAML); must be given, but for a subcommand.
    #[arg(long, value_name = "FILE", required = true)]
    pub config: Option<PathBuf>,

    /// Validate the configuration and all it points to, print what is in effect, and exit.
    #[arg(long)]
    pub check: bool,

    /// Zone of this gateway, by default that of its pod in routes over xDS; endpoints of the same zone
    /// are preferred where a cluster wants it.
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,

    /// How logs are written to standard error: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  sni-proxy --config /etc/rhizome/sni-proxy.yaml
  sni-proxy --config sni-proxy.yaml --check
  sni-proxy --config sni-proxy.yaml --zone eu-west-1a --log-format json
  sni-proxy started --config /etc/rhizome/sni-proxy.yaml
  sni-proxy trace --sni api.a.example.com

Signals:
  SIGTERM, SIGINT  drain and exit; the second time exit at once
  SIGHUP           read the routing file and certificates again

Environment:
  RUST_LOG                            log levels, such as info or info,serve=debug
  LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES
                                      sockets of systemd, matched to listeners by name, then by port
  NOTIFY_SOCKET                       with handover: systemd is told which process serves

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";

/// What this binary takes from its environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `LISTEN_PID`.
    pub listen_pid: Option<String>,
    /// `LISTEN_FDS`.
    pub listen_fds: Option<String>,
    /// `LISTEN_FDNAMES`.
    pub listen_fdnames: Option<String>,
    /// `NOTIFY_SOCKET`.
    pub notify_socket: Option<String>,
}

impl Environment {
    /// Reads the variables this binary knows; values that are not UTF-8 count as absent.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the module that reads the environment"
    )]
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok();
        Self {
            listen_pid: value("LISTEN_PID"),
            listen_fds: value("LISTEN_FDS"),
            listen_fdnames: value("LISTEN_FDNAMES"),
            notify_socket: value("NOTIFY_SOCKET"),
        }
    }
}

/// The configuration file of `sni-proxy`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "File")]
pub struct Config {
    /// Worker threads; 0 means one for each CPU.
    #[serde(default)]
    workers: usize,
    /// Whether bulk passes by splice(2), within the kernel; `false` copies every byte.
    #[serde(default = "settings::yes")]
    pub(crate) splice: bool,
    /// Where `/healthz`, `/readyz` and `/metrics` answer.
    #[serde(default = "default_probes")]
    pub(crate) probes: ProbesSettings,
    /// Where operators look in: the probes' paths and `/`, `/config`, `/snapshot`, `/trace`, `/connections`,
    /// `/drain`, `/log`.
    #[serde(default = "default_admin")]
    pub(crate) admin: AdminSettings,
    /// The sockets that take connections.
    pub(crate) listeners: Vec<ListenerConfig>,
    /// Bounds in number, size and time.
    #[serde(default)]
    pub(crate) limits: Limits,
    /// Options of every TCP socket; a listener or a cluster may override them.
    #[serde(default)]
    pub(crate) tcp: TcpSettings,
    /// How the process stops.
    #[serde(default)]
    pub(crate) drain: DrainSettings,
    /// How a process that replaces this one on the same machine takes its connections over; without, they are
    /// drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handover: Option<HandoverSettings>,
    /// Networks whose peers may send a load balancer's PROXY header; must be given when a listener
    /// takes one.
    #[serde(default)]
    trusted_proxies: Vec<String>,
    /// How CONNECT requests are understood.
    #[serde(default)]
    pub(crate) connect: ConnectSettings,
    /// Bounds of the listeners that take WireGuard.
    #[serde(default)]
    pub(crate) wireguard: WireGuardLimits,
    /// Where routes come from.
    routing: RoutingSettings,
    /// The access log, written to standard output.
    #[serde(default)]
    pub(crate) access_log: AccessLogFile,
    /// `trusted_proxies`, read.
    #[serde(skip)]
    trusted: Vec<IpPrefix>,
    /// `routing`, with paths from the working directory.
    #[serde(skip)]
    pub(crate) source: RouteSource,
    /// `tcp`, as sockets take them.
    #[serde(skip)]
    pub(crate) tcp_options: TcpOptions,
}

/// The access log.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct AccessLogFile {
    /// How it is written, if at all.
    pub(crate) format: AccessLogFormat,
    /// Whether each request of a terminating route is written as well, when its answer has ended.
    pub(crate) requests: bool,
}

fn default_probes() -> ProbesSettings {
    ProbesSettings::on_port(15021)
}

fn default_admin() -> AdminSettings {
    AdminSettings::on_loopback(9901)
}

impl Config {
    /// Returns where operators look in.
    pub fn admin(&self) -> &EndpointAddr {
        &self.admin.address
    }

    /// Returns the number of worker threads.
    pub(crate) fn workers(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        }
    }

    /// Returns the listeners as routes from a server are matched to them.
    pub(crate) fn own_listeners(&self) -> Vec<xds::OwnListener> {
        let own = self.listeners.iter().map(|listener| xds::OwnListener {
            name: listener.name.clone(),
            port: listener.address.get().port(),
            protocol: match listener.protocol {
                Protocol::Connect => xds::OwnProtocol::Connect,
                Protocol::ProxyOrConnect => xds::OwnProtocol::Node,
                Protocol::Tls => xds::OwnProtocol::Tls,
                Protocol::WireGuard => xds::OwnProtocol::WireGuard,
            },
        });
        own.collect()
    }

    /// Returns the state that a server's resources are put into: what they leave open is as
    /// configured here.
    pub(crate) fn empty_state(&self) -> xds::State {
        xds::State::with_tcp(Arc::new(self.tcp_options.clone()))
    }

    /// Tells whether a peer may send a load balancer's PROXY header.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.iter().any(|prefix| prefix.contains(peer))
    }
}

impl Validate for Config {
    fn validate(&mut self, origin: &Path, errors: &mut ConfigErrors) {
        validate_tcp(&self.tcp, "tcp", errors);
        if let Some(handover) = &self.handover {
            handover.validate("handover", errors);
        }
        if self.listeners.is_empty() {
            errors.add("listeners", "at least one is needed");
        }
        if self.routing.is_xds() && self.listeners.len() > MAX_XDS_LISTENERS {
            let why = format!("more than {MAX_XDS_LISTENERS} with routing.xds");
            errors.add("listeners", why);
        }
        if self.workers > MAX_WORKERS {
            errors.add("workers", format!("more than {MAX_WORKERS}"));
        }
        listener::validate(&self.listeners, &self.trusted_proxies, &self.tcp, errors);
        self.limits.validate(errors);
        self.wireguard.validate(errors);
        self.connect.validate(errors);
        self.trusted = errors.parse_each("trustedProxies", &self.trusted_proxies, str::parse);
        self.source = self.routing.source(origin, errors);
        self.tcp_options = (&self.tcp).into();
    }
}

/// Adds to `errors` what is wrong with the TCP options of the block `key`, by their values or by
/// what the kernel of this host says.
pub(crate) fn validate_tcp(tcp: &TcpSettings, key: &str, errors: &mut ConfigErrors) {
    let before = errors.iter().count();
    tcp.validate(key, errors);
    let fine = errors.iter().count() == before;
    if fine && let Err(error) = serve::try_tcp_options(&tcp.into()) {
        errors.add(key, error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
workers: 0
splice: true
probes: { address: "[::]:15021" }
admin:  { address: "127.0.0.1:9901" }
listeners:
- { name: tls,  address: "[::]:443",  protocol: tls,              proxyProtocol: off }
- { name: node, address: "[::]:8443", protocol: proxy-or-connect }
- { name: vpn,  address: "[::]:8132", protocol: connect }
- { name: wireguard, address: "[::]:51820", protocol: wireguard }
limits:
  connections: 750000
  connectionsPerSource: 0
  preambleTimeout: 10s
  preambleBytes: 65536
  idleTimeout: 0s
  maxConnectionAge: 0s
tcp: { keepalive: 55s, keepaliveInterval: 55s, keepaliveProbes: 3, userTimeout: 0s, congestion: "", notsentLowat: 0, receiveBuffer: 0 }
drain: { delay: 5s, timeout: 30s }
trustedProxies: ["10.0.0.0/8"]
connect:
  headers: [X-Gardener-Destination, Reversed-VPN]
  otherwise: redirect
wireguard:
  flows: 65536
  flowIdle: 180s
  sourceRate: 500
  sourceBurst: 1000
  sourceSlots: 8192
  scanRate: 200000
  scanBurst: 100000
  receiveBuffer: 4MiB
  sendBuffer: 4MiB
routing:
  file: routes.yaml
accessLog: { format: off }
"#;

    fn problems(text: &str) -> String {
        settings::from_text::<Config>(text, Path::new("/etc/sni-proxy.yaml"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn whole_sample_equals_defaults() {
        let origin = Path::new("/etc/rhizome/sni-proxy.yaml");
        let sample: Config = settings::from_text(SAMPLE, origin).unwrap();
        let minimal: Config = settings::from_text(
            r#"
listeners:
- { name: tls, address: "[::]:443", protocol: tls }
- { name: node, address: "[::]:8443", protocol: proxy-or-connect }
- { name: vpn, address: "[::]:8132", protocol: connect }
- { name: wireguard, address: "[::]:51820", protocol: wireguard }
routing: { file: routes.yaml }
trustedProxies: ["10.0.0.0/8"]
"#,
            origin,
        )
        .unwrap();
        assert_eq!(settings::effective(&sample), settings::effective(&minimal));
        assert!(matches!(&sample.source, RouteSource::File(file)
                if file == Path::new("/etc/rhizome/routes.yaml")));
        assert!(sample.trusts("10.1.2.3".parse().unwrap()));
        assert!(!sample.trusts("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn every_mistake_is_named_at_once() {
        let problem = problems(&SAMPLE.replace("workers: 0", "wrokers: 0"));
        let key = "/etc/sni-proxy.yaml:2:1: wrokers: unknown key";
        assert!(problem.starts_with(key), "{problem}");
        let text = SAMPLE
            .replace("proxyProtocol: off", "proxyProtocol: optional")
            .replace("trustedProxies: [\"10.0.0.0/8\"]", "");
        let problem = problems(&text);
        assert!(
            problem.contains("trustedProxies: must be given"),
            "{problem}"
        );
        let text = SAMPLE
            .replace("name: vpn", "name: node")
            .replace("[::]:8132", "[::]:8443")
            .replace("preambleTimeout: 10s", "preambleTimeout: 0s")
            .replace("65536", "10")
            .replace("10.0.0.0/8", "10.0.0.1/8")
            .replace("Reversed-VPN", "\"Reversed VPN\"");
        let problem = problems(&text);
        for part in [
            "listeners[2].name: there are two listeners \"node\"",
            "listeners[2].address: two listeners listen on [::]:8443",
            "limits.preambleTimeout: 0 would refuse",
            "limits.preambleBytes: not between 1KiB and 16MiB",
            "trustedProxies[0]",
            "connect.headers[1]: not a header name",
        ] {
            assert!(problem.contains(part), "{part:?} is not in {problem}");
        }
    }
}
