//! Claims within others: a name within a wildcard, a part of a range, a port of any.
//!
//! ```text
//!   api.a.example.com     takes from  *.a.example.com, *.example.com, *.com
//!   10.1.2.3, port 443    takes from  10.1.2.3, any port; 10.1.2.2/31 … 0.0.0.0/1, any port or 443
//! ```
//!
//! Gateways follow the most specific route, so an object that claims it takes connections from the
//! owner of the wider one. `*`, `0.0.0.0/0` and `::/0` are for all others and lose nothing. Objects
//! of Istio and of the Gateway API may do so, as they may there; a Service's annotations may not,
//! where the wider claim is older and of another namespace: otherwise any author of a Service could
//! take any name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use route::IpPrefix;

use super::{Claim, Holder};
use crate::state::Kind;

/// Who claims what, the oldest first.
pub(super) type Claims = BTreeMap<Claim, BTreeSet<Holder>>;

/// A wider claim, and its owner, that a narrower claim would override.
pub(super) type Barrier<'a> = (&'a Claim, &'a Holder);

/// Returns the holder of a claim, and for each older claimant that is none because it would take
/// something from another, that other.
pub(super) fn holder_of<'a>(
    claims: &'a Claims,
    claim: &Claim,
) -> (Option<&'a Holder>, Vec<(&'a Holder, Barrier<'a>)>) {
    let mut barred = Vec::new();
    let Some(claimants) = claims.get(claim) else {
        return (None, barred);
    };
    // Most are held by claimants that nothing bars.
    if let Some(first) = claimants.first().filter(|first| !may_be_barred(first)) {
        return (Some(first), barred);
    }
    let owners = wider_owners(claims, claim);
    for claimant in claimants {
        match barrier(&owners, claim, claimant) {
            Some(from) => barred.push((claimant, from)),
            None => return (Some(claimant), barred),
        }
    }
    (None, barred)
}

/// Returns the claimants of what lies within a claim, which its change may admit or bar; no
/// others than where that is so.
pub(super) fn within<'a>(
    claims: &'a Claims,
    claim: &Claim,
) -> impl Iterator<Item = &'a BTreeSet<Holder>> {
    let inside = first_within(claim).into_iter().flat_map(|least| {
        let further = claims.range(least.clone()..);
        further.take_while(move |(other, _)| lies_within(other, &least))
    });
    inside
        .map(|(_, claimants)| claimants)
        .filter(|claimants| claimants.iter().any(may_be_barred))
}

fn may_be_barred(holder: &Holder) -> bool {
    holder.kind == Kind::Service
}

/// Returns who has the claims that `claim` takes something from, the widest first.
fn wider_owners<'a>(claims: &'a Claims, claim: &Claim) -> Vec<Barrier<'a>> {
    let mut owners: Vec<Barrier<'_>> = Vec::new();
    for range in wider(claim) {
        for (wide, claimants) in claims.range(range) {
            if accepts_from(claim, wide) {
                let mut all = claimants.iter();
                let owner = all.find(|one| barrier(&owners, wide, one).is_none());
                owners.extend(owner.map(|owner| (wide, owner)));
            }
        }
    }
    owners
}

/// Returns the owner of something wider that bars a claimant.
fn barrier<'a>(owners: &[Barrier<'a>], claim: &Claim, claimant: &Holder) -> Option<Barrier<'a>> {
    let own = &claimant.key.namespace;
    let bars = |(wide, owner): &&Barrier<'_>| {
        owner.is_older(claimant)
            && owner.key.namespace != *own
            && owner.group != *own
            && accepts_from(claim, wide)
    };
    let found = owners.iter().filter(|_| may_be_barred(claimant)).find(bars);
    found.copied()
}

/// Returns where claims are that this one may take something from, the widest first.
fn wider(claim: &Claim) -> Vec<RangeInclusive<Claim>> {
    match claim {
        Claim::Name(name) => {
            let dots = name.match_indices('.');
            let wildcards = dots.map(|(at, _)| Claim::Name(format!("{}.*", &name[..at])));
            let others = wildcards.filter(|wide| wide != claim);
            others.map(|wide| wide.clone()..=wide).collect()
        }
        Claim::Destination(prefix, _) => {
            let shorter = (1..=prefix.len()).filter_map(|len| shortened(*prefix, len));
            let any = |prefix| {
                Claim::Destination(prefix, None)..=Claim::Destination(prefix, Some(u16::MAX))
            };
            shorter.map(any).collect()
        }
        Claim::Connect(_) | Claim::PublicKey(_) | Claim::RouteId(_) => Vec::new(),
    }
}

/// Returns whether connections follow `claim` that would follow `wide` without it, of which `wide`
/// is one of [`wider`].
fn accepts_from(claim: &Claim, wide: &Claim) -> bool {
    match (claim, wide) {
        (Claim::Destination(prefix, port), Claim::Destination(wide, wide_port)) => {
            if prefix == wide {
                port.is_some() && wide_port.is_none()
            } else {
                port.is_none() || wide_port.is_none() || port == wide_port
            }
        }
        (_, _) => claim != wide,
    }
}

/// Returns the first in order that lies within a claim: of a wildcard, what stands in front of its `*`.
fn first_within(claim: &Claim) -> Option<Claim> {
    match claim {
        Claim::Name(name) => {
            let front = name.strip_suffix('*').filter(|front| !front.is_empty())?;
            Some(Claim::Name(front.to_owned()))
        }
        Claim::Destination(prefix, _) => {
            (prefix.len() > 0).then_some(Claim::Destination(*prefix, None))
        }
        Claim::Connect(_) | Claim::PublicKey(_) | Claim::RouteId(_) => None,
    }
}

fn lies_within(claim: &Claim, least: &Claim) -> bool {
    match (least, claim) {
        (Claim::Name(front), Claim::Name(name)) => name.starts_with(front),
        (Claim::Destination(wide, _), Claim::Destination(prefix, _)) => {
            wide.contains(prefix.network())
        }
        (_, _) => false,
    }
}

/// Returns a name with its labels in reverse: so stands together what one wildcard covers.
pub(super) fn reversed(name: &str) -> String {
    let labels: Vec<_> = name.rsplit('.').collect();
    labels.join(".")
}

/// Returns the range of this length around another one.
fn shortened(prefix: IpPrefix, len: u8) -> Option<IpPrefix> {
    match IpPrefix::new(prefix.network(), len) {
        Ok(range) => Some(range),
        Err(route::IpPrefixError::HostBits { network }) => Some(network),
        Err(_) => None,
    }
}
