//! The configuration file as it is written: keys, their meaning and their defaults.
//!
//! These comments are also the descriptions in the published schema. Checks nothing beyond types;
//! what values must be, and what becomes of them, is `config`'s.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serve::Family;
use settings::{AdminSettings, HumanDuration, ProbesSettings, RelPath, TcpOverrides};
use tunnel::keys::PublicKey;
use tunnel::path::{self, Mode};
use tunnel::settings::{Buffers, DeviceName, Networks, Offloads, Queue, TunnelAddress};

/// The configuration file of `vpn-client`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct File {
    /// This client's name toward servers; without it `POD_NAME`, else `vpn-shoot`.
    #[serde(default)]
    pub(crate) name: String,
    /// The TUN device.
    #[serde(default)]
    pub(crate) device: DeviceName,
    /// MTU of the tunnel in bytes; less is used where the path carries less.
    #[serde(default = "tunnel::settings::default_mtu")]
    pub(crate) mtu: u16,
    /// Own addresses on the transfer networks, with prefix length, at most one of each family.
    /// Without any from `VPN_NETWORK`, and with `IS_HA` from the number `POD_NAME` ends in.
    #[serde(default)]
    pub(crate) addresses: Vec<TunnelAddress>,
    /// The gateway in front of the servers that name none of their own.
    #[serde(default)]
    pub(crate) endpoint: EndpointFile,
    /// The servers; a tunnel is held to each.
    pub(crate) servers: Vec<ServerFile>,
    /// Own keys of WireGuard.
    pub(crate) keys: KeysFile,
    /// The shoot's networks: what packets from the tunnel may be for.
    #[serde(default)]
    pub(crate) networks: Networks,
    /// Whether packets from the tunnel leave with this pod's address as their source. Without it
    /// the shoot must route the transfer networks back to this pod.
    #[serde(default = "settings::yes")]
    pub(crate) masquerade: bool,
    /// How the path to each server is found and probed.
    #[serde(default)]
    pub(crate) path: PathFile,
    /// The send queue of tunnels over TCP.
    #[serde(default)]
    pub(crate) queue: Queue,
    /// Kernel offloads for packets in batches.
    #[serde(default)]
    pub(crate) offloads: Offloads,
    /// Options of the tunnels' TCP sockets. Defaults that differ from other programs':
    /// `congestion` `auto` (bbr where the kernel has it), `notsentLowat` `64KiB`, `userTimeout`
    /// `10s`, and no `keepalive`: probes go through the tunnel.
    #[serde(default)]
    pub(crate) tcp: TcpOverrides,
    /// Bytes that the kernel may hold of datagrams; what it grants may be less.
    #[serde(default)]
    pub(crate) buffers: Buffers,
    /// Where `/healthz`, `/readyz` and `/metrics` answer.
    #[serde(default = "default_probes")]
    pub(crate) probes: ProbesSettings,
    /// The admin address: the probes' paths and `/`, `/status`, `/config`, `/tunnels`,
    /// `/drain`, `/log`.
    #[serde(default)]
    pub(crate) admin: AdminSettings,
    /// How the process stops.
    #[serde(default)]
    pub(crate) drain: DrainFile,
}

fn default_probes() -> ProbesSettings {
    ProbesSettings::on_port(8080)
}

/// The gateway in front of the servers.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct EndpointFile {
    /// Host name or IP address, without a port; without it `ENDPOINT`.
    pub(crate) address: String,
    /// Port for HTTP CONNECT; without it `OPENVPN_PORT`, else 8132.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tcp_port: Option<u16>,
    /// Port for datagrams.
    pub(crate) udp_port: u16,
    /// Header of the CONNECT request that carries a server's `value`; without it
    /// `REVERSED_VPN_HEADER_KEY`, else `Reversed-VPN`.
    pub(crate) header: String,
    /// The transport of datagrams.
    #[serde(with = "TransportFile")]
    pub(crate) transport: Mode,
    /// The address family used of the name.
    #[serde(with = "FamilyFile")]
    pub(crate) family: Family,
    /// By when the gateway must be resolved, connected, and have answered a CONNECT.
    pub(crate) connect_timeout: HumanDuration,
}

impl Default for EndpointFile {
    fn default() -> Self {
        Self {
            address: String::new(),
            tcp_port: None,
            udp_port: 51_820,
            header: String::new(),
            transport: Mode::Auto,
            family: Family::default(),
            connect_timeout: HumanDuration::from_secs(5),
        }
    }
}

/// The transport of datagrams.
#[derive(Deserialize, JsonSchema, Serialize)]
#[serde(remote = "Mode", rename_all = "kebab-case")]
#[schemars(rename = "TransportFile")]
enum TransportFile {
    /// Both are tried together; UDP is used where it works.
    Auto,
    /// TCP alone, through HTTP CONNECT.
    Tcp,
    /// UDP alone.
    Udp,
}

/// The address family used of a name.
#[derive(Deserialize, JsonSchema, Serialize)]
#[serde(remote = "Family", rename_all = "kebab-case")]
#[schemars(rename = "FamilyFile")]
enum FamilyFile {
    /// Both families; the first that answers wins.
    Auto,
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
}

/// One server.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ServerFile {
    /// Its name in logs and metrics.
    pub(crate) name: String,
    /// Its public keys in base64, as `wg pubkey` writes them; several during a rotation.
    #[schemars(with = "Vec<String>")]
    pub(crate) public_keys: Vec<PublicKey>,
    /// File of a key that is shared with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) preshared_key: Option<RelPath>,
    /// Number by which gateways know it, from 1 to 1048575. Without it a gateway must find it by
    /// its public key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) route_id: Option<u32>,
    /// The value of the CONNECT request's header; of a single server without it
    /// `REVERSED_VPN_HEADER`.
    #[serde(default)]
    pub(crate) value: String,
    /// Its addresses on the transfer networks. Without any from `VPN_NETWORK` and the number its
    /// name ends in, else its place in the list.
    #[serde(default)]
    pub(crate) addresses: Vec<std::net::IpAddr>,
    /// The gateway in front of this server, where servers have different ones; keys left out are
    /// those of the common `endpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<ServerEndpointFile>,
}

/// The gateway in front of one server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct ServerEndpointFile {
    /// Host name or IP address, without a port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) address: String,
    /// Port for HTTP CONNECT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tcp_port: Option<u16>,
    /// Port for datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) udp_port: Option<u16>,
}

/// Own keys of WireGuard; files are read again when they change, and on SIGHUP.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct KeysFile {
    /// File of the private key, as `wg genkey` writes it; during a rotation a list of files, the
    /// preferred one first.
    pub(crate) private: PathsFile,
}

/// One file, or a list of files.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum PathsFile {
    /// One.
    One(PathBuf),
    /// Several.
    Several(Vec<PathBuf>),
}

impl PathsFile {
    pub(crate) fn list(&self) -> Vec<RelPath> {
        let paths = match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        };
        paths.iter().cloned().map(RelPath).collect()
    }
}

/// How the path to each server is found and probed.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct PathFile {
    /// Between probes of the link in use.
    pub(crate) interval: HumanDuration,
    /// Between probes of the other link, which also keep a NAT's entry for it.
    pub(crate) standby: HumanDuration,
    /// Between probes after one was missed.
    pub(crate) fast: HumanDuration,
    /// Missed probes in a row after which a link counts as dead.
    pub(crate) misses: u32,
    /// The shortest time to wait for an answer; it follows the round trip.
    pub(crate) timeout_least: HumanDuration,
    /// The longest time to wait for an answer, unless the round trip itself is longer.
    pub(crate) timeout_most: HumanDuration,
    /// By when the server itself must have answered.
    pub(crate) dial_timeout: HumanDuration,
    /// The first pause after a failed attempt; it is doubled for each further one.
    pub(crate) retry_first: HumanDuration,
    /// The longest pause between attempts by TCP.
    pub(crate) retry_tcp: HumanDuration,
    /// The longest pause between attempts by UDP: how late an opened firewall is noticed.
    pub(crate) retry_udp: HumanDuration,
}

impl Default for PathFile {
    fn default() -> Self {
        let params = path::Params::default();
        Self {
            interval: HumanDuration(params.probes.interval),
            standby: HumanDuration(params.probes.standby),
            fast: HumanDuration(params.probes.fast),
            misses: params.probes.misses,
            timeout_least: HumanDuration(params.probes.min_timeout),
            timeout_most: HumanDuration(params.probes.max_timeout),
            dial_timeout: HumanDuration(params.dial_timeout),
            retry_first: HumanDuration(params.retry_first),
            retry_tcp: HumanDuration(params.retry_tcp),
            retry_udp: HumanDuration(params.retry_udp),
        }
    }
}

/// How the process stops.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct DrainFile {
    /// How long the process goes on in any case; servers are asked at once to give new connections
    /// to others.
    pub(crate) delay: HumanDuration,
    /// How long then the connections that are left may take to end.
    pub(crate) timeout: HumanDuration,
}

impl Default for DrainFile {
    fn default() -> Self {
        Self {
            delay: HumanDuration::default(),
            timeout: HumanDuration::from_secs(30),
        }
    }
}
