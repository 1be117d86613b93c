//! Addresses to listen on.

use std::{
    borrow::Cow,
    fmt,
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::{self, ParseError, shown};

/// An IP address with a port: `[::]:443`, `0.0.0.0:443`, or `:443`, which means `[::]:443` (both
/// families, as everywhere in the Kubernetes world). Port 0 lets the system pick one. Host names
/// are refused: what they resolve to may change, a bound socket does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(
    transparent,
    description = "An IP address with a port; `:443` is `[::]:443`. Port 0 picks one.",
    extend("examples" = ["[::]:443", "0.0.0.0:443", ":443"], "pattern" = LISTEN_PATTERN)
)]
pub struct ListenAddress(#[schemars(with = "String")] pub SocketAddr);

impl ListenAddress {
    /// The address.
    pub const fn get(self) -> SocketAddr {
        self.0
    }

    /// `[::]` with `port`.
    pub const fn any(port: u16) -> Self {
        Self(SocketAddr::new(
            std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            port,
        ))
    }
}

impl FromStr for ListenAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let every = text.strip_prefix(':').and_then(port).map(Self::any);
        every
            .or_else(|| text.parse().map(Self).ok())
            .ok_or_else(|| malformed(text))
    }
}

/// A port of digits only, without the sign that `u16::from_str` would take.
fn port(text: &str) -> Option<u16> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

fn malformed(text: &str) -> ParseError {
    let shown = shown(text);
    ParseError(format!(
        "`{shown}` is not an address to listen on; write it like `[::]:443` or `10.0.0.1:443`"
    ))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self(address)
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        text::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize(deserializer)
    }
}

/// Rough: what an editor can point out; the exact check is [`FromStr`].
const LISTEN_PATTERN: &str = "^(\\[[0-9A-Fa-f:.%]+\\]|[0-9]+(\\.[0-9]+){3}|):[0-9]{1,5}$";

/// Where probes or operators are answered: `127.0.0.1:9901`, `unix:/run/…`, or `""` for nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum EndpointAddr {
    /// Nowhere.
    #[default]
    None,
    /// On a TCP socket; port 0 picks one.
    Tcp(SocketAddr),
    /// On a socket in the file system, by absolute path.
    Unix(PathBuf),
}

impl FromStr for EndpointAddr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let Some(path) = text.strip_prefix("unix:") else {
            return if text.is_empty() {
                Ok(Self::None)
            } else {
                text.parse()
                    .map(|ListenAddress(address)| Self::Tcp(address))
            };
        };
        let shown = shown(text);
        if !path.starts_with('/') {
            // It would depend on where the process was started.
            let why = format!("`{shown}` needs an absolute path: `unix:/run/…`");
            return Err(ParseError(why));
        }
        if path.contains('\0') {
            return Err(malformed(text));
        }
        if path.len() > MAX_SOCKET_PATH {
            let why = format!("`{shown}…` is longer than the 107 bytes of a socket's path");
            return Err(ParseError(why));
        }
        Ok(Self::Unix(PathBuf::from(path)))
    }
}

/// `sun_path` of unix(7) without its closing zero.
const MAX_SOCKET_PATH: usize = 107;

impl fmt::Display for EndpointAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for EndpointAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        text::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for EndpointAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize(deserializer)
    }
}

impl JsonSchema for EndpointAddr {
    fn schema_name() -> Cow<'static, str> {
        "AdminAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An IP address with a port, `unix:/path` of a socket, or empty for none.",
            "examples": ["127.0.0.1:9901", "unix:/run/rhizome/admin.sock", ""],
            "type": "string",
            "anyOf": [
                { "const": "" },
                { "pattern": "^unix:/" },
                { "pattern": LISTEN_PATTERN }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_as_written() {
        for text in ["[::]:443", "0.0.0.0:443", "127.0.0.1:0", "[fd00::1]:8443"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
            assert_eq!(text.parse::<EndpointAddr>().unwrap().to_string(), text);
        }
        for text in ["", "unix:/run/rhizome/admin.sock"] {
            assert_eq!(text.parse::<EndpointAddr>().unwrap().to_string(), text);
        }
        let bare = ":443".parse::<ListenAddress>().unwrap();
        assert_eq!(
            (bare, &*bare.to_string()),
            (ListenAddress::any(443), "[::]:443")
        );
        for text in " : :+443 :65536 443 localhost:443 ::443 10.0.0.1".split(' ') {
            let refused = text.parse::<ListenAddress>();
            assert_eq!(refused, Err(malformed(text)), "{text}");
        }
    }

    #[test]
    fn a_socket_s_path_is_absolute_and_fits() {
        let refusal = |text: &str| text.parse::<EndpointAddr>().unwrap_err().to_string();
        assert!(refusal("unix:run/a").starts_with("`unix:run/a` needs an absolute path"));
        let fits = format!("unix:/{}", "a".repeat(106));
        assert!(matches!(
            fits.parse(),
            Ok(EndpointAddr::Unix(path)) if path.as_os_str().len() == 107
        ));
        assert!(refusal(&format!("{fits}a")).contains("is longer than the 107 bytes"));
        for text in [
            "unix:/a\0b",
            "unix:",
            "/run/x.sock",
            "localhost:80",
            "127.0.0.1",
        ] {
            let refused = text.parse::<EndpointAddr>().unwrap_err().to_string();
            assert!(refused.contains(text), "{refused}");
        }
    }
}
