//! The device that holds the addresses, and the rules of connection tracking.

use net_config::DeviceKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::ConfigErrors;

/// The device that holds the addresses.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "InterfaceFile")]
pub(super) struct Interface {
    /// Its name, whatever its kind.
    pub(super) name: String,
    /// Kind to create when there is none of that name.
    pub(super) kind: Kind,
    /// Create it, and keep the addresses on it.
    pub(super) manage: bool,
    /// Take everything back at exit.
    pub(super) cleanup: bool,
}

impl Default for Interface {
    fn default() -> Self {
        let name = "apiserver-proxy".to_owned();
        Self {
            name,
            kind: Kind::Auto,
            manage: true,
            cleanup: false,
        }
    }
}

impl Interface {
    pub(super) fn validate(&self, errors: &mut ConfigErrors) {
        // What the kernel takes as the name of a device.
        let banned = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        let name = &self.name;
        if !(1..=15).contains(&name.len())
            || [".", ".."].contains(&name.as_str())
            || name.contains(banned)
        {
            let why = "not the name of a device: 1 to 15 bytes, without blank, slash and colon";
            errors.add("interface.name", why);
        }
    }
}

/// Kinds of devices.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "KindFile")]
pub(super) enum Kind {
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

impl From<Kind> for DeviceKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Auto => Self::Auto,
            Kind::Bridge => Self::Bridge,
            Kind::Dummy => Self::Dummy,
            Kind::Ifb => Self::Ifb,
            Kind::Lo => Self::Loopback,
        }
    }
}

/// Whether NOTRACK rules keep connection tracking away from the addresses. Replies of connections
/// that are translated to an address (kube-proxy does that from the ClusterIP of the Service
/// `kubernetes`) must stay tracked, so there are never rules beside destination NAT.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "NoTrackFile")]
pub(crate) enum NoTrackMode {
    /// Where connection tracking is active, the kernel can, and there is no destination NAT.
    Auto,
    /// Never.
    #[default]
    Off,
    /// Always; without them, and beside destination NAT, the proxy does not start.
    On,
}
