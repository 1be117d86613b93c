//! Expands the rules of CONNECT requests against the known clusters.

use std::collections::HashMap;

use crate::decode::Named;
use crate::decode::http::{Action, ConnectRules, Rule};
use crate::decode::parts::Matcher;

/// The header's values that lead somewhere, each once.
pub(super) struct ConnectRoutes<'r> {
    pub(super) routes: Vec<ConnectRoute<'r>>,
    /// Which rules have no effect, and why.
    pub(super) shadowed: Vec<String>,
    /// The rules of values; only looked up.
    taken: HashMap<&'r str, &'r Rule>,
    /// Patterns of earlier rules, which come first.
    earlier: Vec<&'r Matcher>,
}

/// A value of the header, and where it leads.
pub(super) struct ConnectRoute<'r> {
    pub(super) value: &'r str,
    pub(super) cluster: &'r str,
    pub(super) rule: &'r Rule,
}

impl<'r> ConnectRoutes<'r> {
    /// Goes through the rules as if every value that may count had been asked for. A rule whose
    /// cluster is named by the header leads to each cluster whose name it matches.
    pub(super) fn find(rules: &'r ConnectRules, clusters: &'r Named) -> Self {
        let mut found = Self {
            routes: Vec::new(),
            shadowed: Vec::new(),
            taken: HashMap::new(),
            earlier: Vec::new(),
        };
        for rule in &rules.rules {
            if let Matcher::Exact(value) = &rule.matcher {
                found.exact(value, rule, clusters);
            } else {
                found.pattern(&rule.matcher, rule, clusters);
            }
        }
        found
    }

    fn exact(&mut self, value: &'r str, rule: &'r Rule, clusters: &'r Named) {
        if !self.free(value) {
            // The same again, by another header, is how Envoy is reported two headers.
            let same = self
                .taken
                .get(value)
                .is_some_and(|first| rule.does_as(first));
            if rule.action != Action::Answer && !same {
                let why = "an earlier route takes its requests";
                self.shadowed.push(format!("{}: {why}", rule.place));
            }
            return;
        }
        let cluster = match &rule.action {
            Action::Cluster(cluster) => Some(cluster.as_str()),
            Action::ClusterHeader => clusters.contains_key(value).then_some(value),
            Action::Answer => None,
        };
        self.take(value, cluster, rule);
    }

    fn pattern(&mut self, pattern: &'r Matcher, rule: &'r Rule, clusters: &'r Named) {
        if rule.action == Action::ClusterHeader {
            for name in clusters.keys() {
                if pattern.matches(name) && self.free(name) {
                    self.take(name, Some(name), rule);
                }
            }
        }
        self.earlier.push(pattern);
    }

    fn free(&self, value: &str) -> bool {
        !self.taken.contains_key(value)
            && !self.earlier.iter().any(|earlier| earlier.matches(value))
    }

    fn take(&mut self, value: &'r str, cluster: Option<&'r str>, rule: &'r Rule) {
        self.taken.insert(value, rule);
        if let Some(cluster) = cluster {
            self.routes.push(ConnectRoute {
                value,
                cluster,
                rule,
            });
        }
    }
}
