//! The blocks that programs have in common: probes, admin, drain, access log.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ConfigErrors, EndpointAddr, HumanDuration, ListenAddress};

/// For `serde(default)`: a switch that is on where the file leaves it out.
pub const fn yes() -> bool {
    true
}

/// `probes: { address }`: where `/healthz`, `/readyz` and `/metrics` answer. Each binary has its own
/// default for the whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProbesSettings {
    /// Address of `/healthz`, `/readyz` and `/metrics`.
    pub address: ListenAddress,
}

impl ProbesSettings {
    /// Every address, on `port`.
    pub const fn on_port(port: u16) -> Self {
        Self {
            address: ListenAddress::any(port),
        }
    }

    /// The address.
    pub const fn address(&self) -> SocketAddr {
        self.address.0
    }
}

/// `admin: { address }`: where the admin endpoint answers. Off unless a binary says otherwise, for
/// it can drain the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AdminSettings {
    /// Address of the admin endpoint: `127.0.0.1:9901`, `unix:/path`, or empty for none.
    pub address: EndpointAddr,
}

impl AdminSettings {
    /// `127.0.0.1` on `port`.
    pub const fn on_loopback(port: u16) -> Self {
        let address = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port);
        Self {
            address: EndpointAddr::Tcp(address),
        }
    }
}

/// `drain: { delay, timeout }`: how the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DrainSettings {
    /// From unready until no connection is accepted any more: time for load balancers to notice.
    pub delay: HumanDuration,
    /// From then until what still runs is cut.
    pub timeout: HumanDuration,
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            delay: HumanDuration::from_secs(5),
            timeout: HumanDuration::from_secs(30),
        }
    }
}

/// `handover: { socket, timeout, afterwards }`: how a process that replaces this one on the same machine takes its
/// listeners and established connections over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HandoverSettings {
    /// The Unix socket at which both meet, in a directory of the process's user with mode 0700, which the host
    /// keeps.
    pub socket: PathBuf,
    /// How long the other process may make no progress before the handover is given up.
    #[serde(default = "ten_seconds")]
    pub timeout: HumanDuration,
    /// What the process does once it has handed everything over.
    #[serde(default)]
    pub afterwards: Afterwards,
}

const fn ten_seconds() -> HumanDuration {
    HumanDuration::from_secs(10)
}

/// What a process does once it has handed everything over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Afterwards {
    /// Stays until it is told to stop, since a kubelet would start it anew.
    #[default]
    Stay,
    /// Ends, for a service manager.
    Exit,
}

impl HandoverSettings {
    /// Checks what can be checked without the host.
    pub fn validate(&self, key: &str, errors: &mut ConfigErrors) {
        if !self.socket.is_absolute() || self.socket.file_name().is_none() {
            errors.add(
                format!("{key}.socket"),
                "must be the absolute path of a file",
            );
        }
        if self.timeout.0.is_zero() {
            errors.add(format!("{key}.timeout"), "0 would give up every handover");
        }
    }
}

/// The access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "AccessLogFile")]
pub struct AccessLogSettings {
    /// How it is written, if at all.
    pub format: AccessLogFormat,
}

/// How the access log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AccessLogFormat {
    /// One JSON object per connection.
    Json,
    /// Not at all.
    #[default]
    Off,
    /// One line of `key=value` per connection.
    Text,
}
