//! Sets of addresses that may connect: all, or ranges.

use route::IpPrefix;

/// The prefix of all IPv4 addresses, which filters use for all clients.
const ALL_IPV4: &str = "0.0.0.0/0";

/// Who may connect.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Sources {
    /// Every address.
    #[default]
    All,
    /// The addresses of these ranges, sorted, none within another; empty admits none.
    Only(Vec<IpPrefix>),
}

impl Sources {
    /// Returns the set without an address.
    pub fn none() -> Self {
        Self::Only(Vec::new())
    }

    /// Returns whether no address is in it.
    pub fn is_none(&self) -> bool {
        *self == Self::none()
    }

    /// Returns whether it excludes no client, as authors of filters mean it: all of IPv4 is enough.
    pub fn is_open(&self) -> bool {
        match self {
            Self::All => true,
            Self::Only(ranges) => ranges.iter().any(|range| range.to_string() == ALL_IPV4),
        }
    }

    /// Returns the addresses that are in either.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Only(mut own), Self::Only(other)) => {
                own.extend(other);
                Self::Only(normal(own))
            }
        }
    }

    /// Returns the addresses that are in both.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, both) | (both, Self::All) => both,
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

/// Returns whether all of `narrow` lies within `wide`.
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
        ranges.fold(Sources::none(), |all, range: IpPrefix| all.or(range.into()))
    }

    #[test]
    fn source_sets_intersect_and_unite() {
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
                Sources::none(),
                only(&["10.0.0.0/8", "::/0"]),
            ),
            (
                Sources::All,
                only(&["10.0.0.0/8"]),
                only(&["10.0.0.0/8"]),
                Sources::All,
            ),
            (Sources::none(), Sources::All, Sources::none(), Sources::All),
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
        assert!(Sources::All.is_open());
        assert!(only(&["0.0.0.0/0"]).is_open());
        assert!(!only(&["::/0", "128.0.0.0/1"]).is_open());
        assert!(!Sources::none().is_open() && Sources::none().is_none());
    }
}
