//! Device kinds that can hold a host address, and which one to use on a kernel that lacks some.
//!
//! Pure: whether a kernel has a kind is the caller's to find out, by asking it to create one.

use std::{fmt, str::FromStr};

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

impl FromStr for DeviceKind {
    type Err = KindError;

    fn from_str(word: &str) -> Result<Self, KindError> {
        [
            Self::Auto,
            Self::Bridge,
            Self::Dummy,
            Self::Ifb,
            Self::Loopback,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == word)
        .ok_or_else(|| KindError::Unknown {
            word: word.to_owned(),
        })
    }
}

/// Whether a kernel has a device kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It has, as far as is known.
    Available,
    /// It refused to create one (`EOPNOTSUPP`).
    Missing,
}

/// Why there is no device kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KindError {
    /// This kernel has none of the kinds that were acceptable.
    #[error("this kernel has no device kind for `{wanted}` (tried {tried})")]
    NoneSupported {
        /// The configured kind.
        wanted: DeviceKind,
        /// The kinds that were tried, separated by commas.
        tried: String,
    },
    /// The word names no kind.
    #[error("{word:?} is no device kind: auto, dummy, ifb, bridge or lo")]
    Unknown {
        /// As configured.
        word: String,
    },
}

/// Returns the best kind for `wanted` that `probe` finds available.
///
/// `probe` is asked in order of preference and not beyond the first available kind.
/// [`DeviceKind::Loopback`] is its own answer, without asking.
///
/// # Errors
/// `NoneSupported` when every acceptable kind is missing.
pub fn choose_kind(
    wanted: DeviceKind,
    mut probe: impl FnMut(DeviceKind) -> Support,
) -> Result<DeviceKind, KindError> {
    if wanted == DeviceKind::Loopback {
        return Ok(wanted);
    }
    let candidates = wanted.candidates();
    candidates
        .iter()
        .copied()
        .find(|kind| probe(*kind) == Support::Available)
        .ok_or_else(|| {
            let tried: Vec<_> = candidates.iter().map(|kind| kind.as_str()).collect();
            KindError::NoneSupported {
                wanted,
                tried: tried.join(", "),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(wanted: DeviceKind, kernel: &[DeviceKind]) -> Result<DeviceKind, KindError> {
        choose_kind(wanted, |kind| {
            if kernel.contains(&kind) {
                Support::Available
            } else {
                Support::Missing
            }
        })
    }

    #[test]
    fn auto_is_dummy_where_the_kernel_has_it() {
        use DeviceKind::{Auto, Bridge, Dummy, Ifb};

        assert_eq!(chosen(Auto, &[Bridge, Ifb, Dummy]), Ok(Dummy));
        assert_eq!(chosen(Auto, &[Dummy]), Ok(Dummy));
    }

    #[test]
    fn auto_falls_back_to_ifb_and_then_to_bridge() {
        use DeviceKind::{Auto, Bridge, Ifb};

        assert_eq!(chosen(Auto, &[Bridge, Ifb]), Ok(Ifb));
        assert_eq!(chosen(Auto, &[Bridge]), Ok(Bridge));
    }

    #[test]
    fn auto_never_means_the_loopback_device() {
        let none = chosen(DeviceKind::Auto, &[DeviceKind::Loopback]).unwrap_err();

        assert_eq!(
            none,
            KindError::NoneSupported {
                wanted: DeviceKind::Auto,
                tried: "dummy, ifb, bridge".to_owned()
            }
        );
    }

    #[test]
    fn a_named_kind_is_not_replaced_by_another() {
        use DeviceKind::{Bridge, Dummy, Ifb};

        assert_eq!(chosen(Bridge, &[Dummy, Ifb, Bridge]), Ok(Bridge));
        assert!(chosen(Dummy, &[Ifb, Bridge]).is_err());
    }

    #[test]
    fn the_loopback_device_is_not_probed() {
        let kind = choose_kind(DeviceKind::Loopback, |kind| panic!("probed {kind}"));

        assert_eq!(kind, Ok(DeviceKind::Loopback));
    }

    #[test]
    fn nothing_is_probed_beyond_the_choice() {
        let mut asked = Vec::new();

        let kind = choose_kind(DeviceKind::Auto, |kind| {
            asked.push(kind);
            if kind == DeviceKind::Ifb {
                Support::Available
            } else {
                Support::Missing
            }
        });

        assert_eq!(kind, Ok(DeviceKind::Ifb));
        assert_eq!(asked, [DeviceKind::Dummy, DeviceKind::Ifb]);
    }

    #[test]
    fn words_and_kinds_map_both_ways() {
        for word in ["auto", "dummy", "ifb", "bridge", "lo"] {
            assert_eq!(word.parse::<DeviceKind>().unwrap().to_string(), word);
        }
        assert!("veth".parse::<DeviceKind>().is_err());
        assert!("".parse::<DeviceKind>().is_err());
    }
}
