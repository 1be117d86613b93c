//! Destinations of CONNECT requests that are named as Istio names clusters.
//!
//! Gardener lets a header name any cluster that a regular expression allows. Where `EnvoyFilter`s
//! hold such rules for a gateway, those alone decide, for every Service that the gateway sees.
//! Where none does, the two names of Gardener are used, for Services that another route or a
//! `DestinationRule` opens to the gateway: `kube-apiserver` on 443 and `vpn-seed-server`, or
//! `vpn-seed-server-0` to `-4`, on 1194.
//!
//! A shoot whose TLS ended in Envoy has a second name, `<id>--kube-apiserver-socket`: an alias
//! here. It is valid as long as the first is, so that node proxies that still use it are served. With
//! `tlsTermination` TLS ends behind it, as it does in front of the shoot's names.

use std::collections::BTreeSet;

use route::RouteMatch;

use super::claims::{Claim, Claims, Context, Source, Target};
use super::{GatewayEntry, ROOT_NAMESPACE, policy, select};
use crate::state::{
    ClusterState, ConnectValue, FilterPatch, Kind, Mention, ObjectKey, Protocol, in_namespace,
};

/// Returns the CONNECT routes of the group's Services; `others` are the claims of other sources.
pub(super) fn services(cx: Context<'_>, others: &Claims) -> Claims {
    let mut claims = Claims::default();
    for (index, entry) in cx.gateways() {
        let rules = rules(cx.state, entry);
        let own = others.routes.iter().filter(|own| own.gateway == index);
        let opened: BTreeSet<&Target> = own.map(|own| &own.target).collect();
        for (key, service) in in_namespace(&cx.state.services, cx.namespace) {
            if !select::sees_service(cx.state, entry, key) {
                continue;
            }
            let source = Source::new(Kind::Service, key, service.created);
            let ports = service.ports.iter();
            for port in ports.filter(|port| port.protocol == Protocol::Tcp) {
                let target = Target::tcp(key.clone(), port.port);
                let is_open = opened.contains(&target);
                let mut values = values(cx.state, entry, &rules, &target, is_open);
                // An alias ends TLS where the shoot's names do; Gardener does it by the same certificate.
                let own = others.routes.iter().filter(|own| own.gateway == index);
                let mut ends = own.filter(|own| own.target == target && !is_wildcard(own));
                if values.len() > 1
                    && let Some(terminate) = ends.find_map(|own| own.terminate.clone())
                {
                    let aliases = RouteMatch::ConnectDestinations(values.split_off(1));
                    claims.routes.push(Claim {
                        terminate: Some(terminate),
                        ..source.claim(index, aliases, target.clone())
                    });
                }
                if !values.is_empty() {
                    let matches = RouteMatch::ConnectDestinations(values);
                    claims.routes.push(source.claim(index, matches, target));
                }
            }
        }
    }
    claims
}

/// Whether it ends TLS by the seed's certificate instead of the shoot's own.
fn is_wildcard(claim: &Claim) -> bool {
    let own = claim.terminate.as_ref();
    own.is_some_and(|own| own.certificate.ends_with("-wildcard-tls"))
}

/// Returns the values of the header that lead to a port, the cluster's name first; `is_open` when another route
/// does.
fn values(
    state: &ClusterState,
    entry: &GatewayEntry,
    rules: &[&ConnectValue],
    target: &Target,
    is_open: bool,
) -> Vec<String> {
    let ObjectKey { namespace, name } = &target.service;
    let cluster = target.cluster();
    let known = is_known(name, target.port);
    let open = if rules.is_empty() {
        known && (is_open || policy::exposes(state, entry, &target.service))
    } else {
        allow(rules, &cluster, known)
    };
    if !open {
        return Vec::new();
    }
    let mut values = vec![cluster];
    if is_api_server(name, target.port) {
        let alias = format!("{namespace}--kube-apiserver-socket");
        let shoot = namespace.starts_with("shoot-");
        if rules.is_empty() && shoot
            || allow(rules, &alias, shoot)
            || has_socket(state, entry, namespace)
        {
            values.push(alias);
        }
    }
    values
}

fn is_api_server(name: &str, port: u16) -> bool {
    (name, port) == ("kube-apiserver", 443)
}

fn is_known(name: &str, port: u16) -> bool {
    let vpn = name.strip_prefix("vpn-seed-server");
    let vpn = vpn.is_some_and(|rest| matches!(rest, "" | "-0" | "-1" | "-2" | "-3" | "-4"));
    is_api_server(name, port) || vpn && port == 1194
}

/// Returns the rules of a gateway that leave the destination to a header: the values it may have.
fn rules<'w>(state: &'w ClusterState, entry: &GatewayEntry) -> Vec<&'w ConnectValue> {
    let mut values: Vec<&ConnectValue> = Vec::new();
    for namespace in [&entry.namespace, ROOT_NAMESPACE] {
        let mention = Mention::Namespace(namespace.into());
        for (key, filter) in state.envoy_filters.mentioning(&mention) {
            if !select::applies_filter(state, entry, key, filter) {
                continue;
            }
            for patch in &filter.patches {
                if let Some(value) = rule(entry, patch)
                    && !values.contains(&value)
                {
                    values.push(value);
                }
            }
        }
    }
    values
}

/// Returns whether a header may have this value; `known` is what a rule without values allows.
fn allow(rules: &[&ConnectValue], value: &str, known: bool) -> bool {
    rules.iter().any(|own| match own {
        ConnectValue::Any => known,
        ConnectValue::Exact(exact) => exact == value,
        ConnectValue::Matches(pattern) => pattern.matches(value),
    })
}

fn rule<'w>(entry: &GatewayEntry, patch: &'w FilterPatch) -> Option<&'w ConnectValue> {
    let FilterPatch::Connect(connect) = patch else {
        return None;
    };
    let known = [entry.ports.node, entry.ports.vpn];
    let own = connect.listener.is_none_or(|port| known.contains(&port));
    (own && connect.cluster.is_none()).then_some(&connect.value)
}

/// Returns whether a gateway has an inner listener that ends TLS for a shoot.
fn has_socket(state: &ClusterState, entry: &GatewayEntry, shoot: &str) -> bool {
    let mention = Mention::Namespace(shoot.into());
    let mut filters = state.envoy_filters.mentioning(&mention);
    filters.any(|(key, filter)| {
        let mut patches = filter.patches.iter();
        patches.any(|patch| matches!(patch, FilterPatch::Socket(id) if **id == *shoot))
            && select::applies_filter(state, entry, key, filter)
    })
}
