//! A group while it is put together: what the sources add, and how it becomes routes and clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use route::{ClusterSpec, RouteMatch, RouteSpec};

use super::cluster::cluster;
use super::policy::Policy;
use super::{GatewayEntry, GatewayGroup, Group, RouteSettings, Routed, SourcedRoute};
use crate::plan::{Problem, Reason};
use crate::world::{Kind, ObjectKey, ObjectRef, Protocol, ServicePort, Sources, World};

/// A port of a Service: what a route leads to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Target {
    pub(super) service: ObjectKey,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
}

impl Target {
    /// Returns a TCP port.
    pub(super) fn tcp(service: ObjectKey, port: u16) -> Self {
        Self {
            service,
            port,
            protocol: Protocol::Tcp,
        }
    }

    /// Returns the name of the cluster: as Istio calls it, and as it calls none for UDP.
    pub(super) fn cluster(&self) -> String {
        let kind = match self.protocol {
            Protocol::Tcp => "outbound",
            Protocol::Sctp => "sctp",
            Protocol::Udp => "udp",
        };
        let ObjectKey { namespace, name } = &self.service;
        format!("{kind}|{}||{name}.{namespace}.svc.cluster.local", self.port)
    }

    /// Returns the Service's port.
    pub(super) fn port_of<'w>(&self, world: &'w World) -> Option<&'w ServicePort> {
        let service = world.services.get(&self.service)?;
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
        Self {
            object: ObjectRef {
                kind,
                key: key.clone(),
            },
            created,
        }
    }
}

/// What is wrong with an object on every gateway that it is for: what one of them can do is no
/// problem.
#[derive(Debug, Default)]
pub(super) struct Agreed(Option<BTreeSet<String>>);

impl Agreed {
    /// Adds what is wrong on one gateway.
    pub(super) fn add(&mut self, wrong: BTreeSet<String>) {
        match &mut self.0 {
            None => self.0 = Some(wrong),
            Some(own) => own.retain(|one| wrong.contains(one)),
        }
    }

    /// Returns what is wrong on all.
    pub(super) fn all(self) -> BTreeSet<String> {
        self.0.unwrap_or_default()
    }
}

/// Times that the source itself sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) idle_timeout: Option<Duration>,
    pub(super) max_connection_age: Option<Duration>,
}

/// A route while its group is put together.
pub(super) struct Claim {
    pub(super) matches: RouteMatch,
    pub(super) target: Target,
    pub(super) source: Source,
    pub(super) times: Times,
    /// The filter chain that it is.
    pub(super) chain: Option<String>,
    /// Who may connect.
    pub(super) sources: Sources,
}

impl Claim {
    /// Returns a route that is open to everybody.
    pub(super) fn new(matches: RouteMatch, target: Target, source: &Source, times: Times) -> Self {
        Self {
            matches,
            target,
            source: source.clone(),
            times,
            chain: None,
            sources: Sources::Everyone,
        }
    }
}

/// A group while it is put together.
pub(super) struct Draft<'w> {
    pub(super) world: &'w World,
    pub(super) settings: &'w RouteSettings,
    /// Namespace of the Services that are led to.
    pub(super) namespace: Arc<str>,
    claims: Vec<Vec<Claim>>,
    problems: BTreeSet<Problem>,
}

impl<'w> Draft<'w> {
    pub(super) fn new(world: &'w World, settings: &'w RouteSettings, namespace: &str) -> Self {
        Self {
            world,
            settings,
            namespace: namespace.into(),
            claims: settings.gateways.iter().map(|_| Vec::new()).collect(),
            problems: BTreeSet::new(),
        }
    }

    /// Returns the gateways with their places.
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, &'w GatewayEntry)> + use<'w> {
        self.settings.gateways.iter().enumerate()
    }

    /// Adds a route from a gateway to a Service of the group's namespace; one that leads elsewhere
    /// is another group's.
    pub(super) fn route(
        &mut self,
        gateway: usize,
        matches: RouteMatch,
        target: Target,
        source: &Source,
        times: Times,
    ) {
        self.claim(gateway, Claim::new(matches, target, source, times));
    }

    /// Adds a route as it is, under the same condition.
    pub(super) fn claim(&mut self, gateway: usize, claim: Claim) {
        if claim.target.service.namespace == self.namespace
            && let Some(claims) = self.claims.get_mut(gateway)
        {
            claims.push(claim);
        }
    }

    /// Takes the routes of a gateway out, to be put back.
    pub(super) fn take_claims(&mut self, gateway: usize) -> Vec<Claim> {
        let claims = self.claims.get_mut(gateway);
        claims.map(std::mem::take).unwrap_or_default()
    }

    /// Puts the routes of a gateway in place of those it has.
    pub(super) fn put_claims(&mut self, gateway: usize, own: Vec<Claim>) {
        if let Some(claims) = self.claims.get_mut(gateway) {
            *claims = own;
        }
    }

    /// Tells whether a route from a gateway to this port is there already.
    pub(super) fn leads_to(&self, gateway: usize, target: &Target) -> bool {
        let mut claims = self.claims.get(gateway).into_iter().flatten();
        claims.any(|claim| claim.target == *target)
    }

    /// Notes something that an operator should know about an object.
    pub(super) fn problem(&mut self, object: &ObjectRef, reason: Reason, message: &str) {
        let problem = Problem::new(object.clone(), reason, message);
        self.problems.insert(problem);
    }

    /// Returns what was put together.
    pub(super) fn finish(mut self) -> Group {
        let mut group = Group::default();
        let mut routed: BTreeMap<ObjectKey, BTreeSet<Routed>> = BTreeMap::new();
        for (gateway, claims) in std::mem::take(&mut self.claims).into_iter().enumerate() {
            let entry = &self.settings.gateways[gateway];
            let mut clusters: BTreeMap<Target, (ClusterSpec, Policy)> = BTreeMap::new();
            let mut routes = Vec::with_capacity(claims.len());
            for claim in claims {
                let (cluster, policy) = clusters
                    .entry(claim.target.clone())
                    .or_insert_with(|| self.cluster(entry, &claim.target));
                routes.push(claim.route(cluster, policy));
                self.check(&claim, &mut routed, gateway);
            }
            group.gateways.push(GatewayGroup {
                clusters: sorted(clusters.into_values().map(|(cluster, _)| cluster)),
                routes,
            });
        }
        let all = routed.into_iter();
        group.routed = all
            .map(|(key, own)| (key, own.into_iter().collect()))
            .collect();
        group.problems = self.problems.into_iter().collect();
        group
    }

    fn cluster(&mut self, entry: &GatewayEntry, target: &Target) -> (ClusterSpec, Policy) {
        let (policy, adapted) = Policy::find(self.world, entry, target);
        for (rule, what) in adapted {
            self.problem(&rule, Reason::RouteAdapted, &what);
        }
        (cluster(self.world, target, &policy), policy)
    }

    /// Notes what the route opens, or that nothing is behind it.
    fn check(
        &mut self,
        claim: &Claim,
        routed: &mut BTreeMap<ObjectKey, BTreeSet<Routed>>,
        gateway: usize,
    ) {
        let target = &claim.target;
        if let Some(port) = target.port_of(self.world) {
            routed
                .entry(target.service.clone())
                .or_default()
                .insert(Routed {
                    gateway,
                    protocol: target.protocol,
                    target: port.target.clone(),
                });
            return;
        }
        let what = if self.world.services.contains_key(&target.service) {
            format!(
                "Service {} has no {} port {}",
                target.service,
                target.protocol.as_str(),
                target.port
            )
        } else {
            format!("there is no Service {}", target.service)
        };
        let message = format!("{what}: connections are refused until there is");
        self.problem(&claim.source.object, Reason::RouteNotTranslated, &message);
    }
}

impl Claim {
    fn route(&self, cluster: &ClusterSpec, policy: &Policy) -> SourcedRoute {
        let mut spec = RouteSpec::new(self.matches.clone(), cluster.name.clone());
        spec.idle_timeout = self.times.idle_timeout.or(policy.idle_timeout);
        if let Sources::Only(ranges) = &self.sources {
            spec.allow_sources.clone_from(ranges);
        }
        spec.max_connection_age = self.times.max_connection_age.or(policy.max_connection_age);
        SourcedRoute {
            spec,
            source: self.source.object.clone(),
            created: self.source.created,
        }
    }
}

fn sorted(clusters: impl Iterator<Item = ClusterSpec>) -> Vec<ClusterSpec> {
    let mut all: Vec<_> = clusters.collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}
