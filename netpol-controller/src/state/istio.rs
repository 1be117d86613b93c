//! Objects of Istio, cut down to what Gardener writes and a gateway without TLS of its own can do.
//!
//! Understands the fields that decide where a connection goes; which combinations can be served is
//! the translation's matter.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

use super::meta::{created, part};
use super::{Kind, Labels, Mention, Mentions, ObjectKey, ParseError};

/// What stands behind a Service's name and namespace in its full name.
const DOMAIN: &str = ".svc.cluster.local";

/// Returns the Service that an object in `namespace` means by a host: a full name
/// (`name.namespace.svc.cluster.local`), or a bare one, of its own namespace. Anything else with a
/// dot is not a Service's name to Istio either.
#[must_use]
pub fn service_of_host(host: &str, namespace: &str) -> Option<ObjectKey> {
    let (name, namespace) = match host.strip_suffix(DOMAIN) {
        Some(rest) => rest.split_once('.')?,
        None => (host, namespace),
    };
    let whole = !name.is_empty() && !namespace.is_empty();
    let bare = !name.contains(['.', '*', '/']) && !namespace.contains(['.', '*', '/']);
    (whole && bare).then(|| ObjectKey::new(namespace, name))
}

/// A `VirtualService`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VirtualService {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// Gateways it is bound to: `name`, `namespace/name` or `mesh`.
    pub gateways: Vec<String>,
    /// Namespaces that see it; empty when absent.
    pub export_to: Vec<String>,
    /// Its HTTP routes.
    pub http: Vec<VirtualRoute>,
    /// Its TLS routes.
    pub tls: Vec<VirtualRoute>,
    /// Its TCP routes.
    pub tcp: Vec<VirtualRoute>,
}

impl VirtualService {
    /// Returns the gateways that it names, of which `mesh` is none.
    pub fn gateway_keys<'a>(
        &'a self,
        names: &'a [String],
        own: &'a ObjectKey,
    ) -> impl Iterator<Item = ObjectKey> {
        let named = names.iter().filter(|name| *name != "mesh");
        named.map(|name| match name.split_once('/') {
            Some((namespace, name)) => ObjectKey::new(namespace, name),
            None => ObjectKey::new(&own.namespace, name),
        })
    }

    /// Returns its routes of all protocols.
    pub fn routes(&self) -> impl Iterator<Item = &VirtualRoute> {
        [&self.http, &self.tls, &self.tcp].into_iter().flatten()
    }
}

impl Mentions for VirtualService {
    /// Mentions its gateways, its own namespace and those of its destinations.
    fn mentions(&self, own: &ObjectKey) -> BTreeSet<Mention> {
        let matches = self.routes().flat_map(|route| &route.matches);
        let lists = matches.map(|one| &one.gateways).chain([&self.gateways]);
        let gateways = lists.flat_map(|names| self.gateway_keys(names, own));
        let destinations = self.routes().flat_map(|route| &route.destinations);
        let services =
            destinations.filter_map(|one| service_of_host(&one.destination.host, &own.namespace));
        let namespaces = services
            .map(|service| service.namespace)
            .chain([own.namespace.clone()]);
        let namespaces = namespaces.map(Mention::Namespace);
        gateways.map(Mention::Gateway).chain(namespaces).collect()
    }
}

/// One route of a `VirtualService`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct VirtualRoute {
    /// What it matches; empty matches everything. Of TLS and TCP routes only.
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
    /// The destination.
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
    /// Port of the Service.
    pub port: Option<PortNumber>,
    /// Subset, defined by a `DestinationRule`.
    pub subset: Option<String>,
}

/// A port in an object of Istio.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
pub struct PortNumber {
    /// Its number.
    #[serde(default)]
    pub number: u16,
}

/// What a TLS or TCP route matches.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsMatch {
    /// Server names.
    pub sni_hosts: Vec<String>,
    /// Port of the gateway.
    pub port: Option<u16>,
    /// Destination prefixes.
    pub destination_subnets: Vec<String>,
    /// Gateways, in place of the `VirtualService`'s.
    pub gateways: Vec<String>,
    /// Labels of clients, which mean nothing at a gateway.
    pub source_labels: Labels,
    /// Namespace of clients, which means nothing at a gateway.
    pub source_namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VirtualServiceSpec {
    gateways: Vec<String>,
    export_to: Vec<String>,
    http: Vec<HttpRoute>,
    tls: Vec<VirtualRoute>,
    tcp: Vec<VirtualRoute>,
}

/// Matches of HTTP routes have another shape and are not looked at.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HttpRoute {
    route: Vec<WeightedDestination>,
}

impl VirtualService {
    pub(super) fn parse(mut object: DynamicObject) -> Result<Self, ParseError> {
        let spec: VirtualServiceSpec = part(Kind::VirtualService, &mut object, "spec")?;
        let meta = object.metadata;
        let http = spec.http.into_iter().map(|route| VirtualRoute {
            matches: Vec::new(),
            destinations: route.route,
        });
        Ok(Self {
            created: created(&meta),
            uid: meta.uid.unwrap_or_default(),
            gateways: spec.gateways,
            export_to: spec.export_to,
            http: http.collect(),
            tls: spec.tls,
            tcp: spec.tcp,
        })
    }
}

/// A `Gateway` of Istio.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IstioGateway {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// Labels of the gateway's pods.
    pub selector: Labels,
    /// Its ports.
    pub servers: Vec<IstioServer>,
}

/// One port of a `Gateway` of Istio.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IstioServer {
    /// Number of the port.
    pub port: u16,
    /// Protocol as it is written: `TLS`, `HTTPS`, `TCP`, `HTTP`.
    pub protocol: String,
    /// `tls.mode` as it is written; empty when there is no `tls`.
    pub tls_mode: String,
    /// Names, with an optional `namespace/` in front.
    pub hosts: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IstioGatewaySpec {
    selector: Labels,
    servers: Vec<ServerSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServerSpec {
    hosts: Vec<String>,
    port: ServerPort,
    tls: Option<ServerTls>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServerPort {
    number: u16,
    protocol: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServerTls {
    mode: String,
}

impl IstioGateway {
    pub(super) fn parse(mut object: DynamicObject) -> Result<Self, ParseError> {
        let spec: IstioGatewaySpec = part(Kind::IstioGateway, &mut object, "spec")?;
        let servers = spec.servers.into_iter().map(|server| IstioServer {
            port: server.port.number,
            protocol: server.port.protocol,
            // Istio's default of a `tls` block without a mode.
            tls_mode: server.tls.map_or_else(String::new, |tls| match tls.mode {
                mode if mode.is_empty() => "PASSTHROUGH".to_owned(),
                mode => mode,
            }),
            hosts: server.hosts,
        });
        let meta = object.metadata;
        Ok(Self {
            created: created(&meta),
            uid: meta.uid.unwrap_or_default(),
            selector: spec.selector,
            servers: servers.collect(),
        })
    }
}

/// A `DestinationRule`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DestinationRule {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// The Service it is about, as it is written.
    pub host: String,
    /// Namespaces that see it; empty when absent.
    pub export_to: Vec<String>,
    /// `trafficPolicy`, as it is written.
    pub traffic_policy: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DestinationRuleSpec {
    host: String,
    export_to: Vec<String>,
    traffic_policy: Value,
}

impl DestinationRule {
    pub(super) fn parse(mut object: DynamicObject) -> Result<Self, ParseError> {
        let spec: DestinationRuleSpec = part(Kind::DestinationRule, &mut object, "spec")?;
        let meta = object.metadata;
        Ok(Self {
            created: created(&meta),
            uid: meta.uid.unwrap_or_default(),
            host: spec.host,
            export_to: spec.export_to,
            traffic_policy: spec.traffic_policy,
        })
    }
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
