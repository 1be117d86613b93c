//! Objects of Istio, cut down to what Gardener writes and a gateway without TLS of its own can do.
//!
//! Understands the fields that decide where a connection goes; which combinations can be served is
//! the translation's matter.

use kube::core::{DynamicObject, ObjectMeta};
use serde::Deserialize;
use serde_json::Value;

use super::meta::{created, part};
use super::{Kind, Labels, ParseError};

/// A `VirtualService`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VirtualService {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// Its annotations.
    pub annotations: Labels,
    /// Names it is for.
    pub hosts: Vec<String>,
    /// Gateways it is bound to: `name`, `namespace/name` or `mesh`.
    pub gateways: Vec<String>,
    /// Namespaces that see it; empty when not told.
    pub export_to: Vec<String>,
    /// Its HTTP routes.
    pub http: Vec<VirtualRoute>,
    /// Its TLS routes.
    pub tls: Vec<VirtualRoute>,
    /// Its TCP routes.
    pub tcp: Vec<VirtualRoute>,
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
    /// Its share; 0 when not told.
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
    hosts: Vec<String>,
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
            annotations: meta.annotations.unwrap_or_default(),
            hosts: spec.hosts,
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
    /// Namespaces that see it; empty when not told.
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

/// An `EnvoyFilter`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EnvoyFilter {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// Its owners' kinds and names: Gardener's filters belong to a shoot's namespace.
    pub owners: Vec<(String, String)>,
    /// Labels of the gateway's pods; empty selects all in the namespace.
    pub workload_labels: Labels,
    /// Its patches.
    pub patches: Vec<Patch>,
}

/// One patch of an `EnvoyFilter`, as it is written.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Patch {
    /// What is patched: `LISTENER`, `FILTER_CHAIN`, `CLUSTER` and so on.
    pub apply_to: String,
    /// Where.
    #[serde(rename = "match")]
    pub matches: Value,
    /// How, and with what.
    pub patch: PatchBody,
}

/// How an `EnvoyFilter` patches.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct PatchBody {
    /// `ADD`, `MERGE` and so on.
    pub operation: String,
    /// What is added or merged.
    pub value: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EnvoyFilterSpec {
    workload_selector: WorkloadSelector,
    config_patches: Vec<Patch>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WorkloadSelector {
    labels: Labels,
}

impl EnvoyFilter {
    pub(super) fn parse(mut object: DynamicObject) -> Result<Self, ParseError> {
        let spec: EnvoyFilterSpec = part(Kind::EnvoyFilter, &mut object, "spec")?;
        let meta = object.metadata;
        Ok(Self {
            created: created(&meta),
            owners: owners(&meta),
            uid: meta.uid.unwrap_or_default(),
            workload_labels: spec.workload_selector.labels,
            patches: spec.config_patches,
        })
    }
}

fn owners(meta: &ObjectMeta) -> Vec<(String, String)> {
    let all = meta.owner_references.iter().flatten();
    all.map(|owner| (owner.kind.clone(), owner.name.clone()))
        .collect()
}
