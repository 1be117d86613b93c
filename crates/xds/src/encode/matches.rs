//! What routes match, as it is compared and named.

use route::IpPrefix;

use crate::match_key::MatchKey;
use crate::proto::CidrRange;

/// One thing that a route matches.
pub(super) type Key = MatchKey<String>;

pub(super) fn cidr_range(prefix: &IpPrefix) -> CidrRange {
    CidrRange {
        address_prefix: prefix.network().to_string(),
        prefix_len: Some(prefix.len().into()),
    }
}

pub(super) fn cidr_ranges(prefixes: &[IpPrefix]) -> Vec<CidrRange> {
    prefixes.iter().map(cidr_range).collect()
}
