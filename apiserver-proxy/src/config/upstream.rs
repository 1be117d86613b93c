//! The gateway: where it is, and how it is told where a connection goes.

use std::net::SocketAddr;
use std::time::Duration;

use preamble::Version;
use route::EndpointAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serve::Family;
use settings::{ConfigErrors, HumanDuration};

/// The gateway, and how it is told where to go.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "UpstreamFile")]
pub(crate) struct Upstream {
    /// Host name or IP address, with port.
    #[serde(with = "settings::text")]
    #[schemars(with = "String")]
    pub(crate) address: EndpointAddress,
    /// What the gateway is sent first.
    mode: Mode,
    /// `http-connect`: the destination header's value. `proxy-protocol`: IP:PORT for the header
    /// instead of the address the client connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    destination: Option<String>,
    /// Version of the PROXY protocol, 1 or 2.
    #[serde(default = "two")]
    version: u8,
    /// By when the gateway must be connected and, asked by CONNECT, have answered.
    #[serde(default = "five_seconds")]
    pub(crate) connect_timeout: HumanDuration,
    /// How the gateway's name is resolved.
    #[serde(default)]
    dns: UpstreamDns,
    /// What `mode`, `destination` and `version` come to.
    #[serde(skip)]
    pub(crate) announce: Announce,
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
enum Mode {
    /// An HTTP CONNECT request with a header that names the destination.
    HttpConnect,
    /// A PROXY header with the destination address.
    ProxyProtocol,
}

/// How the gateway's name is resolved.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "UpstreamDnsFile")]
struct UpstreamDns {
    /// Which addresses are used.
    #[serde(with = "FamilyWord")]
    family: Family,
}

/// Which addresses of a name are used.
#[derive(Deserialize, JsonSchema, Serialize)]
#[serde(remote = "Family", rename_all = "kebab-case")]
#[schemars(rename = "FamilyFile")]
enum FamilyWord {
    /// Both families; the first that answers wins.
    Auto,
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
}

/// What the gateway is sent first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Announce {
    /// A CONNECT request whose header carries this value.
    Connect { destination: String },
    /// A PROXY header, toward the given destination or the one the client connected to.
    Proxy {
        version: Version,
        destination: Option<SocketAddr>,
    },
}

impl Default for Announce {
    fn default() -> Self {
        Self::Proxy {
            version: Version::V2,
            destination: None,
        }
    }
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

impl Upstream {
    /// Returns which addresses of the gateway's name are used.
    pub(crate) fn family(&self) -> Family {
        self.dns.family
    }

    pub(super) fn validate(&mut self, listen: &[SocketAddr], errors: &mut ConfigErrors) {
        if self.connect_timeout.0.is_zero() {
            errors.add("upstream.connectTimeout", "0 would fail every attempt");
        }
        if let EndpointAddress::Ip(address) = &self.address
            && listen.contains(address)
        {
            errors.add("upstream.address", "the proxy itself listens there");
        }
        let announce = match self.mode {
            Mode::HttpConnect => self.connect(errors),
            Mode::ProxyProtocol => self.proxy(errors),
        };
        self.announce = announce.unwrap_or_default();
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
