//! The configuration file as it is written: keys, their meaning and their defaults.
//!
//! What these comments say is also what the published schema says. Checks nothing beyond types;
//! validation is one room up.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{
    AdminSettings, ByteSize, DrainSettings, HumanDuration, ListenAddress, ProbesSettings, RelPath,
    TcpOverrides, TcpSettings,
};

/// The configuration file of `sni-proxy`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct File {
    /// Worker threads; 0 means one for each CPU.
    #[serde(default)]
    pub(super) workers: usize,
    /// Whether bulk passes by splice(2), within the kernel; `false` copies every byte.
    #[serde(default = "yes")]
    pub(super) splice: bool,
    /// Where `/healthz`, `/readyz` and `/metrics` answer.
    #[serde(default = "default_probes")]
    pub(super) probes: ProbesSettings,
    /// Where operators look in: the probes' paths and `/`, `/config`, `/snapshot`, `/connections`,
    /// `/drain`, `/log`.
    #[serde(default = "default_admin")]
    pub(super) admin: AdminSettings,
    /// The sockets that take connections.
    pub(super) listeners: Vec<ListenerFile>,
    /// Bounds in number, size and time.
    #[serde(default)]
    pub(super) limits: LimitsFile,
    /// Options of every TCP socket; a listener or a cluster may override them.
    #[serde(default)]
    pub(super) tcp: TcpSettings,
    /// How the process stops.
    #[serde(default)]
    pub(super) drain: DrainSettings,
    /// Networks whose peers may send a load balancer's PROXY header; must be given when a listener
    /// takes one.
    #[serde(default)]
    pub(super) trusted_proxies: Vec<String>,
    /// How CONNECT requests are understood.
    #[serde(default)]
    pub(super) connect: ConnectFile,
    /// Bounds of the listeners that take WireGuard.
    #[serde(default)]
    pub(super) wireguard: WireGuardLimitsFile,
    /// Where routes come from.
    pub(super) routing: RoutingFile,
    /// The access log, written to standard output.
    #[serde(default)]
    pub(super) access_log: AccessLogFile,
}

fn yes() -> bool {
    true
}

fn default_probes() -> ProbesSettings {
    ProbesSettings::on_port(15021)
}

fn default_admin() -> AdminSettings {
    AdminSettings::on_loopback(9901)
}

/// One listening socket.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ListenerFile {
    /// Name in logs and metrics.
    pub(super) name: String,
    /// Address and port; port 0 picks one, which the log names.
    pub(super) address: ListenAddress,
    /// What connections of this listener begin with.
    pub(super) protocol: Protocol,
    /// Whether a load balancer in front sends a PROXY header.
    #[serde(default)]
    pub(super) proxy_protocol: ProxyProtocol,
    /// Overrides of the TCP options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tcp: Option<TcpOverrides>,
    /// Overrides of the TCP options of sockets that are dialed for this listener's connections;
    /// they go before those of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) upstream_tcp: Option<TcpOverrides>,
}

/// What the connections of a listener begin with.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// An HTTP CONNECT request, routed by a header.
    Connect,
    /// A node proxy's PROXY header, routed by its destination, or an HTTP CONNECT request.
    ProxyOrConnect,
    /// A TLS ClientHello, routed by its server name.
    Tls,
    /// WireGuard's datagrams, on UDP.
    #[serde(rename = "wireguard")]
    WireGuard,
}

impl Protocol {
    /// Returns the protocol as the configuration names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ProxyOrConnect => "proxy-or-connect",
            Self::Tls => "tls",
            Self::WireGuard => "wireguard",
        }
    }
}

/// Whether a load balancer's PROXY header comes first.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyProtocol {
    /// Never.
    #[default]
    Off,
    /// From trusted peers it may.
    Optional,
    /// Always; other peers are refused.
    Required,
}

/// Bounds in number, size and time.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct LimitsFile {
    /// Connections of the process; above it new ones are refused and counted. Lowered at start,
    /// with a warning, to what the descriptor limit carries.
    pub(super) connections: u64,
    /// Connections of one client, an IPv4 address or an IPv6 /64; 0 for no limit.
    pub(super) connections_per_source: u32,
    /// By when the preamble must be complete.
    pub(super) preamble_timeout: HumanDuration,
    /// Bytes each part of a preamble may have.
    pub(super) preamble_bytes: ByteSize,
    /// Longest time without a byte either way; 0 for no limit.
    pub(super) idle_timeout: HumanDuration,
    /// Age at which a connection is cut; 0 for no limit.
    pub(super) max_connection_age: HumanDuration,
}

impl Default for LimitsFile {
    fn default() -> Self {
        Self {
            connections: 750_000,
            connections_per_source: 0,
            preamble_timeout: HumanDuration(Duration::from_secs(10)),
            preamble_bytes: ByteSize(64 * 1024),
            idle_timeout: HumanDuration(Duration::ZERO),
            max_connection_age: HumanDuration(Duration::ZERO),
        }
    }
}

/// How CONNECT requests are understood.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ConnectFile {
    /// Headers that name the destination; the target in the request line is ignored.
    pub(super) headers: Vec<String>,
    /// What any other request gets.
    pub(super) otherwise: Otherwise,
}

impl Default for ConnectFile {
    fn default() -> Self {
        Self {
            headers: vec![
                "X-Gardener-Destination".to_owned(),
                "Reversed-VPN".to_owned(),
            ],
            otherwise: Otherwise::Redirect,
        }
    }
}

/// Bounds of the listeners that take WireGuard.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct WireGuardLimitsFile {
    /// Flows of the process: clients by their address, counted for each server they use. Above it
    /// the oldest that no server has answered with data goes, else one that has been silent long.
    pub(super) flows: u32,
    /// Silence of a client after which its flow ends, and nothing is sent to it any more.
    pub(super) flow_idle: HumanDuration,
    /// Datagrams per second, of one network (IPv4 /24, IPv6 /56) and worker, that belong to no
    /// proven flow; handshakes whose sender knows the server's key are counted apart, as many.
    pub(super) source_rate: u32,
    /// How many of those may come at once.
    pub(super) source_burst: u32,
    /// Networks that are told apart, per worker; beyond that they share.
    pub(super) source_slots: u32,
    /// Public keys tried per second, for handshakes that name no route.
    pub(super) scan_rate: u32,
    /// How many of those may be tried at once.
    pub(super) scan_burst: u32,
    /// Bytes that may wait to be received, for each socket.
    pub(super) receive_buffer: ByteSize,
    /// Bytes that may wait to be sent, for each socket.
    pub(super) send_buffer: ByteSize,
}

impl Default for WireGuardLimitsFile {
    fn default() -> Self {
        Self {
            flows: 65_536,
            flow_idle: HumanDuration(Duration::from_secs(180)),
            source_rate: 500,
            source_burst: 1000,
            source_slots: 8192,
            scan_rate: 200_000,
            scan_burst: 100_000,
            receive_buffer: ByteSize(4 * 1024 * 1024),
            send_buffer: ByteSize(4 * 1024 * 1024),
        }
    }
}

/// What a request that is no CONNECT to a destination gets.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Otherwise {
    /// The connection is closed.
    Close,
    /// A permanent redirect to https on the same host.
    Redirect,
}

/// Where routes come from; exactly one of `file` and `xds`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RoutingFile {
    /// The routing file, read again when it changes.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    pub(super) file: RelPath,
    /// The server that is asked for routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) xds: Option<XdsFile>,
}

/// The server that is asked for routes, over xDS.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct XdsFile {
    /// Its URL: `https://host:port`, or `http://host:port` without TLS.
    pub(super) server: String,
    /// CA that its certificate is signed by; needed for https.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    pub(super) ca: RelPath,
    /// Our certificate, where the server asks for one.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    pub(super) cert: RelPath,
    /// Its key.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    pub(super) key: RelPath,
    /// Name of this gateway's pod (`node.id`).
    pub(super) node: String,
    /// Name of the gateway whose routes are wanted (`node.cluster`).
    #[serde(default = "default_gateway")]
    pub(super) gateway: String,
    /// Directory of the last good routes, which are used until the server answers; none when
    /// absent.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    pub(super) cache: RelPath,
}

fn default_gateway() -> String {
    "default".to_owned()
}

/// The access log.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct AccessLogFile {
    /// How it is written, if at all.
    pub(super) format: AccessLogFormat,
}

/// How the access log is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AccessLogFormat {
    /// One JSON object per connection.
    Json,
    /// Not at all.
    #[default]
    Off,
    /// One line of `key=value` per connection.
    Text,
}
