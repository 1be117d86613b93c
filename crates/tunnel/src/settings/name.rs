//! Names of devices.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::address::as_text;

/// The name of a network device as the kernel takes it: 1 to 15 bytes without slash, colon, blank,
/// and `%`, by which a kernel would pick a number.
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

/// Why a text is no name of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a device: 1 to 15 bytes, without blank, slash, colon and percent sign")]
pub struct DeviceNameError;

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let banned = |c: char| "/:%".contains(c) || c.is_whitespace() || c.is_control();
        let fits = (1..=15).contains(&text.len()) && ![".", ".."].contains(&text);
        if fits && !text.contains(banned) {
            Ok(Self(text.to_owned()))
        } else {
            Err(DeviceNameError)
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text! {
    DeviceName, "Name of a network device, at most 15 bytes.", "rhizome0";
}
