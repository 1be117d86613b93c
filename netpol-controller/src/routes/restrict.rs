//! Allowed clients: from the RBAC filters of `EnvoyFilter`s, such as Gardener's ACL extension
//! writes.
//!
//! ```text
//!   server name ──────────────────────────────▶ routes with that name, and with the names beside it
//!   header contains .shoot--a--b. ────────────▶ all other routes into shoot--a--b
//!   filter chain ─────────────────────────────▶ the routes of that chain
//!   none of them ─────────────────────────────▶ every route of the listener
//! ```
//!
//! A route that several filters concern admits what all of them admit. One that no client may use,
//! or whose restriction cannot be evaluated, is withheld and reported: it is never sent without it.
//! Its claim stays, as a route that admits no source: without it a wildcard that is younger, or
//! another's, would have its names, and without restriction.
//! An unsupported filter that names neither shoot nor server name withholds nothing, or one
//! would cut off all shoots: it is only reported.
//!
//! One value opens 8443 and 8132 alike, and a WireGuard server is its tunnel's other way in, so a
//! header's rule holds for all of them, by the name of the cluster that they lead to.

use std::collections::{BTreeMap, BTreeSet};

use route::RouteMatch;

use super::claims::{Claim, Claims, Context};
use super::names::covers;
use super::{GatewayEntry, ROOT_NAMESPACE, select};
use crate::plan::Reason;
use crate::state::{
    EnvoyFilter, FilterPatch, Mention, ObjectKey, Restriction, Scope, Sources, Visit,
};

/// Returns the claims with their restrictions; those that are withheld admit no source.
pub(super) fn apply(cx: Context<'_>, claims: Claims) -> Claims {
    let mut permitted = Claims {
        routes: Vec::with_capacity(claims.routes.len()),
        problems: claims.problems,
    };
    let gateways: Vec<Restrictions<'_>> = cx
        .gateways()
        .map(|(index, entry)| Restrictions::of(cx, (index, entry), &claims.routes))
        .collect();
    for (place, claim) in claims.routes.into_iter().enumerate() {
        // Reported where its source is read.
        if claim.sources.is_none() {
            permitted.routes.push(claim);
            continue;
        }
        let verdict = gateways[claim.gateway].verdict(&claim, place, cx.namespace);
        for (key, why) in verdict.unapplied {
            let message =
                format!("EnvoyFilter {key} restricts clients by {why}, which is not applied here");
            permitted.problem(&claim.source.object, Reason::RouteNotTranslated, &message);
        }
        match verdict.sources {
            Ok(sources) => permitted.routes.push(Claim { sources, ..claim }),
            Err(why) => {
                let what = what(&claim.matches);
                let message = format!("{what}: withheld, {why}");
                permitted.problem(&claim.source.object, Reason::RouteNotTranslated, &message);
                permitted.routes.push(Claim {
                    sources: Sources::none(),
                    terminate: None,
                    ..claim
                });
            }
        }
    }
    permitted
}

/// The effect of all filters on one route.
struct Verdict<'w> {
    /// Clients that may connect, or why the route is withheld.
    sources: Result<Sources, String>,
    /// Filters that are not applied, and their unsupported criterion.
    unapplied: Vec<(&'w ObjectKey, String)>,
}

/// The restrictions that concern a group, on one gateway.
struct Restrictions<'w> {
    entry: &'w GatewayEntry,
    all: Vec<(&'w ObjectKey, &'w Restriction)>,
    /// Which routes those of a server name concern, by place of the restriction.
    named: BTreeMap<usize, BTreeSet<usize>>,
}

impl<'w> Restrictions<'w> {
    fn of(cx: Context<'w>, (index, entry): (usize, &'w GatewayEntry), claims: &[Claim]) -> Self {
        let state = cx.state;
        let mut filters: BTreeMap<&ObjectKey, &EnvoyFilter> = BTreeMap::new();
        let own = [cx.namespace, &entry.namespace, ROOT_NAMESPACE];
        let mut mentions: BTreeSet<Mention> = own
            .into_iter()
            .map(|name| Mention::Namespace(name.into()))
            .collect();
        let claims = claims.iter().enumerate();
        let claims: Vec<_> = claims.filter(|(_, claim)| claim.gateway == index).collect();
        let names = claims
            .iter()
            .flat_map(|(_, claim)| server_names(&claim.matches));
        for name in names.flat_map(|name| patterns(name)) {
            mentions.insert(Mention::ServerName(name.into()));
        }
        for mention in &mentions {
            filters.extend(state.envoy_filters.mentioning(mention));
        }
        let mut found = Self {
            entry,
            all: Vec::new(),
            named: BTreeMap::new(),
        };
        for (key, filter) in filters {
            if !select::applies_filter(state, entry, key, filter) {
                continue;
            }
            for patch in &filter.patches {
                if let FilterPatch::Restrict(restriction) = patch {
                    found.add(key, restriction, &claims);
                }
            }
        }
        found
    }

    fn add(
        &mut self,
        key: &'w ObjectKey,
        restriction: &'w Restriction,
        claims: &[(usize, &Claim)],
    ) {
        if let Scope::ServerName(name) = &restriction.scope {
            let elsewhere = [self.entry.ports.node, self.entry.ports.vpn];
            let elsewhere = |port| elsewhere.contains(&port);
            let concerned = beside(name, claims);
            if restriction.listener.is_some_and(elsewhere) || concerned.is_empty() {
                return;
            }
            self.named.insert(self.all.len(), concerned);
        }
        self.all.push((key, restriction));
    }

    fn verdict(&self, claim: &Claim, place: usize, namespace: &str) -> Verdict<'w> {
        let mut sources = claim.sources.clone();
        let mut by: BTreeSet<&ObjectKey> = BTreeSet::new();
        let mut unapplied = Vec::new();
        let tls = matches!(claim.matches, RouteMatch::ServerNames(_));
        let spelled =
            |restriction: &Restriction| !tls && restriction.namespaces.contains(namespace);
        for (at, (key, restriction)) in self.all.iter().enumerate() {
            let named = self.named.get(&at).is_some_and(|all| all.contains(&place));
            if !named && !self.concerns(restriction, claim, namespace) {
                continue;
            }
            match allowed(restriction, claim) {
                Ok(Sources::All) => {}
                Ok(own) => {
                    by.insert(key);
                    sources = sources.and(own);
                }
                Err(why) if restriction.scope == Scope::Listener && !spelled(restriction) => {
                    unapplied.push((*key, why));
                }
                Err(why) => {
                    let why = format!("as EnvoyFilter {key} restricts clients by {why}");
                    return Verdict {
                        sources: Err(why),
                        unapplied,
                    };
                }
            }
        }
        let sources = if sources.is_none() {
            let by: Vec<String> = by.iter().map(ToString::to_string).collect();
            Err(format!("as EnvoyFilter {} admits no client", by.join(", ")))
        } else {
            Ok(sources)
        };
        Verdict { sources, unapplied }
    }

    /// Returns whether a restriction that is not of a server name is about a route.
    fn concerns(&self, restriction: &Restriction, claim: &Claim, namespace: &str) -> bool {
        let ports = &self.entry.ports;
        let tls = matches!(claim.matches, RouteMatch::ServerNames(_));
        match &restriction.scope {
            Scope::Chain(name) => {
                restriction.listener.is_none_or(|port| port == ports.node)
                    && claim.chain.as_ref() == Some(name)
            }
            Scope::Listener => restriction.listener.is_none_or(|port| {
                if tls {
                    port == ports.tls
                } else {
                    port == ports.node || port == ports.vpn
                }
            }),
            Scope::Namespaces => !tls && restriction.namespaces.contains(namespace),
            Scope::ServerName(_) => false,
        }
    }
}

/// Returns the routes that have a server name, or one beside it: the names of one filter chain are
/// restricted by any of them.
fn beside(name: &str, claims: &[(usize, &Claim)]) -> BTreeSet<usize> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let mut concerned = BTreeSet::new();
    loop {
        let before = concerned.len();
        for (place, claim) in claims {
            let own = server_names(&claim.matches);
            if own
                .iter()
                .any(|own| covers(name, own) || names.contains(own.as_str()))
            {
                names.extend(own.iter().map(String::as_str));
                concerned.insert(*place);
            }
        }
        if concerned.len() == before {
            return concerned;
        }
    }
}

/// Returns the clients that may connect by every match of a route.
fn allowed(restriction: &Restriction, claim: &Claim) -> Result<Sources, String> {
    let access = restriction.access.as_ref().map_err(String::clone)?;
    let cluster = claim.target.cluster();
    let to_cluster = Visit {
        value: Some(&cluster),
        ..Visit::default()
    };
    let visits: Vec<Visit<'_>> = match &claim.matches {
        RouteMatch::ConnectDestinations(values) => {
            let own = values.iter().map(|value| Visit {
                value: Some(value),
                ..Visit::default()
            });
            own.chain([to_cluster]).collect()
        }
        RouteMatch::Destinations { prefixes, port } => {
            let own = prefixes.iter().map(|prefix| Visit {
                destination: Some((*prefix, *port)),
                ..to_cluster
            });
            own.collect()
        }
        RouteMatch::ServerNames(names) => {
            let own = names.iter().map(|name| Visit {
                server_name: Some(name),
                ..Visit::default()
            });
            own.collect()
        }
        RouteMatch::WireGuard { .. } => vec![to_cluster],
    };
    let mut all = Sources::All;
    for visit in visits {
        all = all.and(access.allowed(&visit)?);
    }
    Ok(all)
}

fn server_names(matches: &RouteMatch) -> &[String] {
    let RouteMatch::ServerNames(names) = matches else {
        return &[];
    };
    names
}

/// Returns the patterns that a name lies within, itself first.
fn patterns(name: &str) -> Vec<String> {
    let tails = name.match_indices('.').filter(|(at, _)| *at > 0);
    let wide = tails.map(|(at, _)| format!("*{}", &name[at..]));
    let mut all: Vec<String> = vec![name.to_owned()];
    all.extend(wide);
    all.push("*".to_owned());
    all
}

fn what(matches: &RouteMatch) -> String {
    let shown = |all: Vec<String>| all.join(", ");
    match matches {
        RouteMatch::ConnectDestinations(values) => shown(values.clone()),
        RouteMatch::Destinations { prefixes, .. } => {
            shown(prefixes.iter().map(ToString::to_string).collect())
        }
        RouteMatch::ServerNames(names) => shown(names.clone()),
        RouteMatch::WireGuard { .. } => "WireGuard".to_owned(),
    }
}
