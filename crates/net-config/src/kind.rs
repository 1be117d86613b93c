//! Device kinds that can hold a host address, and which ones to try on a kernel that lacks some.
//!
//! Whether a kernel has a kind is the caller's to find out, by asking it to create one.

use std::fmt;

/// What sort of device is created when the wanted one is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The first of [`DeviceKind::Dummy`], [`DeviceKind::Ifb`] and [`DeviceKind::Bridge`] that
    /// this kernel has.
    Auto,
    /// A bridge without ports.
    Bridge,
    /// A device made to hold addresses.
    Dummy,
    /// An intermediate functional block without anything redirected to it.
    Ifb,
    /// The loopback device, which always exists and is never created or deleted.
    Loopback,
}

impl DeviceKind {
    /// The kinds to try for `self`, best first; none for [`DeviceKind::Loopback`].
    ///
    /// `dummy` is made for this. `ifb` behaves like it while nothing is redirected into it: always
    /// with carrier, no ARP, drops what is sent through it. A bridge without ports has no carrier,
    /// which a local address does not need, but reads like a mistake to an operator; it comes
    /// last, because every kernel that runs containers has it. Left out are kinds that need a
    /// partner or a lower device (veth, macvlan, ipvlan), open a port or a path into the node
    /// (tunnels, WireGuard), or change routing (vrf).
    pub fn candidates(self) -> &'static [Self] {
        match self {
            Self::Auto => &[Self::Dummy, Self::Ifb, Self::Bridge],
            Self::Bridge => &[Self::Bridge],
            Self::Dummy => &[Self::Dummy],
            Self::Ifb => &[Self::Ifb],
            Self::Loopback => &[],
        }
    }

    /// The kernel's word for the kind (`IFLA_INFO_KIND`), the configuration's for the other two.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bridge => "bridge",
            Self::Dummy => "dummy",
            Self::Ifb => "ifb",
            Self::Loopback => "lo",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceKind::{Auto, Bridge, Dummy, Ifb, Loopback};

    #[test]
    fn only_auto_tries_several_kinds() {
        for (wanted, word, candidates) in [
            (Auto, "auto", &[Dummy, Ifb, Bridge][..]),
            (Bridge, "bridge", &[Bridge]),
            (Dummy, "dummy", &[Dummy]),
            (Ifb, "ifb", &[Ifb]),
            (Loopback, "lo", &[]),
        ] {
            assert_eq!(wanted.candidates(), candidates);
            assert_eq!(wanted.to_string(), word);
        }
    }
}
