//! Objects of the Gateway API, cut down to TLS passthrough.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use serde::Deserialize;

use super::meta::{created, part};
use super::{Kind, LabelSelector, Labels, Mention, Mentions, ObjectKey, ParseError};

/// A `Gateway` of the Gateway API.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Gateway {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// Its annotations.
    pub annotations: Labels,
    /// Labels of the gateway's infrastructure, which its pods get.
    pub infrastructure_labels: Labels,
    /// Its listeners.
    pub listeners: Vec<GatewayListener>,
}

/// A listener of a `Gateway`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayListener {
    /// Its name.
    pub name: String,
    /// The name it is for; empty for all.
    pub hostname: String,
    /// Its port.
    pub port: u16,
    /// Its protocol as it is written: `TLS`, `HTTPS`, `TCP` and so on.
    pub protocol: String,
    /// Its TLS settings.
    pub tls: ListenerTls,
    /// From which namespaces it takes routes.
    pub allowed_routes: AllowedRoutes,
}

/// TLS settings of a listener.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct ListenerTls {
    /// `Terminate` or `Passthrough`, as it is written; empty is `Terminate`.
    pub mode: String,
}

/// From which namespaces a listener takes routes.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct AllowedRoutes {
    /// The namespaces.
    pub namespaces: RouteNamespaces,
}

/// The namespaces a listener takes routes from.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct RouteNamespaces {
    /// `Same`, `All` or `Selector`; empty is `Same`.
    pub from: String,
    /// Selects namespaces, of `Selector`.
    pub selector: LabelSelector,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GatewaySpec {
    infrastructure: Infrastructure,
    listeners: Vec<GatewayListener>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Infrastructure {
    labels: Labels,
}

impl Gateway {
    pub(super) fn parse(mut object: DynamicObject) -> Result<Self, ParseError> {
        let spec: GatewaySpec = part(Kind::Gateway, &mut object, "spec")?;
        let meta = object.metadata;
        Ok(Self {
            created: created(&meta),
            uid: meta.uid.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            infrastructure_labels: spec.infrastructure.labels,
            listeners: spec.listeners,
        })
    }
}

/// A `TLSRoute`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsRoute {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// Names it is for; empty for all of its listener.
    pub hostnames: Vec<String>,
    /// The `Gateway`s it is bound to.
    pub parents: Vec<ParentRef>,
    /// Its backends, rule by rule.
    pub rules: Vec<Vec<RouteBackend>>,
}

/// A `Gateway` that a route is bound to.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    /// Its kind; empty is `Gateway`.
    pub kind: String,
    /// Its namespace; empty is the route's.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The listener's name; empty for all.
    pub section_name: String,
    /// The listener's port; `None` for all.
    pub port: Option<u16>,
}

impl ParentRef {
    /// Returns the `Gateway` that a route in `namespace` means, if it means one.
    #[must_use]
    pub fn gateway(&self, namespace: &str) -> Option<ObjectKey> {
        let kind = matches!(self.kind.as_str(), "" | "Gateway");
        let namespace = match self.namespace.as_str() {
            "" => namespace,
            own => own,
        };
        kind.then(|| ObjectKey::new(namespace, &self.name))
    }
}

impl Mentions for TlsRoute {
    /// Mentions its `Gateway`s and its own namespace.
    fn mentions(&self, own: &ObjectKey) -> BTreeSet<Mention> {
        let gateways = self.parents.iter();
        let gateways = gateways.filter_map(|parent| parent.gateway(&own.namespace));
        let gateways = gateways.map(Mention::Gateway);
        gateways
            .chain([Mention::Namespace(own.namespace.clone())])
            .collect()
    }
}

/// A Service that a route leads to.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct RouteBackend {
    /// Its kind; empty is `Service`.
    pub kind: String,
    /// Its namespace; empty is the route's. Another one needs a `ReferenceGrant`.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Port of the Service.
    pub port: Option<u16>,
    /// Its share; `None` is 1.
    pub weight: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TlsRouteSpec {
    hostnames: Vec<String>,
    parent_refs: Vec<ParentRef>,
    rules: Vec<RuleSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuleSpec {
    backend_refs: Vec<RouteBackend>,
}

impl TlsRoute {
    pub(super) fn parse(mut object: DynamicObject) -> Result<Self, ParseError> {
        let spec: TlsRouteSpec = part(Kind::TlsRoute, &mut object, "spec")?;
        let meta = object.metadata;
        let rules = spec.rules.into_iter().map(|rule| rule.backend_refs);
        Ok(Self {
            created: created(&meta),
            uid: meta.uid.unwrap_or_default(),
            hostnames: spec.hostnames,
            parents: spec.parent_refs,
            rules: rules.collect(),
        })
    }
}
