//! Networks, inner addresses and names of devices as they are written.
//!
//! `10.250.0.0/16` is a [`Cidr`], `192.168.123.1/24` an address of ours on a network: a
//! [`TunnelAddress`]. Touches no device.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tunnel_proto::allowed::parse_network;

/// A network, such as `10.250.0.0/16`: no bits behind its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(pub IpNet);

impl Cidr {
    /// Reads networks with commas between, as environment variables carry them; blanks around them
    /// and empty ones do not matter.
    ///
    /// # Errors
    /// [`AddressError`], for the first that is none.
    pub fn list(text: &str) -> Result<Vec<Self>, AddressError> {
        let parts = text.split(',').map(str::trim);
        parts
            .filter(|part| !part.is_empty())
            .map(str::parse)
            .collect()
    }

    /// Returns why no packet can be for such a network.
    pub(super) fn problem(self) -> Option<&'static str> {
        let first = self.0.addr();
        if self.0.prefix_len() == 0 {
            return Some("would be every address, and the tunnel's own packets go in circles");
        }
        reserved(first)
    }
}

impl FromStr for Cidr {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let read = parse_network(text).map(Self);
        read.map_err(|why| AddressError(format!("`{}` is not a network: {why}", shown(text))))
    }
}

/// An inner address with the prefix length of its transfer network, such as `192.168.123.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelAddress(IpNet);

impl TunnelAddress {
    /// Returns the pair.
    ///
    /// # Errors
    /// [`AddressError`] when no host in a tunnel can have it.
    pub fn new(address: IpAddr, prefix_len: u8) -> Result<Self, AddressError> {
        let mapped = address != address.to_canonical();
        let why = reserved(address)
            .or_else(|| mapped.then_some("is IPv4 written as IPv6; write it as IPv4"));
        if let Some(why) = why {
            return Err(AddressError(format!("{address} {why}")));
        }
        match IpNet::new(address, prefix_len) {
            Ok(network) if prefix_len > 0 => Ok(Self(network)),
            _ => {
                let width = if address.is_ipv4() { 32 } else { 128 };
                let why = format!("the prefix length of {address} must be from 1 to {width}");
                Err(AddressError(why))
            }
        }
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the prefix length, 1 to 32 or 128.
    #[must_use]
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Returns its transfer network.
    #[must_use]
    pub fn network(&self) -> IpNet {
        self.0.trunc()
    }
}

impl From<TunnelAddress> for IpNet {
    fn from(address: TunnelAddress) -> Self {
        address.0
    }
}

impl FromStr for TunnelAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let malformed = || {
            let text = shown(text);
            let example = "write it like `192.168.123.1/24`";
            AddressError(format!(
                "`{text}` is not an address with a prefix length; {example}"
            ))
        };
        let (address, length) = text.split_once('/').ok_or_else(malformed)?;
        let address = address.parse().map_err(|_| malformed())?;
        if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        // What does not fit a byte is longer than any address.
        Self::new(address, length.parse().unwrap_or(u8::MAX))
    }
}

/// The most bytes of a device's name: IFNAMSIZ of linux/if.h without the closing zero.
const MAX_DEVICE_NAME: usize = 15;

/// The name of a network device as the kernel takes it: 1 to 15 visible ASCII characters without slash,
/// colon, and `%`, by which a kernel would pick a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName(String);

impl DeviceName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for DeviceName {
    /// `rhizome0`.
    fn default() -> Self {
        Self("rhizome0".to_owned())
    }
}

impl FromStr for DeviceName {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        // dev_valid_name() of the kernel; a `%` would be a pattern.
        let visible = |c: u8| c.is_ascii_graphic() && !b"/:%".contains(&c);
        let fits = (1..=MAX_DEVICE_NAME).contains(&text.len()) && text.bytes().all(visible);
        let name = (fits && text != "." && text != "..").then(|| Self(text.to_owned()));
        let why =
            "not the name of a device: 1 to 15 bytes, without blank, slash, colon and percent sign";
        name.ok_or_else(|| AddressError(why.to_owned()))
    }
}

/// Why a text is no network, inner address or device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

/// Returns why no host in a tunnel can have an address.
fn reserved(address: IpAddr) -> Option<&'static str> {
    match address {
        address if address.is_loopback() => Some("is of the loopback device"),
        address if address.is_multicast() => Some("is of multicast"),
        address if address.is_unspecified() => Some("is the unspecified address"),
        _ => None,
    }
}

fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Reading by [`FromStr`] and writing of newtypes whose text is that of the value inside.
macro_rules! as_text {
    ($($type:ty, $description:literal, $example:literal;)*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                ::settings::text::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                ::settings::text::deserialize(deserializer)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "description": $description,
                    "examples": [$example],
                    "type": "string"
                })
            }
        }
    )*};
}
as_text! {
    Cidr, "A network: an address and a prefix length, with only zeros behind it.", "10.250.0.0/16";
    DeviceName, "Name of a network device, at most 15 bytes.", "rhizome0";
    TunnelAddress, "An address with the prefix length of its network.", "192.168.123.1/24";
}
