//! Destinations of CONNECT requests that are named as Istio names clusters.
//!
//! Gardener lets a header name any cluster that a regular expression allows. Where `EnvoyFilter`s
//! hold such rules for a gateway, those alone decide, for every Service that the gateway sees. Where
//! none does, the two names of Gardener are taken, for Services that another route or a
//! `DestinationRule` opens to the gateway: `kube-apiserver` on 443 and `vpn-seed-server`, or
//! `vpn-seed-server-0` to `-4`, on 1194.
//!
//! A shoot whose TLS ended in Envoy has a second name, `<id>--kube-apiserver-socket`: an alias here.
//! It holds as long as the first does, so that node proxies that still say it are served.

use route::RouteMatch;

use super::draft::{Draft, Source, Target, Times};
use super::{GatewayEntry, ROOT_NAMESPACE, policy, select};
use crate::world::{
    ConnectValue, FilterPatch, Kind, Mention, ObjectKey, Protocol, Service, World, in_namespace,
};

/// Adds the CONNECT routes of the group's Services.
pub(super) fn services(draft: &mut Draft<'_>) {
    let world = draft.world;
    let namespace = draft.namespace.clone();
    for (index, entry) in draft.entries() {
        let rules = Rules::of(world, entry);
        for (key, service) in in_namespace(&world.services, &namespace) {
            if select::sees_service(world, entry, key) {
                service_routes(draft, (index, entry), &rules, key, service);
            }
        }
    }
}

fn service_routes(
    draft: &mut Draft<'_>,
    (index, entry): (usize, &GatewayEntry),
    rules: &Rules<'_>,
    key: &ObjectKey,
    service: &Service,
) {
    let tcp = service
        .ports
        .iter()
        .filter(|port| port.protocol == Protocol::Tcp);
    for port in tcp {
        let target = Target::tcp(key.clone(), port.port);
        let name = target.cluster();
        let known = is_known(&key.name, port.port);
        let open = if rules.values.is_empty() {
            known && (draft.leads_to(index, &target) || policy::exposes(draft.world, entry, key))
        } else {
            rules.allow(&name, known)
        };
        if !open {
            continue;
        }
        let mut values = vec![name];
        if is_api_server(&key.name, port.port) {
            let alias = format!("{}--kube-apiserver-socket", key.namespace);
            let shoot = key.namespace.starts_with("shoot-");
            if rules.values.is_empty() && shoot
                || rules.allow(&alias, shoot)
                || has_socket(draft.world, entry, &key.namespace)
            {
                values.push(alias);
            }
        }
        let source = Source::new(Kind::Service, key, service.created);
        let matches = RouteMatch::ConnectDestinations(values);
        draft.route(index, matches, target, &source, Times::default());
    }
}

fn is_api_server(name: &str, port: u16) -> bool {
    (name, port) == ("kube-apiserver", 443)
}

fn is_known(name: &str, port: u16) -> bool {
    let vpn = name.strip_prefix("vpn-seed-server");
    let vpn = vpn.is_some_and(|rest| matches!(rest, "" | "-0" | "-1" | "-2" | "-3" | "-4"));
    is_api_server(name, port) || vpn && port == 1194
}

/// The rules of a gateway that leave the destination to a header.
struct Rules<'w> {
    values: Vec<&'w ConnectValue>,
}

impl<'w> Rules<'w> {
    fn of(world: &'w World, entry: &GatewayEntry) -> Self {
        let mut values: Vec<&ConnectValue> = Vec::new();
        for namespace in [&entry.namespace, ROOT_NAMESPACE] {
            let mention = Mention::Namespace(namespace.into());
            for (key, filter) in world.envoy_filters.mentioning(&mention) {
                if !select::takes_filter(world, entry, key, filter) {
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
        Self { values }
    }

    /// Tells whether a header may have this value; `known` is what a rule without values allows.
    fn allow(&self, value: &str, known: bool) -> bool {
        self.values.iter().any(|own| match own {
            ConnectValue::Any => known,
            ConnectValue::Exact(exact) => exact == value,
            ConnectValue::Matches(pattern) => pattern.matches(value),
        })
    }
}

fn rule<'w>(entry: &GatewayEntry, patch: &'w FilterPatch) -> Option<&'w ConnectValue> {
    let FilterPatch::Connect(connect) = patch else {
        return None;
    };
    let known = [entry.ports.node, entry.ports.vpn];
    let own = connect.listener.is_none_or(|port| known.contains(&port));
    (own && connect.cluster.is_none()).then_some(&connect.value)
}

/// Tells whether a gateway has an inner listener that ends TLS for a shoot.
fn has_socket(world: &World, entry: &GatewayEntry, shoot: &str) -> bool {
    let mention = Mention::Namespace(shoot.into());
    let mut filters = world.envoy_filters.mentioning(&mention);
    filters.any(|(key, filter)| {
        let mut patches = filter.patches.iter();
        patches.any(|patch| matches!(patch, FilterPatch::Socket(id) if **id == *shoot))
            && select::takes_filter(world, entry, key, filter)
    })
}
