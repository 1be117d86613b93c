//! A small cluster as its users describe it: values, before they become objects.

use std::collections::BTreeMap;

use testkit::netpol::{Labels, NamedPort, Pod, Protocol};

/// Prefix of labels and annotations.
pub(crate) const PREFIX: &str = "networking.resources.gardener.cloud/";

/// The label of the ingress controller's pods.
pub(crate) const CONTROLLER: (&str, &str) = ("app", "ingress");

/// The label that all gateways' pods have.
pub(crate) const GATEWAY: (&str, &str) = ("app", "gateway");

/// A cluster.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) namespaces: BTreeMap<String, Namespace>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) services: Vec<Service>,
    /// Namespaces whose Services get policies; empty for all.
    pub(crate) handled: Vec<Selector>,
    /// The namespace of the ingress controller.
    pub(crate) controller: Option<String>,
    pub(crate) ingresses: Vec<Exposed>,
    pub(crate) routed: Vec<Routed>,
}

#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    pub(crate) labels: Labels,
    pub(crate) terminating: bool,
}

/// A port of one of the Services, by their indices.
#[derive(Clone, Debug)]
pub(crate) struct Exposed {
    pub(crate) service: usize,
    pub(crate) port: usize,
    /// The Ingress names the port, or else has its number.
    pub(crate) by_name: bool,
}

/// A port that a gateway routes to.
#[derive(Clone, Debug)]
pub(crate) struct Routed {
    /// The namespace of the gateway's pods.
    pub(crate) namespace: String,
    /// Their labels.
    pub(crate) gateway: Labels,
    pub(crate) exposed: Exposed,
}

#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Seconds after some moment.
    pub(crate) created: u8,
    pub(crate) selector: Labels,
    pub(crate) ports: Vec<(Protocol, Target)>,
    pub(crate) clients: Option<Vec<Selector>>,
    pub(crate) namespace_alias: Option<String>,
    pub(crate) aliases: BTreeMap<String, Vec<Entry>>,
    pub(crate) state: Option<Vec<Entry>>,
}

/// A selector of namespaces.
#[derive(Clone, Debug)]
pub(crate) enum Selector {
    All,
    HasRole,
    NoRole,
    Named(String),
    NotRole(String),
    Role(String),
}

/// A port of pods, as Services and annotations write it.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A number in quotes.
    Digits(u16),
    Name(String),
    Number(u16),
}

/// An element of a list of ports in an annotation.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) port: Option<Target>,
    /// The last of a range.
    pub(crate) end: Option<u16>,
}

impl Selector {
    pub(crate) fn selects(&self, namespace: &str, labels: &Labels) -> bool {
        let role = labels.get("role");
        match self {
            Self::All => true,
            Self::HasRole => role.is_some(),
            Self::NoRole => role.is_none(),
            Self::Named(name) => name == namespace,
            Self::NotRole(own) => role != Some(own),
            Self::Role(own) => role == Some(own),
        }
    }
}

/// Returns whether labels are among others.
pub(crate) fn has_all(labels: &Labels, wanted: &Labels) -> bool {
    let mut wanted = wanted.iter();
    wanted.all(|(key, value)| labels.get(key) == Some(value))
}

impl Target {
    /// Returns whether this is a port of the pod.
    fn is(&self, pod: &Pod, protocol: Protocol, port: u16) -> bool {
        let named = |name: &str, own: &NamedPort| {
            own.name == name && own.protocol == protocol && own.number == port
        };
        match self {
            Self::Digits(number) | Self::Number(number) => *number == port,
            Self::Name(name) => pod.ports.iter().any(|own| named(name, own)),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Digits(number) | Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Entry {
    pub(crate) fn of_port((protocol, target): &(Protocol, Target)) -> Self {
        Self {
            protocol: Some(*protocol),
            port: Some(target.clone()),
            end: None,
        }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol.unwrap_or(Protocol::Tcp)
    }

    /// Returns whether the port of the pod is meant.
    pub(crate) fn covers(&self, pod: &Pod, protocol: Protocol, port: u16) -> bool {
        let meant = match (&self.port, self.end) {
            (None, _) => true,
            (Some(Target::Digits(first) | Target::Number(first)), Some(last)) => {
                (*first..=last).contains(&port)
            }
            (Some(target), _) => target.is(pod, protocol, port),
        };
        meant && protocol == self.protocol()
    }
}
