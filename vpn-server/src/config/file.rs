//! The configuration files: keys, their meaning and their defaults.
//!
//! What these comments say is also what the published schemas say. Checks nothing beyond types; that
//! is `checks`'.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use route::TcpOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{
    AccessLogSettings, AdminSettings, HumanDuration, ListenAddress, ProbesSettings, RelPath,
    TcpOverrides,
};
use tunnel::RouteId;
use tunnel::keys::PublicKey;
use tunnel::settings::{
    Buffers, Cidr, DeviceName, Environment, Networks, Offloads, Queue, TunnelAddress,
};

use ipnet::IpNet;

/// The configuration file of `vpn-server`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "File")]
pub struct Config {
    /// What this server calls itself toward clients; without it `POD_NAME`, else
    /// `vpn-seed-server`.
    #[serde(default)]
    pub(crate) name: String,
    /// The TUN device.
    #[serde(default)]
    pub(crate) device: DeviceName,
    /// Routing table of the routes into the shoot.
    #[serde(default = "default_table")]
    pub(crate) table: u32,
    /// Bytes of the largest packet in the tunnel.
    #[serde(default = "tunnel::settings::default_mtu")]
    pub(crate) mtu: u16,
    /// Number by which gateways know this server, from 1 to 1048575. Without it clients reach the
    /// UDP port directly or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) route_id: Option<u32>,
    /// Own addresses on the transfer networks, with prefix length, one per family. Without it from
    /// `VPN_NETWORK` and `POD_NAME`.
    #[serde(default)]
    pub(crate) addresses: Vec<TunnelAddress>,
    /// The shoot's networks; the proxy opens connections to them alone.
    #[serde(default)]
    pub(crate) networks: Networks,
    /// Keys of WireGuard.
    pub(crate) keys: Keys,
    /// Where tunnels come in.
    #[serde(default)]
    pub(crate) listen: Listen,
    /// Networks of the gateways that may send wrapped datagrams; without any the port for them is
    /// not opened.
    #[serde(default)]
    pub(crate) trusted_gateways: Vec<Cidr>,
    /// The proxy that API servers ask for connections.
    pub(crate) proxy: ProxyConfig,
    /// Bounds in number and time.
    #[serde(default)]
    pub(crate) limits: Limits,
    /// Connections through the tunnel that its filter knows at once; about 90 bytes each when
    /// they are there.
    #[serde(default = "default_flows")]
    pub(crate) flows: usize,
    /// What waits for a tunnel over TCP.
    #[serde(default)]
    pub(crate) queue: Queue,
    /// What the kernel does for packets in batches.
    #[serde(default)]
    pub(crate) offloads: Offloads,
    /// Bytes that the kernel may hold of datagrams; what it grants may be less.
    #[serde(default)]
    pub(crate) buffers: Buffers,
    /// Options of the tunnels' TCP sockets. Their defaults are `congestion` `auto` (bbr where the
    /// kernel has it), `notsentLowat` `64KiB`, `userTimeout` `10s` and no keepalive, since the
    /// tunnel sends probes of its own.
    #[serde(default)]
    pub(crate) tcp: TcpOverrides,
    /// Threads of the proxy.
    #[serde(default = "one")]
    pub(crate) workers: usize,
    /// Where `/healthz`, `/readyz` and `/metrics` answer.
    #[serde(default = "default_probes")]
    pub(crate) probes: ProbesSettings,
    /// Where operators look in: the probes' paths and `/`, `/config`, `/tunnels`, `/connections`,
    /// `/drain`, `/log`.
    #[serde(default)]
    pub(crate) admin: AdminSettings,
    /// How the process stops.
    #[serde(default)]
    pub(crate) drain: DrainConfig,
    /// The proxy's access log, written to standard output.
    #[serde(default)]
    pub(crate) access_log: AccessLogSettings,
    /// The file itself, which relative paths start from.
    #[serde(skip)]
    pub(crate) origin: PathBuf,
    /// What filled what the file leaves open.
    #[serde(skip)]
    pub(super) environment: Environment,
    /// `route_id`, checked.
    #[serde(skip)]
    pub(crate) route: Option<RouteId>,
    /// `addresses`, with the networks around them.
    #[serde(skip)]
    pub(crate) inner: Vec<IpNet>,
    /// `keys`, with paths from the working directory.
    #[serde(skip)]
    pub(crate) key_files: KeyFiles,
    /// `tcp`, as sockets take them.
    #[serde(skip)]
    pub(crate) tcp_options: TcpOptions,
}

/// Files of keys, as paths from the working directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFiles {
    pub(crate) private: Vec<PathBuf>,
    pub(crate) peers: PathBuf,
}

fn default_table() -> u32 {
    net_config::TunnelRoutes::DEFAULT_TABLE
}

fn default_flows() -> usize {
    tunnel::filter::Params::default().max_flows
}

fn default_probes() -> ProbesSettings {
    ProbesSettings::on_port(15_000)
}

fn one() -> usize {
    1
}

/// Keys of WireGuard; files are read again when they change, and on SIGHUP.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "KeysFile")]
pub(crate) struct Keys {
    /// Files of our private keys, the preferred one first; several during a rotation.
    pub(crate) private: Vec<RelPath>,
    /// The file of our clients.
    pub(crate) peers: RelPath,
}

/// Where tunnels come in; `null` opens no such port.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "ListenFile")]
pub(crate) struct Listen {
    /// Tunnels over TCP.
    pub(crate) tcp: Option<ListenAddress>,
    /// Datagrams of clients.
    pub(crate) udp: Option<ListenAddress>,
    /// Datagrams of clients that a gateway wrapped.
    pub(crate) wrapped: Option<ListenAddress>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            tcp: Some(ListenAddress::any(1194)),
            udp: Some(ListenAddress::any(51_820)),
            wrapped: Some(ListenAddress::any(51_821)),
        }
    }
}

/// The proxy that API servers ask for connections, by HTTP CONNECT over TLS.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "ProxyFile")]
pub(crate) struct ProxyConfig {
    /// Where it listens.
    #[serde(default = "default_proxy")]
    pub(crate) address: ListenAddress,
    /// CA bundle of client certificates, PEM; every client must show one.
    pub(crate) ca: RelPath,
    /// Our certificate with its chain, PEM.
    pub(crate) cert: RelPath,
    /// Its private key, PEM.
    pub(crate) key: RelPath,
    /// By when a destination must be resolved and connected.
    #[serde(default = "twenty_seconds")]
    pub(crate) connect_timeout: HumanDuration,
    /// Longest time without a byte either way; 0 for no limit.
    #[serde(default)]
    pub(crate) idle_timeout: HumanDuration,
    /// Connections at once; above it new ones are refused and counted. Lowered at start, with a
    /// warning, to what the descriptor limit carries.
    #[serde(default = "default_connections")]
    pub(crate) connections: u64,
    /// Connections of one client address, an IPv6 /64 being one; 0 for no limit.
    #[serde(default)]
    pub(crate) connections_per_source: u32,
    /// DNS servers in the shoot, asked through the tunnel. Without any, names are refused.
    #[serde(default)]
    pub(crate) resolvers: Vec<SocketAddr>,
    /// What is appended to names that end in `.svc`; empty for nothing.
    #[serde(default = "default_domain")]
    pub(crate) cluster_domain: String,
    /// Answers of DNS servers that are kept, at most as long as they say.
    #[serde(default = "default_cache")]
    pub(crate) cached_names: u64,
    /// Options of the TCP sockets to API servers and to destinations.
    #[serde(default)]
    pub(crate) tcp: TcpOverrides,
    /// `tcp`, as sockets take them.
    #[serde(skip)]
    pub(crate) tcp_options: TcpOptions,
}

fn default_proxy() -> ListenAddress {
    ListenAddress::any(9443)
}

fn twenty_seconds() -> HumanDuration {
    HumanDuration::from_secs(20)
}

fn default_connections() -> u64 {
    8192
}

fn default_domain() -> String {
    "cluster.local".to_owned()
}

fn default_cache() -> u64 {
    1024
}

/// Bounds in number and time.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "LimitsFile")]
pub(crate) struct Limits {
    /// TCP connections to the tunnel's port at once.
    pub(crate) links: usize,
    /// The same of one address; 0 for no limit, since a gateway's clients all have its address.
    pub(crate) links_per_source: usize,
    /// By when a TCP connection to the tunnel's port must have sent something.
    pub(crate) hello_timeout: HumanDuration,
    /// By when a client of the proxy must have finished its TLS handshake, and then its request.
    pub(crate) preamble_timeout: HumanDuration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            links: 256,
            links_per_source: 0,
            hello_timeout: HumanDuration::from_secs(5),
            preamble_timeout: HumanDuration::from_secs(10),
        }
    }
}

/// How the process stops.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "DrainFile")]
pub(crate) struct DrainConfig {
    /// From unready until no connection is accepted any more.
    pub(crate) delay: HumanDuration,
    /// From then until what still runs is cut.
    pub(crate) timeout: HumanDuration,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self {
            delay: HumanDuration(Duration::ZERO),
            timeout: HumanDuration::from_secs(30),
        }
    }
}

/// The file of a tunnel server's clients.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PeersFile {
    /// The clients; at most 16 pairs of a key of ours and a key of theirs.
    pub(crate) peers: Vec<PeerFile>,
}

/// One client.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PeerFile {
    /// Its name in logs and metrics.
    pub(crate) name: String,
    /// Its public keys in base64, as `wg pubkey` writes them; several during a rotation.
    #[schemars(with = "Vec<String>")]
    pub(crate) public_keys: Vec<PublicKey>,
    /// File of a key that is shared with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) preshared_key: Option<RelPath>,
    /// Its addresses on the transfer networks.
    #[schemars(with = "Vec<String>")]
    pub(crate) addresses: Vec<IpAddr>,
}
