//! Objects of the Gateway API, cut down to TLS passthrough.
#![expect(missing_docs, reason = "the fields are those of the objects")]

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{LabelSelector, Labels, Mention, Mentions, Object, ObjectKey};

/// A `Gateway` of the Gateway API.
pub type Gateway = Object<GatewaySpec>;

/// What a `Gateway` of the Gateway API says.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct GatewaySpec {
    pub infrastructure: Infrastructure,
    pub listeners: Vec<GatewayListener>,
}

/// A gateway's infrastructure.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Infrastructure {
    /// Its labels, which the gateway's pods get.
    pub labels: Labels,
}

/// A listener of a `Gateway`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayListener {
    pub name: String,
    /// The name it is for; empty for all.
    pub hostname: String,
    pub port: u16,
    /// Its protocol as it is written: `TLS`, `HTTPS`, `TCP` and so on.
    pub protocol: String,
    pub tls: ListenerTls,
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

/// A `TLSRoute`.
pub type TlsRoute = Object<TlsRouteSpec>;

/// What a `TLSRoute` says.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct TlsRouteSpec {
    /// Names it is for; empty for all of its listener.
    pub hostnames: Vec<String>,
    /// The `Gateway`s it is bound to.
    #[serde(rename = "parentRefs")]
    pub parents: Vec<ParentRef>,
    pub rules: Vec<TlsRule>,
}

/// A rule of a `TLSRoute`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct TlsRule {
    /// Where it leads.
    #[serde(rename = "backendRefs")]
    pub backends: Vec<RouteBackend>,
}

/// A `Gateway` that a route is bound to.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    /// Its kind; empty is `Gateway`.
    pub kind: String,
    /// Its namespace; empty is the route's.
    pub namespace: String,
    pub name: String,
    /// The listener's name; empty for all.
    pub section_name: String,
    /// The listener's port; `None` for all.
    pub port: Option<u16>,
}

impl ParentRef {
    /// Returns the `Gateway` that a route in `namespace` means, if it means one.
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
    pub name: String,
    pub port: Option<u16>,
    /// Its share; `None` is 1.
    pub weight: Option<u32>,
}
