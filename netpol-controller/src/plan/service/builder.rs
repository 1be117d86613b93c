//! From grants to policies: names, rules, and the merging of policies of one name.
//!
//! Ingress policies of one name select the same pods, so their rules are put together. Egress
//! policies of one name are put together when they are of the same clients; the others get a hash
//! of their clients' selector at the end of their name.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::labels::hash;
use super::super::ports::Port;
use super::super::{Policy, SERVICE_NAME, SERVICE_NAMESPACE, describe, with_lists};
use super::Compatibility;
use crate::state::{LabelSelector, Labels, ObjectKey, is_subdomain};

const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Digits of the hashes in names; more where these are not enough.
const DIGITS: [usize; 3] = [5, 16, 64];

/// Pods that may reach a port of the Service's pods.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(in super::super) struct Grant<'a> {
    pub(in super::super) origin: Origin<'a>,
    pub(in super::super) namespace: Arc<str>,
    pub(in super::super) clients: LabelSelector,
    pub(in super::super) port: Port,
}

/// Why pods may reach a Service; the names of policies depend on it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(in super::super) enum Origin<'a> {
    /// They have a label that asks for it, of the Service's ports or of an alias.
    Label {
        /// The alias; empty for the Service's ports.
        alias: &'a str,
    },
    /// They serve an Ingress.
    IngressController,
    /// They are a gateway that leads to it.
    Gateway,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Egress,
    Ingress,
}

/// A policy before its name is final.
struct PolicyDraft {
    side: Side,
    pods: LabelSelector,
    sentences: Vec<String>,
    rules: Vec<Rule>,
}

#[derive(PartialEq)]
struct Rule {
    peers: Vec<Value>,
    ports: Vec<Value>,
}

pub(super) struct PolicyBuilder<'a> {
    mode: Compatibility,
    service: &'a ObjectKey,
    pods: LabelSelector,
    /// By where they lie and their names, before those are made distinct.
    builder: BTreeMap<ObjectKey, Vec<PolicyDraft>>,
    count: usize,
}

impl<'a> PolicyBuilder<'a> {
    pub(super) fn new(mode: Compatibility, service: &'a ObjectKey, selector: &Labels) -> Self {
        Self {
            mode,
            service,
            pods: LabelSelector::of_labels(selector.clone()),
            builder: BTreeMap::new(),
            count: 0,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds both policies of a grant.
    ///
    /// # Errors
    /// A name it would have, which is none an object may have.
    pub(super) fn grant(&mut self, grant: &Grant<'_>) -> Result<(), String> {
        let (ingress, egress) = names(self.service, grant);
        for name in [&ingress, &egress] {
            if !is_subdomain(name) {
                return Err(name.clone());
            }
        }
        let own = &*self.service.namespace;
        let within = &*grant.namespace == own;
        let peer = |namespace: &str, pods: &LabelSelector| {
            let mut peer = json!({"podSelector": pods});
            if !within {
                peer["namespaceSelector"] = json!({"matchLabels": {NAMESPACE_NAME: namespace}});
            }
            peer
        };
        let rule = |peer| Rule {
            peers: vec![peer],
            ports: vec![grant.port.to_json()],
        };
        let in_rule = rule(peer(&grant.namespace, &grant.clients));
        let out_rule = rule(peer(own, &self.pods));
        let sentence = describe::ingress(self.mode, self.service, grant);
        let pods = self.pods.clone();
        let key = ObjectKey::new(own, &ingress);
        self.add(key, Side::Ingress, pods, in_rule, sentence);
        let sentence = describe::egress(self.mode, self.service, grant);
        let key = ObjectKey {
            namespace: Arc::clone(&grant.namespace),
            name: egress.into(),
        };
        self.add(key, Side::Egress, grant.clients.clone(), out_rule, sentence);
        Ok(())
    }

    /// Adds the policy that admits all sources, at these ports, or at all ports if there are none.
    pub(super) fn everywhere(&mut self, ports: &[Port]) {
        let peers = match self.mode {
            Compatibility::Document => all_peers(),
            Compatibility::Upstream => Vec::new(),
        };
        let rule = Rule {
            peers,
            ports: ports.iter().map(Port::to_json).collect(),
        };
        let name = format!("ingress-to-{}-from-world", self.service.name);
        let key = ObjectKey::new(&self.service.namespace, &name);
        let sentence = describe::from_world(self.service, ports);
        self.add(key, Side::Ingress, self.pods.clone(), rule, sentence);
    }

    fn add(&mut self, key: ObjectKey, side: Side, pods: LabelSelector, rule: Rule, why: String) {
        let same = self.builder.entry(key).or_default();
        if let Some(draft) = same.iter_mut().find(|draft| draft.pods == pods) {
            draft.add(rule, why);
            return;
        }
        self.count += 1;
        same.push(PolicyDraft {
            side,
            pods,
            sentences: vec![why],
            rules: vec![rule],
        });
    }

    /// Returns the policies, sorted by key, with distinct keys.
    pub(super) fn finish(self) -> Vec<Policy> {
        let mut policies = BTreeMap::new();
        let mut others = Vec::new();
        for (key, builder) in self.builder {
            let mut builder = builder.into_iter();
            if let Some(first) = builder.next() {
                policies.insert(key.clone(), first);
            }
            others.extend(builder.map(|draft| (key.clone(), draft)));
        }
        for (key, draft) in others {
            let candidates = DIGITS
                .iter()
                .map(|digits| suffixed(&key, &draft.pods, *digits));
            let mut free = candidates.filter(|key| !policies.contains_key(key));
            if let Some(key) = free.next() {
                policies.insert(key, draft);
            }
        }
        let ObjectKey { namespace, name } = self.service;
        let labels = Labels::from([
            (SERVICE_NAME.to_owned(), name.to_string()),
            (SERVICE_NAMESPACE.to_owned(), namespace.to_string()),
        ]);
        let finished = policies.into_iter();
        finished
            .map(|(key, draft)| draft.finish(key, labels.clone()))
            .collect()
    }
}

impl PolicyDraft {
    fn add(&mut self, rule: Rule, why: String) {
        if !self.sentences.contains(&why) {
            self.sentences.push(why);
        }
        if let Some(own) = self.rules.iter_mut().find(|own| own.ports == rule.ports) {
            for peer in rule.peers {
                if !own.peers.contains(&peer) {
                    own.peers.push(peer);
                }
            }
        } else if let Some(own) = self.rules.iter_mut().find(|own| own.peers == rule.peers) {
            own.ports.extend(rule.ports);
        } else {
            self.rules.push(rule);
        }
    }

    fn finish(self, key: ObjectKey, labels: Labels) -> Policy {
        let (name, rules, peers) = match self.side {
            Side::Egress => ("Egress", "egress", "to"),
            Side::Ingress => ("Ingress", "ingress", "from"),
        };
        let each = self.rules.into_iter();
        let each =
            each.map(|rule| with_lists(json!({}), [(peers, rule.peers), ("ports", rule.ports)]));
        let spec = json!({
            "podSelector": self.pods,
            "policyTypes": [name],
            rules: each.collect::<Vec<_>>(),
        });
        Policy {
            key,
            labels,
            description: self.sentences.join(" "),
            spec,
        }
    }
}

fn names(service: &ObjectKey, grant: &Grant<'_>) -> (String, String) {
    let client = &*grant.namespace;
    let within = client == &*service.namespace;
    let id = format!("{}-{}", service.name, grant.port.id());
    let outside = |text: String| if within { String::new() } else { text };
    let long = outside(format!("{}-", service.namespace)) + &id;
    match grant.origin {
        Origin::Label { alias } => {
            let via = match alias {
                "" => String::new(),
                alias => format!("-via-{alias}"),
            };
            let from = outside(format!("-from-{client}"));
            (
                format!("ingress-to-{id}{via}{from}"),
                format!("egress-to-{long}{via}"),
            )
        }
        Origin::IngressController => (
            format!("ingress-to-{id}-from-ingress-controller"),
            format!("egress-to-{long}-from-ingress-controller"),
        ),
        Origin::Gateway => {
            let client = if within { "istio" } else { client };
            (
                format!("ingress-to-{id}-from-{client}"),
                format!("egress-to-{long}-from-istio"),
            )
        }
    }
}

/// All pods of the cluster, and all addresses of both families.
fn all_peers() -> Vec<Value> {
    let block = |cidr: &str| json!({"ipBlock": {"cidr": cidr}});
    let pods = json!({"namespaceSelector": {}, "podSelector": {}});
    vec![pods, block("0.0.0.0/0"), block("::/0")]
}

fn suffixed(key: &ObjectKey, clients: &LabelSelector, digits: usize) -> ObjectKey {
    // Serialising maps and lists of strings cannot fail; an empty text would only cost the hash
    // its distinctness, which is looked at.
    let text = serde_json::to_vec(clients).unwrap_or_default();
    let name = format!("{}-{}", key.name, hash(&text, digits));
    ObjectKey::new(&key.namespace, &name)
}
