//! Routes from `EnvoyFilter`s that name where they lead: by destination, or by one header's value.
//!
//! Rules that leave the destination to a header are `connect`'s, restrictions are `restrict`'s.

use std::collections::BTreeSet;

use route::RouteMatch;

use super::claims::{Claim, Claims, Context, Source, Target, Times};
use super::{GatewayEntry, select};
use crate::plan::Reason;
use crate::state::{
    ChainPatch, ClusterName, ConnectValue, FilterPatch, Kind, Mention, Mentions, Restriction,
    Scope, Sources, Visit,
};

/// Names of Gardener's filters of HTTP for a whole gateway: identity headers and time limits, HSTS, 421.
const HTTP_OF_ALL: [&str; 3] = ["apiserver-tls-termination", "hsts", "misdirected-requests"];
/// Ends of the names of those for one shoot.
const HTTP_OF_SHOOT: [&str; 2] = ["-apiserver-proxy", "-istio-tls-termination"];

pub(super) fn patches(cx: Context<'_>) -> Claims {
    let mut claims = Claims::default();
    let mention = Mention::Namespace(cx.namespace.into());
    for (key, filter) in cx.state.envoy_filters.mentioning(&mention) {
        let source = Source::new(Kind::EnvoyFilter, key, filter.created);
        let mut adapted = BTreeSet::new();
        let problems = cx.shared_problems(|(index, entry)| {
            if !select::applies_filter(cx.state, entry, key, filter) {
                return None;
            }
            let mut own = BTreeSet::new();
            for patch in &filter.patches {
                match follow((index, entry), patch, &source) {
                    Outcome::Adapted(what) => drop(adapted.insert(what)),
                    Outcome::Nothing => {}
                    Outcome::Refused(what) => drop(own.insert(what)),
                    Outcome::Route(claim) => claims.routes.push(*claim),
                    Outcome::Withheld(claim, what) => {
                        own.insert(what);
                        claims.routes.push(*claim);
                    }
                }
            }
            Some(own)
        });
        // A filter that is about several namespaces is reported in the first one's group.
        if filter.mentions(key).first() == Some(&mention) {
            claims.not_translated(&source.object, problems);
            for what in adapted {
                claims.problem(&source.object, Reason::RouteAdapted, &what);
            }
        }
    }
    claims
}

/// What a gateway makes of a patch.
enum Outcome {
    Adapted(String),
    Nothing,
    Refused(String),
    Route(Box<Claim>),
    /// A route that admits no client, and why.
    Withheld(Box<Claim>, String),
}

fn follow(gateway: (usize, &GatewayEntry), patch: &FilterPatch, source: &Source) -> Outcome {
    let (index, entry) = gateway;
    match patch {
        FilterPatch::Chain(chain) => chain_route(gateway, chain, source),
        FilterPatch::Connect(connect) => {
            let known = [entry.ports.node, entry.ports.vpn];
            if let Some(port) = connect.listener.filter(|port| !known.contains(port)) {
                return Outcome::Refused(format!("CONNECT is not accepted on port {port}"));
            }
            let (ConnectValue::Exact(value), Some(cluster)) = (&connect.value, &connect.cluster)
            else {
                return Outcome::Nothing;
            };
            let matches = RouteMatch::ConnectDestinations(vec![value.clone()]);
            Outcome::Route(Box::new(source.claim(index, matches, target(cluster))))
        }
        // What Gardener's say the gateway does by itself, or another route has.
        FilterPatch::Http if entry.terminates_tls && is_gardeners(&source.object.key.name) => {
            Outcome::Nothing
        }
        FilterPatch::Http if entry.terminates_tls => Outcome::Adapted(
            "it changes HTTP, which is not applied to requests whose TLS ends in the gateway"
                .to_owned(),
        ),
        FilterPatch::Http => Outcome::Adapted(
            "it changes HTTP, which passes through inside TLS unchanged".to_owned(),
        ),
        FilterPatch::Socket(_) if entry.terminates_tls => Outcome::Nothing,
        FilterPatch::Nothing => Outcome::Nothing,
        FilterPatch::Restrict(restriction) => {
            unapplied(entry, restriction).map_or(Outcome::Nothing, Outcome::Refused)
        }
        FilterPatch::Socket(id) => Outcome::Adapted(format!(
            "TLS is not terminated here: {id}--kube-apiserver-socket leads to kube-apiserver of {id}"
        )),
        FilterPatch::Unknown(what) => Outcome::Refused(what.clone()),
    }
}

/// Returns whether a filter is one of those that Gardener has for TLS that ends in the gateway.
fn is_gardeners(name: &str) -> bool {
    HTTP_OF_ALL.contains(&name) || HTTP_OF_SHOOT.iter().any(|end| name.ends_with(end))
}

fn chain_route(
    (index, entry): (usize, &GatewayEntry),
    chain: &ChainPatch,
    source: &Source,
) -> Outcome {
    if let Some(port) = chain.listener.filter(|port| *port != entry.ports.node) {
        return Outcome::Refused(format!(
            "routes by destination are not supported on port {port}"
        ));
    }
    let target = target(&chain.cluster);
    let (sources, why) = match chain_sources(chain, &target) {
        Ok(none) if none.is_none() => (none, Some("no client may connect".to_owned())),
        Ok(sources) => (sources, None),
        Err(why) => (Sources::none(), Some(why)),
    };
    let matches = RouteMatch::Destinations {
        prefixes: chain.prefixes.clone(),
        port: chain.port,
    };
    let claim = Box::new(Claim {
        chain: chain.name.clone(),
        sources,
        times: Times {
            idle_timeout: chain.idle_timeout,
            max_connection_age: chain.max_connection_age,
        },
        ..source.claim(index, matches, target)
    });
    match why {
        Some(why) => Outcome::Withheld(claim, format!("{why}: the chain is withheld")),
        None => Outcome::Route(claim),
    }
}

/// Returns who may connect by the chain's own filters.
fn chain_sources(chain: &ChainPatch, target: &Target) -> Result<Sources, String> {
    let cluster = target.cluster();
    let mut sources = Sources::All;
    for access in chain.access.as_ref().map_err(String::clone)? {
        for prefix in &chain.prefixes {
            let visit = Visit {
                value: Some(&cluster),
                destination: Some((*prefix, chain.port)),
                ..Visit::default()
            };
            let allowed = access.allowed(&visit);
            sources = sources.and(allowed.map_err(|why| format!("access depends on {why}"))?);
        }
    }
    Ok(sources)
}

/// Returns the problem of a restriction that is not understood, or that is about something that is
/// not there.
fn unapplied(entry: &GatewayEntry, restriction: &Restriction) -> Option<String> {
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
        (_, Ok(_)) => return None,
    };
    Some(format!("it restricts clients {what}"))
}

fn target(cluster: &ClusterName) -> Target {
    Target::tcp(cluster.service.clone(), cluster.port)
}
