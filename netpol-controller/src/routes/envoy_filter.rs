//! Routes from `EnvoyFilter`s that name where they lead: by destination, or by one header's value.
//!
//! Rules that leave the destination to a header are `connect`'s, restrictions are `restrict`'s.

use std::collections::BTreeSet;

use route::RouteMatch;

use super::draft::{Agreed, Claim, Draft, Source, Target, Times};
use super::{GatewayEntry, select};
use crate::plan::Reason;
use crate::world::{
    ChainPatch, ClusterName, ConnectValue, EnvoyFilter, FilterPatch, Kind, Mention, Mentions,
    ObjectKey, Restriction, Scope, Sources, Visit,
};

/// Adds the routes of the `EnvoyFilter`s that are about the group's namespace.
pub(super) fn patches(draft: &mut Draft<'_>) {
    let world = draft.world;
    let mention = Mention::Namespace(draft.namespace.clone());
    for (key, filter) in world.envoy_filters.mentioning(&mention) {
        let source = Source::new(Kind::EnvoyFilter, key, filter.created);
        let mut problems = Agreed::default();
        let mut adapted = BTreeSet::new();
        for (index, entry) in draft.entries() {
            if !select::takes_filter(world, entry, key, filter) {
                continue;
            }
            let mut own = BTreeSet::new();
            for patch in &filter.patches {
                match follow(draft, (index, entry), patch, &source) {
                    Outcome::Adapted(what) => drop(adapted.insert(what)),
                    Outcome::Done => {}
                    Outcome::Not(what) => drop(own.insert(what)),
                }
            }
            problems.add(own);
        }
        if is_home(draft, key, filter) {
            for what in problems.all() {
                draft.problem(&source.object, Reason::RouteNotTranslated, &what);
            }
            for what in adapted {
                draft.problem(&source.object, Reason::RouteAdapted, &what);
            }
        }
    }
}

enum Outcome {
    Adapted(String),
    Done,
    Not(String),
}

/// A filter that is about several namespaces is told of in the first one's group.
fn is_home(draft: &Draft<'_>, key: &ObjectKey, filter: &EnvoyFilter) -> bool {
    filter.mentions(key).first() == Some(&Mention::Namespace(draft.namespace.clone()))
}

fn follow(
    draft: &mut Draft<'_>,
    gateway: (usize, &GatewayEntry),
    patch: &FilterPatch,
    source: &Source,
) -> Outcome {
    let (index, entry) = gateway;
    match patch {
        FilterPatch::Chain(chain) => chain_route(draft, gateway, chain, source),
        FilterPatch::Connect(connect) => {
            let known = [entry.ports.node, entry.ports.vpn];
            if let Some(port) = connect.listener.filter(|port| !known.contains(port)) {
                return Outcome::Not(format!("CONNECT is not taken on port {port}"));
            }
            if let (ConnectValue::Exact(value), Some(cluster)) = (&connect.value, &connect.cluster)
            {
                let matches = RouteMatch::ConnectDestinations(vec![value.clone()]);
                draft.route(index, matches, target(cluster), source, Times::default());
            }
            Outcome::Done
        }
        FilterPatch::Http => Outcome::Adapted(
            "it changes HTTP, which passes inside TLS here and is not changed".to_owned(),
        ),
        FilterPatch::Nothing => Outcome::Done,
        FilterPatch::Restrict(restriction) => restrict(entry, restriction),
        FilterPatch::Socket(id) => Outcome::Adapted(format!(
            "TLS is not ended here: {id}--kube-apiserver-socket leads to kube-apiserver of {id}"
        )),
        FilterPatch::Unknown(what) => Outcome::Not(what.clone()),
    }
}

fn chain_route(
    draft: &mut Draft<'_>,
    (index, entry): (usize, &GatewayEntry),
    chain: &ChainPatch,
    source: &Source,
) -> Outcome {
    if let Some(port) = chain.listener.filter(|port| *port != entry.ports.node) {
        return Outcome::Not(format!("destinations do not decide on port {port}"));
    }
    let target = target(&chain.cluster);
    let sources = match chain_sources(chain, &target) {
        Ok(sources) if sources.is_nobody() => {
            return Outcome::Not("nobody may connect: the chain is withheld".to_owned());
        }
        Ok(sources) => sources,
        Err(why) => {
            let what = format!("who may connect depends on {why}: the chain is withheld");
            return Outcome::Not(what);
        }
    };
    let matches = RouteMatch::Destinations {
        prefixes: chain.prefixes.clone(),
        port: chain.port,
    };
    let times = Times {
        idle_timeout: chain.idle_timeout,
        max_connection_age: chain.max_connection_age,
    };
    let claim = Claim {
        chain: chain.name.clone(),
        sources,
        ..Claim::new(matches, target, source, times)
    };
    draft.claim(index, claim);
    Outcome::Done
}

/// Returns who may connect by the chain's own filters.
fn chain_sources(chain: &ChainPatch, target: &Target) -> Result<Sources, String> {
    let cluster = target.cluster();
    let mut sources = Sources::Everyone;
    for access in &chain.access {
        for prefix in &chain.prefixes {
            let visit = Visit {
                value: Some(&cluster),
                destination: Some((*prefix, chain.port)),
                ..Visit::default()
            };
            sources = sources.and(access.allowed(&visit)?);
        }
    }
    Ok(sources)
}

/// Tells of a restriction that is not understood, or that is about something that is not there.
fn restrict(entry: &GatewayEntry, restriction: &Restriction) -> Outcome {
    let ports = entry.ports;
    let known = |port: u16| [ports.tls, ports.node, ports.vpn].contains(&port);
    let what = match (&restriction.scope, &restriction.access) {
        (Scope::ServerName(name), Err(why)) => {
            format!("by {why}, so routes for {name} are withheld")
        }
        (Scope::Namespaces, Err(why)) if !restriction.namespaces.is_empty() => {
            let names: Vec<&str> = restriction.namespaces.iter().map(AsRef::as_ref).collect();
            format!("by {why}, so routes to {} are withheld", names.join(", "))
        }
        (Scope::Chain(name), Err(why)) => format!("by {why}, so the chain {name:?} is withheld"),
        (Scope::Chain(name), Ok(_))
            if restriction.listener.is_some_and(|port| port != ports.node) =>
        {
            format!("of the chain {name:?}, which is not known: that is not applied here")
        }
        (Scope::Listener, Ok(_)) if restriction.listener.is_some_and(|port| !known(port)) => {
            "on a port that is not served: that is not applied here".to_owned()
        }
        (Scope::Listener | Scope::Namespaces, Err(why)) => {
            format!("by {why}, and names neither shoot nor server name: that is not applied here")
        }
        (_, Ok(_)) => return Outcome::Done,
    };
    Outcome::Not(format!("it restricts who may connect {what}"))
}

fn target(cluster: &ClusterName) -> Target {
    Target::tcp(cluster.service.clone(), cluster.port)
}
