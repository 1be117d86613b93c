//! NetworkPolicy objects, read as strictly as an API server checks them.

use std::num::NonZeroU16;

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::selector::{Selector, check_labels, is_subdomain};
use super::{Labels, Protocol};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    #[serde(rename = "apiVersion")]
    _api_version: Option<IgnoredAny>,
    #[serde(rename = "kind")]
    _kind: Option<IgnoredAny>,
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) namespace: String,
    name: String,
    #[serde(default)]
    labels: Labels,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) pod_selector: Selector,
    #[serde(default)]
    policy_types: Vec<PolicyType>,
    #[serde(default)]
    ingress: Vec<Rule>,
    #[serde(default)]
    egress: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub(super) enum PolicyType {
    Egress,
    Ingress,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    #[serde(default)]
    from: Vec<Peer>,
    #[serde(default)]
    to: Vec<Peer>,
    /// Empty for all ports of all protocols.
    #[serde(default)]
    pub(super) ports: Vec<Port>,
}

/// Whom a rule allows: a block, or pods, which are of the policy's namespace unless there is a
/// selector of namespaces, and all of them unless there is a selector of pods.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Peer {
    pub(super) ip_block: Option<Block>,
    pub(super) namespace_selector: Option<Selector>,
    pub(super) pod_selector: Option<Selector>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Block {
    pub(super) cidr: Cidr,
    #[serde(default)]
    pub(super) except: Vec<Cidr>,
}

/// A range of addresses without bits behind its prefix.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(try_from = "String")]
pub(super) struct Cidr(pub(super) IpNet);

/// Which ports a rule allows; all of the protocol without `port`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Port {
    #[serde(default)]
    pub(super) protocol: Protocol,
    pub(super) port: Option<PortName>,
    pub(super) end_port: Option<NonZeroU16>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum PortName {
    Name(String),
    Number(NonZeroU16),
}

impl Policy {
    pub(super) fn parse(object: &Value) -> Result<Self> {
        let policy = Self::deserialize(object)?;
        let Self { metadata, spec, .. } = &policy;
        check_labels(&metadata.labels)?;
        let name = &metadata.name;
        ensure!(is_subdomain(name), "{name:?} is no name of an object");
        spec.pod_selector.check()?;
        let ingress = spec.ingress.iter().map(|rule| (rule, &rule.to));
        let egress = spec.egress.iter().map(|rule| (rule, &rule.from));
        for (rule, others) in ingress.chain(egress) {
            ensure!(others.is_empty(), "a rule for the other direction");
            rule.peers().iter().try_for_each(Peer::check)?;
            rule.ports.iter().try_for_each(Port::check)?;
        }
        Ok(policy)
    }

    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// Returns the rules of a direction, `None` where the policy is not of that type. What does not
    /// say is of ingress, and of egress where it has rules for it.
    pub(super) fn rules(&self, direction: PolicyType) -> Option<&[Rule]> {
        let spec = &self.spec;
        let (rules, unsaid) = match direction {
            PolicyType::Egress => (&spec.egress, !spec.egress.is_empty()),
            PolicyType::Ingress => (&spec.ingress, true),
        };
        let types = &spec.policy_types;
        let applies = types.contains(&direction) || types.is_empty() && unsaid;
        applies.then_some(rules)
    }
}

impl Rule {
    /// Empty for everyone.
    pub(super) fn peers(&self) -> &[Peer] {
        let has_from = !self.from.is_empty();
        if has_from { &self.from } else { &self.to }
    }
}

impl Peer {
    fn check(&self) -> Result<()> {
        let selectors = [&self.namespace_selector, &self.pod_selector];
        let mut selectors = selectors.into_iter().flatten();
        match &self.ip_block {
            None => {
                ensure!(selectors.clone().count() > 0, "a peer says nothing");
                selectors.try_for_each(Selector::check)
            }
            Some(block) => {
                let alone = selectors.next().is_none();
                ensure!(alone, "an ipBlock goes with no selector");
                let cidr = block.cidr;
                let part = |except: &&Cidr| cidr.0.contains(&except.0) && cidr != **except;
                let whole = block.except.iter().find(|except| !part(except));
                ensure!(whole.is_none(), "{whole:?} is no part of {cidr:?}");
                Ok(())
            }
        }
    }
}

impl TryFrom<String> for Cidr {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let net: IpNet = text.parse().with_context(|| format!("reading {text}"))?;
        ensure!(net == net.trunc(), "{text} has bits behind its prefix");
        Ok(Self(net))
    }
}

impl Port {
    fn check(&self) -> Result<()> {
        match (&self.port, self.end_port) {
            (None | Some(PortName::Name(_)), Some(_)) => bail!("endPort without a number"),
            (Some(PortName::Name(name)), None) => {
                ensure!(is_port_name(name), "{name:?} is no name of a port");
            }
            (Some(PortName::Number(first)), Some(last)) => {
                ensure!(*first <= last, "{first} is behind {last}");
            }
            (None | Some(PortName::Number(_)), None) => {}
        }
        Ok(())
    }
}

/// A service name (RFC 6335, section 5.1), which Kubernetes wants in lower case.
fn is_port_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let known = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    !bytes.is_empty()
        && bytes.len() <= 15
        && bytes.iter().all(known)
        && bytes.iter().any(u8::is_ascii_lowercase)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}
