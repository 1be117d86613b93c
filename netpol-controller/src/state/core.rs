//! Objects of Kubernetes itself and of Gardener's extensions, cut down.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{IngressServiceBackend, IngressSpec};
use kube::core::DynamicObject;
use serde::{Deserialize, Serialize};

use super::meta::{Parse, annotations, created, part};
use super::{Kind, LabelSelector, Labels, Mention, Mentions, ObjectKey};

/// Annotation of a Service with the namespaces whose pods may reach it: a JSON list of selectors.
pub const NAMESPACE_SELECTORS: &str = "networking.resources.gardener.cloud/namespace-selectors";

/// A namespace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Namespace {
    /// Its labels.
    pub labels: Labels,
    /// It is being deleted.
    pub terminating: bool,
}

impl Parse for Namespace {
    fn parse(_: Kind, object: DynamicObject) -> Result<Self, serde_json::Error> {
        let meta = object.metadata;
        Ok(Self {
            labels: meta.labels.unwrap_or_default(),
            terminating: meta.deletion_timestamp.is_some(),
        })
    }
}

telemetry::labels! {
    /// A transport protocol of a port.
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum Protocol {
        /// SCTP.
        Sctp = "SCTP",
        /// TCP.
        #[default]
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
    }
}

/// A port of a pod, by number or by the name a container gives it.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// Its number.
    Number(u16),
    /// Its name.
    Name(String),
}

impl std::fmt::Display for TargetPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// A port of a Service.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ServicePort {
    /// Its name; empty when it has none.
    pub name: String,
    /// Its transport protocol.
    pub protocol: Protocol,
    /// The port of the Service.
    pub port: u16,
    /// The port of the pods.
    pub target: TargetPort,
}

/// A Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Service {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// It is being deleted.
    pub terminating: bool,
    /// Annotations that mean something to the controller.
    pub annotations: Labels,
    /// The annotation [`NAMESPACE_SELECTORS`], or what is wrong with it.
    pub namespace_selectors: Result<Vec<LabelSelector>, String>,
    /// The labels of the pods behind it; empty when it selects none.
    pub selector: Labels,
    /// Its ports, in their order.
    pub ports: Vec<ServicePort>,
    /// Its cluster addresses; none when it is headless.
    pub cluster_ips: Vec<IpAddr>,
    /// Whether it stands for a name elsewhere.
    pub is_external_name: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Vec<String>,
    ports: Vec<ServicePortSpec>,
    selector: Option<Labels>,
    r#type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServicePortSpec {
    name: Option<String>,
    port: u16,
    #[serde(default)]
    protocol: Protocol,
    target_port: Option<TargetPort>,
}

impl Parse for Service {
    fn parse(_: Kind, mut object: DynamicObject) -> Result<Self, serde_json::Error> {
        let spec: ServiceSpec = part(&mut object, "/spec")?;
        let mut meta = object.metadata;
        let annotations = annotations(&mut meta);
        let ips = if spec.cluster_ips.is_empty() {
            spec.cluster_ip.into_iter().collect()
        } else {
            spec.cluster_ips
        };
        let selectors = annotations.get(NAMESPACE_SELECTORS);
        Ok(Self {
            created: created(&meta),
            uid: meta.uid.unwrap_or_default(),
            terminating: meta.deletion_timestamp.is_some(),
            namespace_selectors: selectors
                .map_or_else(|| Ok(Vec::new()), |text| LabelSelector::parse_list(text)),
            annotations,
            selector: spec.selector.unwrap_or_default(),
            ports: spec.ports.into_iter().map(ServicePort::from).collect(),
            cluster_ips: ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            is_external_name: spec.r#type.as_deref() == Some("ExternalName"),
        })
    }
}

impl From<ServicePortSpec> for ServicePort {
    fn from(spec: ServicePortSpec) -> Self {
        let target = match spec.target_port {
            None | Some(TargetPort::Number(0)) => TargetPort::Number(spec.port),
            Some(target) => target,
        };
        Self {
            name: spec.name.unwrap_or_default(),
            protocol: spec.protocol,
            port: spec.port,
            target,
        }
    }
}

/// An Ingress: what it exposes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ingress {
    /// The backends of all its paths, without repetition.
    pub backends: Vec<IngressBackend>,
}

/// A Service that an Ingress exposes.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct IngressBackend {
    /// Name of the Service, in the Ingress's namespace.
    pub service: String,
    /// Its port, by number or by its name.
    pub port: TargetPort,
}

impl Parse for Ingress {
    fn parse(_: Kind, mut object: DynamicObject) -> Result<Self, serde_json::Error> {
        let spec: IngressSpec = part(&mut object, "/spec")?;
        let rules = spec.rules.into_iter().flatten();
        let paths = rules
            .filter_map(|rule| rule.http)
            .flat_map(|http| http.paths);
        let services = paths.filter_map(|path| path.backend.service);
        let mut backends: Vec<_> = services.filter_map(IngressBackend::of).collect();
        backends.sort();
        backends.dedup();
        Ok(Self { backends })
    }
}

impl IngressBackend {
    fn of(backend: IngressServiceBackend) -> Option<Self> {
        let port = backend.port?;
        let name = port.name.filter(|name| !name.is_empty());
        let port = match (name, port.number) {
            (Some(name), _) => TargetPort::Name(name),
            (None, number) => TargetPort::Number(number?.try_into().ok()?),
        };
        Some(Self {
            service: backend.name,
            port,
        })
    }
}

/// Addresses behind a Service that share their ports: an EndpointSlice, or one Endpoints object
/// with its subsets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EndpointSet {
    /// Name of the Service, in the same namespace.
    pub service: String,
    /// Groups of addresses with the ports they have; a slice has one.
    pub subsets: Vec<(Vec<EndpointAddress>, Vec<EndpointPort>)>,
}

/// An address behind a Service.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct EndpointAddress {
    /// The address.
    pub ip: IpAddr,
    /// It takes connections (`conditions.serving`, which terminating ones may still do, or ready).
    pub ready: bool,
    /// It is going away.
    pub terminating: bool,
    /// Its zone.
    pub zone: Option<Arc<str>>,
}

/// A port that all addresses of a subset have. An API server leaves out what is absent.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(default)]
pub struct EndpointPort {
    /// The Service port's name; empty when it has none.
    pub name: String,
    /// The number; 0 when absent.
    pub port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SliceEndpoint {
    addresses: Vec<String>,
    conditions: Conditions,
    zone: Option<String>,
}

#[derive(Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Subset {
    addresses: Vec<SubsetAddress>,
    not_ready_addresses: Vec<SubsetAddress>,
    ports: Vec<EndpointPort>,
}

#[derive(Deserialize)]
struct SubsetAddress {
    ip: String,
}

/// Label of an EndpointSlice that names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

impl Parse for EndpointSet {
    fn parse(kind: Kind, mut object: DynamicObject) -> Result<Self, serde_json::Error> {
        if kind == Kind::Endpoints {
            let subsets: Vec<Subset> = part(&mut object, "/subsets")?;
            return Ok(Self {
                service: object.metadata.name.unwrap_or_default(),
                subsets: subsets.into_iter().map(Subset::parsed).collect(),
            });
        }
        let endpoints: Vec<SliceEndpoint> = part(&mut object, "/endpoints")?;
        let ports = part(&mut object, "/ports")?;
        let labels = object.metadata.labels.unwrap_or_default();
        let mut addresses: Vec<_> = endpoints.iter().flat_map(SliceEndpoint::parsed).collect();
        addresses.sort();
        Ok(Self {
            service: labels.get(SERVICE_NAME).cloned().unwrap_or_default(),
            subsets: vec![(addresses, ports)],
        })
    }
}

impl Mentions for EndpointSet {
    fn mentions(&self, own: &ObjectKey) -> BTreeSet<Mention> {
        let service = ObjectKey::new(&own.namespace, &self.service);
        BTreeSet::from([Mention::Service(service)])
    }
}

impl SliceEndpoint {
    /// Absent conditions mean yes (`EndpointConditions`).
    fn parsed(&self) -> impl Iterator<Item = EndpointAddress> + '_ {
        let ready = self.conditions.ready.unwrap_or(true);
        let serving = self.conditions.serving.unwrap_or(ready);
        let zone: Option<Arc<str>> = self.zone.as_deref().map(Arc::from);
        let addresses = self.addresses.iter().filter_map(|text| text.parse().ok());
        addresses.map(move |ip| EndpointAddress {
            ip,
            ready: ready || serving,
            terminating: self.conditions.terminating.unwrap_or(false),
            zone: zone.clone(),
        })
    }
}

impl Subset {
    fn parsed(self) -> (Vec<EndpointAddress>, Vec<EndpointPort>) {
        let ready = self.addresses.into_iter().map(|own| (own.ip, true));
        let others = self.not_ready_addresses.into_iter();
        let all = ready.chain(others.map(|own| (own.ip, false)));
        let parsed = all.filter_map(|(ip, ready)| {
            Some(EndpointAddress {
                ip: ip.parse().ok()?,
                ready,
                terminating: false,
                zone: None,
            })
        });
        let mut addresses: Vec<_> = parsed.collect();
        addresses.sort();
        (addresses, self.ports)
    }
}

/// The networks of a shoot, from Gardener's `Cluster` object.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ShootNetworks {
    /// `spec.networking.ipFamilies`; empty when absent, which means IPv4.
    pub ip_families: Vec<String>,
    /// `spec.networking.nodes`, `pods`, `services`, in this order, where given.
    pub spec: Vec<String>,
    /// `status.networking.nodes`, `pods`, `services`, in this order.
    pub status: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ShootNetworking {
    ip_families: Vec<String>,
    nodes: Option<String>,
    pods: Option<String>,
    services: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusNetworking {
    nodes: Vec<String>,
    pods: Vec<String>,
    services: Vec<String>,
}

impl Parse for ShootNetworks {
    fn parse(_: Kind, mut object: DynamicObject) -> Result<Self, serde_json::Error> {
        let spec: ShootNetworking = part(&mut object, "/spec/shoot/spec/networking")?;
        let status: StatusNetworking = part(&mut object, "/spec/shoot/status/networking")?;
        Ok(Self {
            ip_families: spec.ip_families,
            spec: [spec.nodes, spec.pods, spec.services]
                .into_iter()
                .flatten()
                .collect(),
            status: [status.nodes, status.pods, status.services].concat(),
        })
    }
}
