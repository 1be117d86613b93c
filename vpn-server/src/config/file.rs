//! The configuration files as they are written: keys, their meaning and their defaults.
//!
//! What these comments say is also what the published schemas say. Checks nothing beyond types;
//! validation is one module up.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{
    AdminSettings, ByteSize, HumanDuration, ListenAddress, ProbesSettings, RelPath, TcpOverrides,
};
use tunnel::settings::{Cidr, DeviceName, Networks, Offloads, Queue, TunnelAddress};

/// The configuration file of `vpn-server`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct File {
    /// What this server calls itself toward clients; without it `POD_NAME`, else
    /// `vpn-seed-server`.
    #[serde(default)]
    pub(super) name: String,
    /// The TUN device.
    #[serde(default)]
    pub(super) device: DeviceName,
    /// Routing table of the routes into the shoot.
    #[serde(default = "default_table")]
    pub(super) table: u32,
    /// Bytes of the largest packet in the tunnel.
    #[serde(default = "default_mtu")]
    pub(super) mtu: u16,
    /// Number by which gateways know this server, from 1 to 1048575. Without it clients reach the
    /// UDP port directly or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) route_id: Option<u32>,
    /// Own addresses on the transfer networks, with prefix length, one per family. Without it from
    /// `VPN_NETWORK` and `POD_NAME`.
    #[serde(default)]
    pub(super) addresses: Vec<TunnelAddress>,
    /// The shoot's networks; the proxy opens connections to them alone.
    #[serde(default)]
    pub(super) networks: Networks,
    /// Keys of WireGuard.
    pub(super) keys: KeysFile,
    /// Where tunnels come in.
    #[serde(default)]
    pub(super) listen: ListenFile,
    /// Networks of the gateways that may send wrapped datagrams; without any the port for them is
    /// not opened.
    #[serde(default)]
    pub(super) trusted_gateways: Vec<Cidr>,
    /// The proxy that API servers ask for connections.
    pub(super) proxy: ProxyFile,
    /// Bounds in number and time.
    #[serde(default)]
    pub(super) limits: LimitsFile,
    /// Connections through the tunnel that its filter knows at once; about 90 bytes each when
    /// they are there.
    #[serde(default = "default_flows")]
    pub(super) flows: usize,
    /// What waits for a tunnel over TCP.
    #[serde(default)]
    pub(super) queue: Queue,
    /// What the kernel does for packets in batches.
    #[serde(default)]
    pub(super) offloads: Offloads,
    /// Bytes that the kernel may hold of datagrams; what it grants may be less.
    #[serde(default)]
    pub(super) buffers: BuffersFile,
    /// Options of the tunnels' TCP sockets. Their defaults are `congestion` `auto` (bbr where the
    /// kernel has it), `notsentLowat` `64KiB`, `userTimeout` `10s` and no keepalive, since the
    /// tunnel sends probes of its own.
    #[serde(default)]
    pub(super) tcp: TcpOverrides,
    /// Threads of the proxy.
    #[serde(default = "one")]
    pub(super) workers: usize,
    /// Where `/healthz`, `/readyz` and `/metrics` answer.
    #[serde(default = "default_probes")]
    pub(super) probes: ProbesSettings,
    /// Where operators look in: the probes' paths and `/`, `/config`, `/tunnels`, `/connections`,
    /// `/drain`, `/log`.
    #[serde(default)]
    pub(super) admin: AdminSettings,
    /// How the process stops.
    #[serde(default)]
    pub(super) drain: DrainFile,
    /// The proxy's access log, written to standard output.
    #[serde(default)]
    pub(super) access_log: AccessLogFile,
}

fn default_table() -> u32 {
    net_config::TunnelRoutes::DEFAULT_TABLE
}

fn default_mtu() -> u16 {
    1420
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
pub(super) struct KeysFile {
    /// Files of our private keys, the preferred one first; several during a rotation.
    pub(super) private: Vec<RelPath>,
    /// The file of our clients.
    pub(super) peers: RelPath,
}

/// Where tunnels come in; `null` opens no such port.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct ListenFile {
    /// Tunnels over TCP.
    pub(crate) tcp: Option<ListenAddress>,
    /// Datagrams of clients.
    pub(crate) udp: Option<ListenAddress>,
    /// Datagrams of clients that a gateway wrapped.
    pub(crate) wrapped: Option<ListenAddress>,
}

impl Default for ListenFile {
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
pub(super) struct ProxyFile {
    /// Where it listens.
    #[serde(default = "default_proxy")]
    pub(super) address: ListenAddress,
    /// CA bundle of client certificates, PEM; every client must show one.
    pub(super) ca: RelPath,
    /// Our certificate with its chain, PEM.
    pub(super) cert: RelPath,
    /// Its private key, PEM.
    pub(super) key: RelPath,
    /// By when a destination must be resolved and connected.
    #[serde(default = "twenty_seconds")]
    pub(super) connect_timeout: HumanDuration,
    /// Longest time without a byte either way; 0 for no limit.
    #[serde(default)]
    pub(super) idle_timeout: HumanDuration,
    /// Connections at once; above it new ones are refused and counted. Lowered at start, with a
    /// warning, to what the descriptor limit carries.
    #[serde(default = "default_connections")]
    pub(super) connections: u64,
    /// Connections of one client address, an IPv6 /64 being one; 0 for no limit.
    #[serde(default)]
    pub(super) connections_per_source: u32,
    /// DNS servers in the shoot, asked through the tunnel. Without any, names are refused.
    #[serde(default)]
    pub(super) resolvers: Vec<SocketAddr>,
    /// What is appended to names that end in `.svc`; empty for nothing.
    #[serde(default = "default_domain")]
    pub(super) cluster_domain: String,
    /// Answers of DNS servers that are kept, at most as long as they say.
    #[serde(default = "default_cache")]
    pub(super) cached_names: u64,
    /// Options of the TCP sockets to API servers and to destinations.
    #[serde(default)]
    pub(super) tcp: TcpOverrides,
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
pub(crate) struct LimitsFile {
    /// TCP connections to the tunnel's port at once.
    pub(crate) links: usize,
    /// The same of one address; 0 for no limit, since a gateway's clients all have its address.
    pub(crate) links_per_source: usize,
    /// By when a TCP connection to the tunnel's port must have sent something.
    pub(crate) hello_timeout: HumanDuration,
    /// By when a client of the proxy must have finished its TLS handshake, and then its request.
    pub(crate) preamble_timeout: HumanDuration,
}

impl Default for LimitsFile {
    fn default() -> Self {
        Self {
            links: 256,
            links_per_source: 0,
            hello_timeout: HumanDuration::from_secs(5),
            preamble_timeout: HumanDuration::from_secs(10),
        }
    }
}

/// Bytes that the kernel may hold of datagrams, for each of the two ports.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct BuffersFile {
    /// Received and not yet read.
    pub(super) receive: ByteSize,
    /// Sent and still in this host.
    pub(super) send: ByteSize,
}

impl Default for BuffersFile {
    fn default() -> Self {
        Self {
            receive: ByteSize(4 << 20),
            send: ByteSize(4 << 20),
        }
    }
}

/// How the process stops.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct DrainFile {
    /// From unready until no connection is accepted any more.
    pub(super) delay: HumanDuration,
    /// From then until what still runs is cut.
    pub(super) timeout: HumanDuration,
}

impl Default for DrainFile {
    fn default() -> Self {
        Self {
            delay: HumanDuration(Duration::ZERO),
            timeout: HumanDuration::from_secs(30),
        }
    }
}

/// The access log.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct AccessLogFile {
    /// How it is written, if at all.
    pub(super) format: AccessLogFormat,
}

/// How the access log is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
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
    pub(crate) public_keys: Vec<String>,
    /// File of a key that is shared with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) preshared_key: Option<RelPath>,
    /// Its addresses on the transfer networks.
    pub(crate) addresses: Vec<String>,
}
