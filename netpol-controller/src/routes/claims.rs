//! Claims: what the sources want a gateway to route, before restrictions and endpoints are known.
//!
//! A source reads objects and returns [`Claims`]; it changes nothing else. Which of two objects of
//! different groups has a route both claim is decided by [`Table`](super::Table).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use route::RouteMatch;

use super::GatewayEntry;
use crate::plan::{Problem, Reason};
use crate::state::{ClusterState, Kind, ObjectKey, ObjectRef, Protocol, ServicePort, Sources};

/// What every step of a group's translation reads.
#[derive(Clone, Copy)]
pub(super) struct Context<'w> {
    pub(super) state: &'w ClusterState,
    pub(super) entries: &'w [GatewayEntry],
    /// Namespace of the Services that the group routes to.
    pub(super) namespace: &'w str,
}

impl<'w> Context<'w> {
    pub(super) fn gateways(self) -> impl Iterator<Item = (usize, &'w GatewayEntry)> {
        self.entries.iter().enumerate()
    }

    /// Returns the problems of an object that all gateways it is for have with it: what one gateway
    /// can serve is no problem. `of` returns those of one gateway, `None` when it is not for that.
    pub(super) fn shared_problems<T: Clone + Ord>(
        self,
        of: impl FnMut((usize, &'w GatewayEntry)) -> Option<BTreeSet<T>>,
    ) -> BTreeSet<T> {
        let all = self.gateways().filter_map(of);
        all.reduce(|shared, own| &shared & &own).unwrap_or_default()
    }
}

/// A port of a Service: where a route leads.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Target {
    pub(super) service: ObjectKey,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
}

impl Target {
    pub(super) fn tcp(service: ObjectKey, port: u16) -> Self {
        Self {
            service,
            port,
            protocol: Protocol::Tcp,
        }
    }

    /// Returns the name of the cluster: Istio's for TCP; Istio has none for UDP and SCTP.
    pub(super) fn cluster(&self) -> String {
        let kind = match self.protocol {
            Protocol::Tcp => "outbound",
            Protocol::Sctp => "sctp",
            Protocol::Udp => "udp",
        };
        let ObjectKey { namespace, name } = &self.service;
        format!("{kind}|{}||{name}.{namespace}.svc.cluster.local", self.port)
    }

    pub(super) fn port_of<'w>(&self, state: &'w ClusterState) -> Option<&'w ServicePort> {
        let service = state.services.get(&self.service)?;
        let mut ports = service.ports.iter();
        ports.find(|own| own.port == self.port && own.protocol == self.protocol)
    }
}

/// The object that a route comes from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) object: ObjectRef,
    pub(super) created: i64,
}

impl Source {
    pub(super) fn new(kind: Kind, key: &ObjectKey, created: i64) -> Self {
        let object = ObjectRef::new(kind, key);
        Self { object, created }
    }

    /// Returns the claim of a route without restrictions.
    pub(super) fn claim(&self, gateway: usize, matches: RouteMatch, target: Target) -> Claim {
        Claim {
            gateway,
            matches,
            target,
            source: self.clone(),
            times: Times::default(),
            chain: None,
            terminate: None,
            sources: Sources::All,
        }
    }
}

/// Timeouts that the source itself sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) idle_timeout: Option<Duration>,
    pub(super) max_connection_age: Option<Duration>,
}

/// A route that an object asks for.
pub(super) struct Claim {
    /// Index of the gateway.
    pub(super) gateway: usize,
    pub(super) matches: RouteMatch,
    pub(super) target: Target,
    pub(super) source: Source,
    pub(super) times: Times,
    /// Name of its filter chain.
    pub(super) chain: Option<String>,
    /// How its TLS ends in the gateway, if it does.
    pub(super) terminate: Option<Arc<xds::Terminate>>,
    /// Clients that may connect.
    pub(super) sources: Sources,
}

/// Routes that objects ask for, and problems found with the objects.
#[derive(Default)]
pub(super) struct Claims {
    pub(super) routes: Vec<Claim>,
    pub(super) problems: BTreeSet<Problem>,
}

impl Claims {
    /// Merges the claims of several sources. Routes into other namespaces are other groups'.
    pub(super) fn merge<const N: usize>(cx: Context<'_>, sources: [Self; N]) -> Self {
        let mut merged = Self::default();
        for source in sources {
            let own = |claim: &Claim| *claim.target.service.namespace == *cx.namespace;
            merged.routes.extend(source.routes.into_iter().filter(own));
            merged.problems.extend(source.problems);
        }
        merged
    }

    /// Reports something that an operator should know about an object.
    pub(super) fn problem(&mut self, object: &ObjectRef, reason: Reason, message: &str) {
        Problem::new(object.clone(), reason, message).add_to(&mut self.problems);
    }

    /// Reports routes of an object that are not translated.
    pub(super) fn not_translated(&mut self, object: &ObjectRef, problems: BTreeSet<String>) {
        for problem in problems {
            self.problem(object, Reason::RouteNotTranslated, &problem);
        }
    }
}
