//! What a `TLSRoute` is bound to: which listeners take it, under which names, and where it leads.
//!
//! A listener takes a route by section name and port, by the namespaces it takes routes from, and
//! by names in common; only TLS passthrough counts. Where it leads is one port of a Service of its
//! namespace; others would need a `ReferenceGrant`, which is not read. Which gateway serves a
//! listener is no matter here.

use std::collections::BTreeSet;

use route::normal_server_name;

use super::names::common;
use super::{ClusterState, GatewayListener, ObjectKey, ParentRef, RouteBackend, TlsRoute};

impl GatewayListener {
    /// Returns whether it passes TLS on.
    pub fn passes(&self) -> bool {
        self.protocol == "TLS" && self.tls.mode == "Passthrough"
    }
}

impl RouteBackend {
    /// Returns the Service that a route in `namespace` means.
    ///
    /// # Errors
    /// Why it means none that may be led to.
    pub fn service(&self, namespace: &str) -> Result<ObjectKey, String> {
        if !matches!(self.kind.as_str(), "" | "Service") {
            return Err(format!("a backend of kind {}", self.kind));
        }
        if !self.namespace.is_empty() && self.namespace != namespace {
            let other = &self.namespace;
            return Err(format!(
                "a backend in namespace {other}: ReferenceGrants are not read"
            ));
        }
        Ok(ObjectKey::new(namespace, &self.name))
    }
}

impl ClusterState {
    /// Returns the names under which a listener of the `Gateway` called `gateway` takes a route
    /// that is bound to it as `parent` says; none when it does not take it. They are normal.
    pub fn accepted_names(
        &self,
        (key, route): (&ObjectKey, &TlsRoute),
        parent: &ParentRef,
        (gateway, listener): (&ObjectKey, &GatewayListener),
    ) -> Vec<String> {
        let fits = listener.passes()
            && (parent.section_name.is_empty() || parent.section_name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
            && self.accepts_from(gateway, listener, key);
        let Some(own) = pattern(&listener.hostname).filter(|_| fits) else {
            return Vec::new();
        };
        if route.hostnames.is_empty() {
            return vec![own];
        }
        let wanted = route.hostnames.iter().filter_map(|name| pattern(name));
        wanted
            .filter_map(|wanted| common(&wanted, &own).map(str::to_owned))
            .collect()
    }

    /// Returns whether a listener takes routes from the route's namespace.
    fn accepts_from(
        &self,
        gateway: &ObjectKey,
        listener: &GatewayListener,
        route: &ObjectKey,
    ) -> bool {
        let allowed = &listener.allowed_routes.namespaces;
        match allowed.from.as_str() {
            "All" => true,
            "Selector" => {
                let namespace = self.namespaces.get(&route.namespace);
                namespace.is_some_and(|own| allowed.selector.matches(&own.labels))
            }
            "" | "Same" => route.namespace == gateway.namespace,
            _ => false,
        }
    }

    /// Returns the one Service that a route's backends are, and its port.
    ///
    /// # Errors
    /// Why there is none.
    pub fn backend(&self, key: &ObjectKey, route: &TlsRoute) -> Result<(ObjectKey, u16), String> {
        let [rule] = route.rules.as_slice() else {
            return Err(format!("{} rules, there must be one", route.rules.len()));
        };
        let weighted = rule
            .backends
            .iter()
            .filter(|backend| backend.weight != Some(0));
        let targets: BTreeSet<_> = weighted
            .map(|backend| self.port_of(key, backend))
            .collect::<Result<_, _>>()?;
        let mut targets = targets.into_iter();
        match (targets.next(), targets.next()) {
            (Some(target), None) => Ok(target),
            (None, _) => Err("no backend".to_owned()),
            (Some(_), Some(_)) => Err("several backends".to_owned()),
        }
    }

    fn port_of(&self, key: &ObjectKey, backend: &RouteBackend) -> Result<(ObjectKey, u16), String> {
        let service = backend.service(&key.namespace)?;
        let port = match backend.port {
            Some(port) if port > 0 => port,
            Some(_) | None => self.sole_port(&service)?,
        };
        Ok((service, port))
    }

    /// Returns the port of a Service that has one only.
    ///
    /// # Errors
    /// How many it has.
    pub fn sole_port(&self, service: &ObjectKey) -> Result<u16, String> {
        let object = self.services.get(service);
        match object.map_or(&[][..], |object| &object.ports) {
            [port] => Ok(port.port),
            ports => Err(format!(
                "a port is needed, Service {service} has {}",
                ports.len()
            )),
        }
    }
}

/// Returns a host name as a pattern; an empty one is every name.
fn pattern(name: &str) -> Option<String> {
    match name {
        "" => Some("*".to_owned()),
        name => normal_server_name(name).ok(),
    }
}
