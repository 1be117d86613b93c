//! Objects of Istio, cut down to what Gardener writes and a gateway without TLS of its own can do.
//!
//! Understands the fields that decide where a connection goes; which combinations can be served is
//! the translation's matter.
#![expect(missing_docs, reason = "the fields are those of the objects")]

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{Labels, Mention, Mentions, Object, ObjectKey};

/// What stands behind a Service's name and namespace in its full name.
const DOMAIN: &str = ".svc.cluster.local";

/// Returns the Service that an object in `namespace` means by a host: a full name
/// (`name.namespace.svc.cluster.local`), or a bare one, of its own namespace. Anything else with a
/// dot is not a Service's name to Istio either.
pub fn service_of_host(host: &str, namespace: &str) -> Option<ObjectKey> {
    let (name, namespace) = match host.strip_suffix(DOMAIN) {
        Some(rest) => rest.split_once('.')?,
        None => (host, namespace),
    };
    let whole = !name.is_empty() && !namespace.is_empty();
    let bare = !name.contains(['.', '*', '/']) && !namespace.contains(['.', '*', '/']);
    (whole && bare).then(|| ObjectKey::new(namespace, name))
}

/// Most elements that count of what an author may list at will: what lists of several objects
/// multiply to stays small.
pub const MAX_ELEMENTS: usize = 256;

/// A `VirtualService`.
pub type VirtualService = Object<VirtualServiceSpec>;

/// What a `VirtualService` says.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualServiceSpec {
    /// Gateways it is bound to: `name`, `namespace/name` or `mesh`.
    pub gateways: Vec<String>,
    /// Namespaces that see it; empty when absent.
    pub export_to: Vec<String>,
    /// Their matches by path, header and method are not looked at.
    pub http: Vec<VirtualRoute>,
    pub tls: Vec<VirtualRoute>,
    pub tcp: Vec<VirtualRoute>,
}

impl VirtualServiceSpec {
    /// Returns the gateways that a list of its names, distinct, of which `mesh` is none. Only the
    /// first [`MAX_ELEMENTS`] names count.
    pub fn gateway_keys(&self, names: &[String], own: &ObjectKey) -> BTreeSet<ObjectKey> {
        let names = names.iter().take(MAX_ELEMENTS);
        let named = names.filter(|name| *name != "mesh");
        let keys = named.map(|name| match name.split_once('/') {
            Some((namespace, name)) => ObjectKey::new(namespace, name),
            None => ObjectKey::new(&own.namespace, name),
        });
        keys.collect()
    }

    /// Returns the namespaces of the Services that it leads to.
    pub fn namespaces(&self, own: &ObjectKey) -> BTreeSet<Arc<str>> {
        let hosts = self.destinations().map(|one| &one.destination.host);
        let services = hosts.filter_map(|host| service_of_host(host, &own.namespace));
        services.map(|service| service.namespace).collect()
    }

    /// Returns the destinations of its routes of all protocols.
    pub fn destinations(&self) -> impl Iterator<Item = &WeightedDestination> {
        self.routes().flat_map(|route| &route.destinations)
    }

    fn routes(&self) -> impl Iterator<Item = &VirtualRoute> {
        self.http.iter().chain(&self.tls).chain(&self.tcp)
    }
}

impl Mentions for VirtualService {
    fn mentions(&self, own: &ObjectKey) -> BTreeSet<Mention> {
        let matches = self.routes().flat_map(|route| &route.matches);
        let lists = matches.map(|one| &one.gateways).chain([&self.gateways]);
        let gateways = lists.flat_map(|names| self.gateway_keys(names, own));
        // Each is translated again when it changes.
        let namespaces = self.namespaces(own).into_iter().take(MAX_ELEMENTS);
        let namespaces = namespaces.chain([own.namespace.clone()]);
        let namespaces = namespaces.map(Mention::Namespace);
        gateways.map(Mention::Gateway).chain(namespaces).collect()
    }
}

/// A route of a `VirtualService`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct VirtualRoute {
    /// What it matches; empty matches everything.
    #[serde(rename = "match")]
    pub matches: Vec<TlsMatch>,
    /// Where it leads.
    #[serde(rename = "route")]
    pub destinations: Vec<WeightedDestination>,
}

/// A destination with its share of the traffic.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct WeightedDestination {
    pub destination: RouteDestination,
    /// Its share; 0 when absent.
    pub weight: u32,
}

/// Where a route leads.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct RouteDestination {
    /// Name of the Service, as it is written.
    pub host: String,
    pub port: Option<PortNumber>,
    pub subset: Option<String>,
}

/// A port in an object of Istio.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
pub struct PortNumber {
    #[serde(default)]
    pub number: u16,
}

/// What a route matches.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsMatch {
    pub sni_hosts: Vec<String>,
    pub port: Option<u16>,
    pub destination_subnets: Vec<String>,
    /// Gateways, in place of the `VirtualService`'s.
    pub gateways: Vec<String>,
    /// Labels of clients, which mean nothing at a gateway.
    pub source_labels: Labels,
    /// Namespace of clients, which means nothing at a gateway.
    pub source_namespace: Option<String>,
}

/// A `Gateway` of Istio.
pub type IstioGateway = Object<IstioGatewaySpec>;

/// What a `Gateway` of Istio says.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct IstioGatewaySpec {
    /// Labels of the gateway's pods.
    pub selector: Labels,
    pub servers: Vec<IstioServer>,
}

/// One port of a `Gateway` of Istio.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct IstioServer {
    pub port: ServerPort,
    pub tls: Option<ServerTls>,
    /// Names, with an optional `namespace/` in front.
    pub hosts: Vec<String>,
}

impl IstioServer {
    /// Returns `tls.mode` as it is written; empty when there is no `tls`.
    pub fn tls_mode(&self) -> &str {
        match &self.tls {
            None => "",
            // Istio's default of a `tls` block without a mode.
            Some(tls) if tls.mode.is_empty() => "PASSTHROUGH",
            Some(tls) => &tls.mode,
        }
    }
}

/// The port of a server.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct ServerPort {
    pub number: u16,
    /// Protocol as it is written: `TLS`, `HTTPS`, `TCP`, `HTTP`.
    pub protocol: String,
}

/// TLS settings of a server.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerTls {
    pub mode: String,
    /// Name of the Secret with its certificate, in the gateway's namespace.
    pub credential_name: String,
    /// `TLSV1_2`, for example; empty for Istio's default.
    pub min_protocol_version: String,
}

/// A `DestinationRule`.
pub type DestinationRule = Object<DestinationRuleSpec>;

/// What a `DestinationRule` says.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct DestinationRuleSpec {
    /// The Service it is about, as it is written.
    pub host: String,
    /// Namespaces that see it; empty when absent.
    pub export_to: Vec<String>,
    pub traffic_policy: Value,
}

impl Mentions for DestinationRule {
    /// Mentions the namespace of its host, which may be a wildcard for all of a namespace.
    fn mentions(&self, own: &ObjectKey) -> BTreeSet<Mention> {
        let host = self.host.strip_prefix("*.").map_or_else(
            || service_of_host(&self.host, &own.namespace),
            |rest| service_of_host(&format!("any.{rest}"), &own.namespace),
        );
        let namespaces = host.into_iter().map(|service| service.namespace);
        namespaces.map(Mention::Namespace).collect()
    }
}
