//! Which existing policies of a Service stay as they are, while an annotation that decides them
//! cannot be understood.
//!
//! Goes by their names, which say what they come from. Where a name could come from more than one
//! thing the policy stays.

use super::annotations::Annotations;
use crate::state::{ClusterState, ObjectKey, Protocol};

/// Endings of names that are no client namespace's, unless there is one called so.
const RESERVED: [&str; 2] = ["ingress-controller", "istio"];

/// The policies of a Service that stay.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Frozen {
    pub(super) everything: bool,
    service: ObjectKey,
    aliases: Vec<String>,
    from_world: bool,
    /// Those of clients in other namespaces.
    pub(super) others: bool,
    reserved: Vec<&'static str>,
}

/// What a name says, where it is one of the Service's.
struct Parts<'a> {
    ingress: bool,
    /// It is of clients in another namespace, if it is an egress policy.
    cross: bool,
    /// What follows the Service's name.
    rest: &'a str,
}

impl Frozen {
    pub(super) fn new(service: &ObjectKey) -> Self {
        Self {
            service: service.clone(),
            ..Self::default()
        }
    }

    pub(super) fn freeze(&mut self, state: &ClusterState, annotations: &Annotations<'_>) {
        let aliases = annotations.bad_aliases.iter();
        self.aliases = aliases.map(|&alias| alias.to_owned()).collect();
        self.from_world = annotations.bad_from_world;
        self.others = annotations.bad_selectors || annotations.namespace_alias.is_err();
        self.reserved = RESERVED.to_vec();
        self.reserved
            .retain(|name| !state.namespaces.contains_key(*name));
    }

    /// Returns whether an existing policy stays; `wanted` returns whether something else asks for
    /// it.
    pub(super) fn covers(&self, observed: &ObjectKey, wanted: impl FnOnce() -> bool) -> bool {
        if self.everything {
            return true;
        }
        let Some(parts) = self.parts(observed) else {
            return false;
        };
        if parts.ingress && parts.rest == "from-world" {
            return self.from_world;
        }
        if self.others && self.of_others(&parts) {
            return true;
        }
        let named = |alias: &String| !alias.is_empty() && via(parts.rest, alias);
        // What an empty alias allows is named as what the Service's ports do, which still count.
        let plain = self.aliases.iter().any(String::is_empty) && is_plain(parts.rest);
        self.aliases.iter().any(named) || (plain && !wanted())
    }

    fn parts<'a>(&self, observed: &'a ObjectKey) -> Option<Parts<'a>> {
        let own = observed.namespace == self.service.namespace;
        let parts = |prefix: &str, ingress| {
            let rest = observed.name.strip_prefix(prefix)?;
            let rest = rest.strip_prefix(&*self.service.name)?;
            Some(Parts {
                ingress,
                cross: !own,
                rest: rest.strip_prefix('-')?,
            })
        };
        if own {
            parts("ingress-to-", true).or_else(|| parts("egress-to-", false))
        } else {
            let prefix = format!("egress-to-{}-", self.service.namespace);
            parts(&prefix, false)
        }
    }

    fn of_others(&self, parts: &Parts<'_>) -> bool {
        let reserved = |name: &str| self.reserved.contains(&name);
        if parts.ingress {
            let from = parts.rest.rsplit_once("-from-");
            return from.is_some_and(|(_, client)| !reserved(client));
        }
        parts.cross && !is_exposed(parts.rest)
    }
}

/// Returns whether a policy is one of an alias, of whatever namespace.
fn via(rest: &str, alias: &str) -> bool {
    let infix = format!("-via-{alias}");
    let mut ends = rest
        .match_indices(&infix)
        .map(|(at, _)| &rest[at + infix.len()..]);
    ends.any(|tail| tail.is_empty() || tail.starts_with("-from-"))
}

/// Returns whether a policy is one of a port, and of labels: of no alias and of no gateway.
fn is_plain(rest: &str) -> bool {
    !is_exposed(rest)
        && !rest.contains("-via-")
        && Protocol::ALL.iter().any(|protocol| {
            let name = protocol.as_str().to_ascii_lowercase();
            rest.strip_prefix(&name)
                .is_some_and(|rest| rest.starts_with('-'))
        })
}

fn is_exposed(rest: &str) -> bool {
    let plain = unhashed(rest);
    let mut names = RESERVED.iter();
    names.any(|name| plain.ends_with(&format!("-from-{name}")))
}

/// Returns a name without the hash that distinguishes two gateways in one namespace.
fn unhashed(rest: &str) -> &str {
    let hex = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match rest.rsplit_once('-') {
        Some((front, last)) if hex(last) => front,
        Some(_) | None => rest,
    }
}
