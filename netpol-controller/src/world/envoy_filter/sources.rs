//! Sets of addresses that may connect: everybody, or ranges.

use route::IpPrefix;

/// The prefix of all IPv4 addresses, which filters write for everybody.
const ALL_IPV4: &str = "0.0.0.0/0";

/// Who may connect.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Sources {
    /// Every address.
    #[default]
    Everyone,
    /// The addresses of these ranges, sorted, none within another; of none: nobody.
    Only(Vec<IpPrefix>),
}

impl Sources {
    /// Returns the set without an address.
    #[must_use]
    pub fn nobody() -> Self {
        Self::Only(Vec::new())
    }

    /// Tells whether no address is in it.
    #[must_use]
    pub fn is_nobody(&self) -> bool {
        *self == Self::nobody()
    }

    /// Tells whether it leaves nobody out, as those who write filters see it: all of IPv4 is enough.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only(ranges) => ranges.iter().any(|range| range.to_string() == ALL_IPV4),
        }
    }

    /// Returns the addresses that are in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Everyone, _) | (_, Self::Everyone) => Self::Everyone,
            (Self::Only(mut own), Self::Only(other)) => {
                own.extend(other);
                Self::Only(normal(own))
            }
        }
    }

    /// Returns the addresses that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Everyone, both) | (both, Self::Everyone) => both,
            (Self::Only(own), Self::Only(other)) => {
                let within = |inner: &[IpPrefix], outer: &[IpPrefix]| -> Vec<IpPrefix> {
                    let inner = inner.iter().copied();
                    inner
                        .filter(|one| outer.iter().any(|wide| covers(wide, one)))
                        .collect()
                };
                let mut both = within(&own, &other);
                both.extend(within(&other, &own));
                Self::Only(normal(both))
            }
        }
    }
}

impl From<IpPrefix> for Sources {
    fn from(range: IpPrefix) -> Self {
        Self::Only(vec![range])
    }
}

/// Tells whether all of `narrow` lies within `wide`.
pub(super) fn covers(wide: &IpPrefix, narrow: &IpPrefix) -> bool {
    wide.len() <= narrow.len() && wide.contains(narrow.network())
}

/// Sorts ranges and leaves out those within others.
fn normal(mut ranges: Vec<IpPrefix>) -> Vec<IpPrefix> {
    // A wide range comes before those within it, with nothing else between them.
    ranges.sort_by_key(|range| (range.network(), range.len()));
    let mut kept: Vec<IpPrefix> = Vec::with_capacity(ranges.len());
    for range in ranges {
        if !kept.last().is_some_and(|wide| covers(wide, &range)) {
            kept.push(range);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(ranges: &[&str]) -> Sources {
        let ranges = ranges.iter().map(|range| range.parse().unwrap());
        ranges.fold(Sources::nobody(), |all, range: IpPrefix| {
            all.or(range.into())
        })
    }

    #[test]
    fn both_and_either() {
        for (a, b, both, either) in [
            (
                only(&["10.0.0.0/8", "fd00::/8"]),
                only(&["10.1.0.0/16", "192.0.2.0/24"]),
                only(&["10.1.0.0/16"]),
                only(&["10.0.0.0/8", "192.0.2.0/24", "fd00::/8"]),
            ),
            (
                only(&["10.0.0.0/8"]),
                only(&["10.0.0.0/8"]),
                only(&["10.0.0.0/8"]),
                only(&["10.0.0.0/8"]),
            ),
            (
                only(&["10.0.0.0/8"]),
                only(&["::/0"]),
                Sources::nobody(),
                only(&["10.0.0.0/8", "::/0"]),
            ),
            (
                Sources::Everyone,
                only(&["10.0.0.0/8"]),
                only(&["10.0.0.0/8"]),
                Sources::Everyone,
            ),
            (
                Sources::nobody(),
                Sources::Everyone,
                Sources::nobody(),
                Sources::Everyone,
            ),
        ] {
            assert_eq!(a.clone().and(b.clone()), both, "{a:?} {b:?}");
            assert_eq!(b.clone().and(a.clone()), both, "{b:?} {a:?}");
            assert_eq!(a.clone().or(b.clone()), either, "{a:?} {b:?}");
            assert_eq!(b.clone().or(a.clone()), either, "{b:?} {a:?}");
        }
    }

    #[test]
    fn ranges_within_others_vanish() {
        let own = only(&["10.1.0.0/16", "10.0.0.0/8", "9.0.0.0/8", "10.2.3.4/32"]);
        let expected = ["9.0.0.0/8", "10.0.0.0/8"].map(|range| range.parse().unwrap());
        assert_eq!(own, Sources::Only(expected.to_vec()));
    }

    #[test]
    fn all_of_ipv4_counts_as_open() {
        assert!(Sources::Everyone.is_open());
        assert!(only(&["0.0.0.0/0"]).is_open());
        assert!(!only(&["::/0", "128.0.0.0/1"]).is_open());
        assert!(!Sources::nobody().is_open() && Sources::nobody().is_nobody());
    }
}
