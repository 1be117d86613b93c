//! NetworkPolicy objects, read as strictly as an API server checks them.

use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::Protocol;
use super::cidr::Cidr;
use super::selector::{Selector, check_key, check_value, is_subdomain};

/// A NetworkPolicy.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) namespace: String,
    name: String,
    pub(super) pods: Selector,
    /// What may enter them; `None` when it does not say.
    pub(super) ingress: Option<Vec<Rule>>,
    /// What may leave them; `None` when it does not say.
    pub(super) egress: Option<Vec<Rule>>,
}

/// What one rule allows: some peers, at some ports.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// Empty for everyone.
    pub(super) peers: Vec<PeerRule>,
    /// Empty for all ports of all protocols.
    pub(super) ports: Vec<(Protocol, PortRule)>,
}

/// Whom a rule allows.
#[derive(Clone, Debug)]
pub(super) enum PeerRule {
    Block {
        cidr: Cidr,
        except: Vec<Cidr>,
    },
    /// Pods: of the policy's namespace unless there is a selector of namespaces; all of them unless
    /// there is a selector of pods.
    Pods {
        namespaces: Option<Selector>,
        pods: Option<Selector>,
    },
}

/// Which ports a rule allows.
#[derive(Clone, Debug)]
pub(super) enum PortRule {
    All,
    Named(String),
    Range(RangeInclusive<u16>),
}

impl Policy {
    pub(super) fn parse(object: &Value) -> Result<Self> {
        let object = fields(object, &["apiVersion", "kind", "metadata", "spec"])?;
        let metadata = object.get("metadata").context("no metadata")?;
        let labels = metadata.get("labels").and_then(Value::as_object);
        for (key, value) in labels.into_iter().flatten() {
            check_key(key)?;
            check_value(&text(value)?)?;
        }
        let place = |key| text(metadata.get(key).with_context(|| format!("no {key}"))?);
        let (namespace, name) = (place("namespace")?, place("name")?);
        ensure!(is_subdomain(&name), "{name:?} is no name of an object");
        let spec = object.get("spec").context("no spec")?;
        let spec = fields(spec, &["podSelector", "policyTypes", "ingress", "egress"])?;
        let rules = |key, peers| -> Result<Vec<Rule>> {
            let rules = list(spec.get(key))?.iter();
            rules.map(|rule| Rule::parse(rule, peers)).collect()
        };
        let (ingress, egress) = (rules("ingress", "from")?, rules("egress", "to")?);
        let types = types(spec.get("policyTypes"), !egress.is_empty())?;
        let selector = spec.get("podSelector");
        Ok(Self {
            namespace,
            name,
            pods: selector
                .map(Selector::parse)
                .transpose()?
                .unwrap_or_default(),
            ingress: Some(ingress).filter(|_| types.0),
            egress: Some(egress).filter(|_| types.1),
        })
    }

    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Reads whether a policy is of type ingress and egress. What does not say is of ingress, and of
/// egress where it has rules for it.
fn types(value: Option<&Value>, has_egress: bool) -> Result<(bool, bool)> {
    let mut types = (false, false);
    for value in list(value)? {
        match text(value)?.as_str() {
            "Ingress" => types.0 = true,
            "Egress" => types.1 = true,
            other => bail!("{other:?} is no type of policy"),
        }
    }
    if types == (false, false) {
        return Ok((true, has_egress));
    }
    Ok(types)
}

impl Rule {
    fn parse(value: &Value, peers: &str) -> Result<Self> {
        let rule = fields(value, &[peers, "ports"])?;
        let peers = list(rule.get(peers))?.iter().map(PeerRule::parse);
        let ports = list(rule.get("ports"))?.iter().map(PortRule::parse);
        Ok(Self {
            peers: peers.collect::<Result<_>>()?,
            ports: ports.collect::<Result<_>>()?,
        })
    }
}

impl PeerRule {
    fn parse(value: &Value) -> Result<Self> {
        let peer = fields(value, &["ipBlock", "namespaceSelector", "podSelector"])?;
        ensure!(!peer.is_empty(), "a peer says nothing");
        let Some(block) = peer.get("ipBlock") else {
            let selector = |key| peer.get(key).map(Selector::parse).transpose();
            return Ok(Self::Pods {
                namespaces: selector("namespaceSelector")?,
                pods: selector("podSelector")?,
            });
        };
        ensure!(peer.len() == 1, "an ipBlock goes with no selector");
        let block = fields(block, &["cidr", "except"])?;
        let cidr = Cidr::parse(&text(block.get("cidr").context("no cidr")?)?)?;
        let mut exceptions = Vec::new();
        for value in list(block.get("except"))? {
            let except = Cidr::parse(&text(value)?)?;
            ensure!(cidr.has_part(except), "{value} is no part of {cidr:?}");
            exceptions.push(except);
        }
        Ok(Self::Block {
            cidr,
            except: exceptions,
        })
    }
}

impl PortRule {
    fn parse(value: &Value) -> Result<(Protocol, Self)> {
        let entry = fields(value, &["endPort", "port", "protocol"])?;
        let protocol = match entry.get("protocol").map(text).transpose()?.as_deref() {
            None | Some("TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(other) => bail!("{other:?} is no protocol"),
        };
        let last = entry.get("endPort").map(number).transpose()?;
        let port = match entry.get("port") {
            None => {
                ensure!(last.is_none(), "endPort without port");
                Self::All
            }
            Some(Value::String(name)) => {
                ensure!(last.is_none(), "endPort with the named port {name:?}");
                ensure!(is_port_name(name), "{name:?} is no name of a port");
                Self::Named(name.clone())
            }
            Some(first) => {
                let first = number(first)?;
                let last = last.unwrap_or(first);
                ensure!(first <= last, "{first} is behind {last}");
                Self::Range(first..=last)
            }
        };
        Ok((protocol, port))
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

fn number(value: &Value) -> Result<u16> {
    let number = value.as_u64().and_then(|number| number.try_into().ok());
    number
        .filter(|number| *number != 0)
        .with_context(|| format!("{value} is no port"))
}

/// Returns the fields of an object that may have these.
pub(super) fn fields<'a>(value: &'a Value, known: &[&str]) -> Result<&'a Map<String, Value>> {
    let object = value
        .as_object()
        .with_context(|| format!("{value} is no object"))?;
    for key in object.keys() {
        ensure!(
            known.contains(&key.as_str()),
            "the field {key:?} is not known"
        );
    }
    Ok(object)
}

/// Returns the elements of a list, none when it is absent.
pub(super) fn list(value: Option<&Value>) -> Result<&[Value]> {
    match value {
        None => Ok(&[]),
        Some(value) => Ok(value
            .as_array()
            .with_context(|| format!("{value} is no list"))?),
    }
}

pub(super) fn text(value: &Value) -> Result<String> {
    let text = value
        .as_str()
        .with_context(|| format!("{value} is no text"))?;
    Ok(text.to_owned())
}
