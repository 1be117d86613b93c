//! The configuration file as it is written: keys, their defaults, and nothing checked yet.
//!
//! What the values must be, and what becomes of them, is `config`'s.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{
    AdminSettings, DrainSettings, HumanDuration, ListenAddress, ProbesSettings, TcpSettings,
};

/// The configuration file of `apiserver-proxy`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct File {
    /// Addresses pods reach the API server at; they are put on `interface` as well.
    pub(super) listen: Vec<ListenAddress>,
    /// The gateway, and how it is told where to go.
    pub(super) upstream: UpstreamFile,
    /// The device that holds the addresses.
    #[serde(default)]
    pub(super) interface: InterfaceFile,
    /// Rules that keep connection tracking away from the addresses.
    #[serde(default)]
    pub(super) no_track: NoTrackFile,
    /// Bounds.
    #[serde(default)]
    pub(super) limits: LimitsFile,
    /// Worker threads.
    #[serde(default = "one")]
    pub(super) workers: usize,
    /// Whether bulk passes by splice(2), within the kernel; `false` copies every byte.
    #[serde(default = "yes")]
    pub(super) splice: bool,
    /// Options of every TCP socket.
    #[serde(default)]
    pub(super) tcp: TcpSettings,
    /// How the process stops.
    #[serde(default)]
    pub(super) drain: DrainSettings,
    /// Where `/healthz`, `/readyz` (also `/ready`) and `/metrics` answer.
    #[serde(default = "default_probes")]
    pub(super) probes: ProbesSettings,
    /// Where operators look in; off, because the host network is everybody's.
    #[serde(default)]
    pub(super) admin: AdminSettings,
    /// The access log, written to standard output.
    #[serde(default)]
    pub(super) access_log: AccessLogFile,
    /// A DNS server that answers one name itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dns: Option<DnsFile>,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

fn default_probes() -> ProbesSettings {
    ProbesSettings::on_port(16910)
}

/// The gateway, and how it is told where to go.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct UpstreamFile {
    /// Host name or IP address, with port.
    pub(super) address: String,
    /// What the gateway is sent first.
    pub(super) mode: Mode,
    /// `http-connect`: the destination header's value. `proxy-protocol`: IP:PORT for the header
    /// instead of the address the client connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) destination: Option<String>,
    /// Version of the PROXY protocol, 1 or 2.
    #[serde(default = "two")]
    pub(super) version: u8,
    /// By when the gateway must be connected and, asked by CONNECT, have answered.
    #[serde(default = "five_seconds")]
    pub(super) connect_timeout: HumanDuration,
    /// How the gateway's name is resolved.
    #[serde(default)]
    pub(super) dns: UpstreamDnsFile,
}

fn two() -> u8 {
    2
}

fn five_seconds() -> HumanDuration {
    HumanDuration(Duration::from_secs(5))
}

/// What the gateway is sent first.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    /// An HTTP CONNECT request with a header that names the destination.
    HttpConnect,
    /// A PROXY header with the destination address.
    ProxyProtocol,
}

/// How the gateway's name is resolved.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct UpstreamDnsFile {
    /// Which addresses are used.
    pub(super) family: FamilyFile,
}

/// Which addresses of a name are used.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FamilyFile {
    /// Both families; the first that answers wins.
    #[default]
    Auto,
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
}

/// The device that holds the addresses.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct InterfaceFile {
    /// Its name, whatever its kind.
    pub(super) name: String,
    /// Kind to create when there is none of that name.
    pub(super) kind: KindFile,
    /// Create it, and keep the addresses on it.
    pub(super) manage: bool,
    /// Take everything back at exit.
    pub(super) cleanup: bool,
}

impl Default for InterfaceFile {
    fn default() -> Self {
        let name = "apiserver-proxy".to_owned();
        Self {
            name,
            kind: KindFile::Auto,
            manage: true,
            cleanup: false,
        }
    }
}

/// Kinds of devices.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KindFile {
    /// The first of dummy, ifb and bridge that this kernel has.
    #[default]
    Auto,
    /// A bridge without ports.
    Bridge,
    /// A dummy device.
    Dummy,
    /// An intermediate functional block.
    Ifb,
    /// The loopback device.
    Lo,
}

/// Whether NOTRACK rules keep connection tracking away from the addresses. Replies of connections
/// that are translated to an address (kube-proxy does that from the ClusterIP of the Service
/// `kubernetes`) must stay tracked, so there are never rules beside destination NAT.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NoTrackFile {
    /// Where connection tracking is active, the kernel can, and there is no destination NAT.
    Auto,
    /// Never.
    #[default]
    Off,
    /// Always; without them, and beside destination NAT, the proxy does not start.
    On,
}

/// Bounds.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct LimitsFile {
    /// Connections at once; above it new ones are refused and counted. Lowered at start, with a
    /// warning, to what the descriptor limit carries.
    pub(super) connections: u64,
}

impl Default for LimitsFile {
    fn default() -> Self {
        Self {
            connections: 10_000,
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

/// A DNS server that answers one name itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct DnsFile {
    /// Where it answers, by UDP and TCP; the address is put on `interface` as well.
    pub(super) address: ListenAddress,
    /// The name it answers itself.
    pub(super) zone: String,
    /// Addresses of that name.
    pub(super) answer: Vec<IpAddr>,
    /// Servers that are asked everything else, in this order.
    #[serde(default)]
    pub(super) forward: Vec<SocketAddr>,
}
