//! Flags, environment, configuration file, defaults and validation of the gateway.
//!
//! Produces a [`Config`] that needs no further checking. The only file of this binary that reads
//! the environment. The routing file has a room of its own, `routes`.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use route::{IpPrefix, TcpOptions};
use settings::{
    AdminAddress, ByteSize, ConfigError, ConfigErrors, HumanDuration, TcpOverrides, TcpSettings,
    yaml,
};
use telemetry::{AccessFormat, EndpointAddr, LogFormat};

use self::file::{AccessLogFormat, Otherwise};

mod file;
mod source;
mod trace;
mod wireguard;

pub use self::file::{File, Protocol, ProxyProtocol};
pub(crate) use self::source::{RouteSource, XdsConfig};
pub(crate) use self::trace::Output;
pub use self::trace::{Command, TraceFlags};

/// Most workers that may be asked for; more than any machine has use for.
const MOST_WORKERS: usize = 1024;

/// Bounds of a preamble: the smallest still takes any PROXY header and an ordinary ClientHello.
const PREAMBLE_BYTES: std::ops::RangeInclusive<u64> = 1024..=16 * 1024 * 1024;

/// Most listeners that routes of a server can tell apart.
const MOST_XDS_LISTENERS: usize = 64;

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

    /// Zone of this gateway; endpoints of the same zone are preferred where a cluster wants it.
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
  sni-proxy trace --sni api.a.example.com

Signals:
  SIGTERM, SIGINT  drain and exit; the second time exit at once
  SIGHUP           read the routing file and certificates again

Environment:
  RUST_LOG                            log levels, such as info or info,serve=debug
  LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES
                                      sockets of systemd, matched to listeners by name, then by port

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
}

impl Environment {
    /// Reads the variables this binary knows; values that are not UTF-8 count as absent.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the room that reads the environment"
    )]
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok();
        Self {
            listen_pid: value("LISTEN_PID"),
            listen_fds: value("LISTEN_FDS"),
            listen_fdnames: value("LISTEN_FDNAMES"),
        }
    }
}

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) workers: usize,
    pub(crate) splice: bool,
    pub(crate) probes: SocketAddr,
    pub(crate) admin: EndpointAddr,
    pub(crate) listeners: Vec<ListenerConfig>,
    pub(crate) limits: Limits,
    pub(crate) tcp: TcpOptions,
    pub(crate) tcp_settings: TcpSettings,
    pub(crate) drain: serve::DrainParams,
    pub(crate) trusted_proxies: Vec<IpPrefix>,
    pub(crate) connect: Connect,
    pub(crate) wireguard: crate::wireguard::Params,
    pub(crate) routes: RouteSource,
    pub(crate) access_log: AccessFormat,
    effective: serde_json::Value,
}

/// One listener, with its TCP options worked out.
#[derive(Clone, Debug)]
pub(crate) struct ListenerConfig {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) tcp: TcpOptions,
    /// What is otherwise on sockets dialed for its connections.
    pub(crate) upstream_tcp: Option<TcpOverrides>,
}

impl ListenerConfig {
    /// Tells whether it takes datagrams and not connections.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.protocol == Protocol::WireGuard
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: u64,
    pub(crate) connections_per_source: u32,
    pub(crate) preamble_timeout: Duration,
    pub(crate) preamble_bytes: usize,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) max_connection_age: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) struct Connect {
    pub(crate) headers: Vec<String>,
    pub(crate) redirect: bool,
}

impl Config {
    /// Reads and validates the configuration file at `path`, without what it points to.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::validated(yaml::load(path)?, path)
    }

    /// As [`Config::load`], from text; `origin` is the file that relative paths start from.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn from_text(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        Self::validated(yaml::from_str(text, origin)?, origin)
    }

    /// Returns the configuration in effect, defaults included and secrets left out.
    #[must_use]
    pub fn effective(&self) -> &serde_json::Value {
        &self.effective
    }

    /// Validates what the configuration points to, and returns all of it as text.
    ///
    /// # Errors
    /// Why the routing file or a certificate is refused.
    pub fn check(&self) -> Result<String, crate::StartError> {
        let source = match &self.routes {
            RouteSource::File(file) => {
                let snapshot = crate::routes::load(file, &self.tcp_settings, None)?;
                let (clusters, routes) = (snapshot.clusters().count(), snapshot.routes().count());
                let file = file.display();
                format!("# {file}: {clusters} clusters, {routes} routes\n")
            }
            RouteSource::Xds(xds) => {
                if let Some(params) = xds.tls.clone() {
                    tls::ClientTls::load(params)?;
                }
                if let Some(cache) = &xds.cache {
                    check_writable(cache).map_err(|source| crate::StartError::Cache {
                        path: cache.clone(),
                        source,
                    })?;
                }
                format!("# routes of {:?} from {}\n", xds.gateway, xds.server)
            }
        };
        Ok(settings::effective_yaml(&self.effective).unwrap_or_default() + &source)
    }

    /// Returns the listeners as routes from a server are matched to them.
    pub(crate) fn own_listeners(&self) -> Vec<xds::OwnListener> {
        let own = self.listeners.iter().map(|listener| xds::OwnListener {
            name: listener.name.clone(),
            port: listener.address.port(),
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
        xds::State::with_tcp(Arc::new(self.tcp.clone()))
    }

    /// Tells whether a peer may send a load balancer's PROXY header.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted_proxies
            .iter()
            .any(|prefix| prefix.contains(peer))
    }

    fn validated(file: File, origin: &Path) -> Result<Self, ConfigError> {
        let mut errors = ConfigErrors::new();
        validate_tcp(&file.tcp, "tcp", &mut errors);
        file.validate_listeners(&mut errors);
        file.validate_limits(&mut errors);
        file.wireguard.validate(&mut errors);
        let trusted_proxies = file.prefixes(&mut errors);
        let mut headers = BTreeSet::new();
        for (index, header) in file.connect.headers.iter().enumerate() {
            if !is_header_name(header) {
                errors.add(format!("connect.headers[{index}]"), "not a header name");
            }
            if !headers.insert(header.to_ascii_lowercase()) {
                errors.add(
                    format!("connect.headers[{index}]"),
                    format!("{header} is there twice"),
                );
            }
        }
        if file.connect.headers.is_empty() {
            errors.add("connect.headers", "at least one is needed");
        }
        let routes = file.routing.source(origin, &mut errors);
        errors.into_result(origin)?;
        let effective = settings::redact(&file).unwrap_or_default();
        Ok(Self::from_file(file, routes, trusted_proxies, effective))
    }

    fn from_file(
        file: File,
        routes: RouteSource,
        trusted_proxies: Vec<IpPrefix>,
        effective: serde_json::Value,
    ) -> Self {
        let nonzero = |limit: HumanDuration| Some(limit.0).filter(|limit| !limit.is_zero());
        let tcp = file.tcp.clone();
        let listeners = file.listeners.iter().map(|listener| ListenerConfig {
            name: listener.name.clone(),
            address: listener.address.get(),
            protocol: listener.protocol,
            proxy_protocol: listener.proxy_protocol,
            tcp: match &listener.tcp {
                Some(overrides) => (&overrides.over(&tcp)).into(),
                None => (&tcp).into(),
            },
            upstream_tcp: listener.upstream_tcp.clone(),
        });
        let wireguard = file.wireguard.params();
        Self {
            workers: match file.workers {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                workers => workers,
            },
            splice: file.splice,
            probes: file.probes.address(),
            admin: match file.admin.address.clone() {
                AdminAddress::Off => EndpointAddr::None,
                AdminAddress::Tcp(address) => EndpointAddr::Tcp(address.get()),
                AdminAddress::Unix(path) => EndpointAddr::Unix(path),
            },
            listeners: listeners.collect(),
            limits: Limits {
                connections: file.limits.connections,
                connections_per_source: file.limits.connections_per_source,
                preamble_timeout: file.limits.preamble_timeout.0,
                preamble_bytes: usize::try_from(file.limits.preamble_bytes.0).unwrap_or(usize::MAX),
                idle_timeout: nonzero(file.limits.idle_timeout),
                max_connection_age: nonzero(file.limits.max_connection_age),
            },
            tcp: (&tcp).into(),
            tcp_settings: tcp,
            drain: serve::DrainParams {
                delay: file.drain.delay.0,
                timeout: file.drain.timeout.0,
            },
            trusted_proxies,
            connect: Connect {
                redirect: file.connect.otherwise == Otherwise::Redirect,
                headers: file.connect.headers,
            },
            wireguard,
            routes,
            access_log: match file.access_log.format {
                AccessLogFormat::Json => AccessFormat::Json,
                AccessLogFormat::Off => AccessFormat::Off,
                AccessLogFormat::Text => AccessFormat::Text,
            },
            effective,
        }
    }
}

/// Checks that a file can be written beside this one, which leaves no trace.
fn check_writable(path: &Path) -> io::Result<()> {
    let mut probe = path.as_os_str().to_owned();
    probe.push(format!(".{}.check", std::process::id()));
    std::fs::File::create_new(&probe)?;
    std::fs::remove_file(&probe)
}

impl File {
    fn validate_listeners(&self, errors: &mut ConfigErrors) {
        if self.listeners.is_empty() {
            errors.add("listeners", "at least one is needed");
        }
        if self.routing.xds.is_some() && self.listeners.len() > MOST_XDS_LISTENERS {
            let why = format!("more than {MOST_XDS_LISTENERS} with routing.xds");
            errors.add("listeners", why);
        }
        if self.workers > MOST_WORKERS {
            errors.add("workers", format!("more than {MOST_WORKERS}"));
        }
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for (index, listener) in self.listeners.iter().enumerate() {
            let key = format!("listeners[{index}]");
            let name = &listener.name;
            if name.is_empty() {
                errors.add(format!("{key}.name"), "a name is needed");
            } else if !names.insert(name) {
                errors.add(
                    format!("{key}.name"),
                    format!("there are two listeners {name:?}"),
                );
            }
            let address = listener.address.get();
            let wireguard = listener.protocol == Protocol::WireGuard;
            // `[::]` takes IPv4 as well.
            let ip = address.ip().to_canonical();
            let ip = if ip.is_unspecified() {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                ip
            };
            // TCP and UDP have ports of their own.
            if address.port() != 0 && !addresses.insert((ip, address.port(), wireguard)) {
                errors.add(
                    format!("{key}.address"),
                    format!("two listeners listen on {address}"),
                );
            }
            let balanced = listener.proxy_protocol != ProxyProtocol::Off && !wireguard;
            if balanced && self.trusted_proxies.is_empty() {
                errors.add(
                    "trustedProxies",
                    format!("must be given, because listener {name:?} takes a PROXY header"),
                );
            }
            let meaningless = "means nothing to a listener that takes datagrams";
            if wireguard && listener.proxy_protocol != ProxyProtocol::Off {
                errors.add(format!("{key}.proxyProtocol"), meaningless);
            }
            for (word, overrides) in [
                ("tcp", &listener.tcp),
                ("upstreamTcp", &listener.upstream_tcp),
            ] {
                let Some(overrides) = overrides else { continue };
                let key = format!("{key}.{word}");
                if wireguard {
                    errors.add(key, meaningless);
                } else {
                    validate_tcp(&overrides.over(&self.tcp), &key, errors);
                }
            }
        }
    }

    fn validate_limits(&self, errors: &mut ConfigErrors) {
        let limits = &self.limits;
        if limits.connections == 0 {
            errors.add("limits.connections", "0 would refuse every connection");
        }
        if limits.preamble_timeout.0.is_zero() {
            errors.add("limits.preambleTimeout", "0 would refuse every connection");
        }
        if !PREAMBLE_BYTES.contains(&limits.preamble_bytes.0) {
            let (least, most) = (
                ByteSize(*PREAMBLE_BYTES.start()),
                ByteSize(*PREAMBLE_BYTES.end()),
            );
            errors.add(
                "limits.preambleBytes",
                format!("not between {least} and {most}"),
            );
        }
    }

    fn prefixes(&self, errors: &mut ConfigErrors) -> Vec<IpPrefix> {
        let parse = |(index, text): (usize, &String)| {
            text.parse()
                .map_err(|error| errors.add(format!("trustedProxies[{index}]"), error))
                .ok()
        };
        self.trusted_proxies
            .iter()
            .enumerate()
            .filter_map(parse)
            .collect()
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

/// Tells whether `name` is a token (RFC 9110 §5.6.2).
fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
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
        Config::from_text(text, Path::new("/etc/sni-proxy.yaml"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_documented_sample_is_what_the_defaults_are() {
        let origin = Path::new("/etc/rhizome/sni-proxy.yaml");
        let sample = Config::from_text(SAMPLE, origin).unwrap();
        let minimal = Config::from_text(
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
        assert_eq!(sample.effective(), minimal.effective());
        assert!(matches!(&sample.routes, RouteSource::File(file)
                if file == Path::new("/etc/rhizome/routes.yaml")));
        assert!(sample.trusts("10.1.2.3".parse().unwrap()));
        assert!(!sample.trusts("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let text = SAMPLE.replace("workers: 0", "wrokers: 0");
        let problem = problems(&text);
        assert!(problem.starts_with("/etc/sni-proxy.yaml:2:"), "{problem}");
        assert!(problem.contains("wrokers"), "{problem}");
    }

    #[test]
    fn every_mistake_is_named_at_once() {
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

    #[test]
    fn taking_a_proxy_header_needs_trusted_proxies() {
        let text = SAMPLE
            .replace("proxyProtocol: off", "proxyProtocol: optional")
            .replace("trustedProxies: [\"10.0.0.0/8\"]", "");
        assert!(
            problems(&text).contains("trustedProxies: must be given"),
            "{}",
            problems(&text)
        );
    }
}
