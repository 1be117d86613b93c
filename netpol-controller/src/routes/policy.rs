//! Cluster settings from Istio's `DestinationRule`s.
//!
//! The rule is found as Istio does: that of the gateway's namespace, else that of the Service's,
//! else that of the root namespace; a full name before a wildcard; the oldest of several. Subsets,
//! and what concerns HTTP, mean nothing here. TLS is never added: what passes is TLS already, from
//! end to end.

use std::time::Duration;

use route::{Balance, OutlierParams, ProxyVersion, TcpOptions};
use serde_json::Value;

use super::claims::Target;
use super::{GatewayEntry, ROOT_NAMESPACE, duration, select};
use crate::state::{
    ClusterState, DestinationRule, Kind, Mention, ObjectKey, ObjectRef, Protocol, service_of_host,
};

/// What a rule says; `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Policy {
    pub(super) balance: Option<Balance>,
    pub(super) zone_aware: Option<bool>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) max_connections: Option<u32>,
    pub(super) tcp: Option<TcpOptions>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) max_connection_age: Option<Duration>,
    /// `Some(None)` = endpoints are never ejected.
    pub(super) outlier: Option<Option<OutlierParams>>,
    pub(super) proxy_protocol: Option<ProxyVersion>,
}

/// Settings of a rule that are served in another way.
pub(super) type Adapted = Vec<(ObjectRef, String)>;

impl Policy {
    /// Returns what the rule for a port says, as a gateway sees it.
    pub(super) fn find(
        state: &ClusterState,
        entry: &GatewayEntry,
        target: &Target,
    ) -> (Self, Adapted) {
        if target.protocol != Protocol::Tcp {
            return (Self::default(), Vec::new());
        }
        let Some((key, rule)) = rule_for(state, entry, &target.service) else {
            return (Self::default(), Vec::new());
        };
        let mut reader = Reader {
            policy: Self::default(),
            wrong: Vec::new(),
        };
        reader.read(of_port(&rule.traffic_policy, target.port));
        let object = ObjectRef {
            kind: Kind::DestinationRule,
            key: key.clone(),
        };
        let adapted = reader.wrong.into_iter().map(|what| (object.clone(), what));
        (reader.policy, adapted.collect())
    }
}

/// Returns whether a rule is about exactly this Service and seen by the gateway.
pub(super) fn exposes(state: &ClusterState, entry: &GatewayEntry, service: &ObjectKey) -> bool {
    let mention = Mention::Namespace(service.namespace.clone());
    let mut rules = state.destination_rules.mentioning(&mention);
    rules.any(|(key, rule)| {
        service_of_host(&rule.host, &key.namespace).as_ref() == Some(service)
            && select::exported(&rule.export_to, &key.namespace, &entry.namespace)
    })
}

fn rule_for<'w>(
    state: &'w ClusterState,
    entry: &GatewayEntry,
    service: &ObjectKey,
) -> Option<(&'w ObjectKey, &'w DestinationRule)> {
    let mention = Mention::Namespace(service.namespace.clone());
    let all = state.destination_rules.mentioning(&mention);
    let ranked = all.filter_map(|(key, rule)| {
        if !select::exported(&rule.export_to, &key.namespace, &entry.namespace) {
            return None;
        }
        let namespace = &*key.namespace;
        let near = [&*entry.namespace, &*service.namespace, ROOT_NAMESPACE];
        let rank = near.iter().position(|own| *own == namespace)?;
        let exact = service_of_host(&rule.host, namespace).as_ref() == Some(service);
        let wild = rule.host == format!("*.{}.svc.cluster.local", service.namespace);
        (exact || wild).then_some(((!exact, rank, rule.created, key), (key, rule)))
    });
    ranked
        .min_by(|(a, _), (b, _)| a.cmp(b))
        .map(|(_, found)| found)
}

/// Returns the settings for a port; those of the port stand in place of all others.
fn of_port(policy: &Value, port: u16) -> &Value {
    let own = policy["portLevelSettings"].as_array().into_iter().flatten();
    let mut own = own.filter(|one| one["port"]["number"].as_u64() == Some(port.into()));
    own.next().unwrap_or(policy)
}

struct Reader {
    policy: Policy,
    wrong: Vec<String>,
}

impl Reader {
    fn read(&mut self, policy: &Value) {
        self.tcp(&policy["connectionPool"]["tcp"]);
        self.balance(&policy["loadBalancer"]);
        self.outlier(&policy["outlierDetection"]);
        match policy["tls"]["mode"].as_str() {
            None | Some("DISABLE") => {}
            Some(mode) => self.wrong.push(format!(
                "tls.mode {mode} is not followed: TLS passes from the client to the Service as it is"
            )),
        }
        // Istio's default of a `proxyProtocol` without a version is version 1.
        let proxy = &policy["proxyProtocol"];
        self.policy.proxy_protocol = proxy.is_object().then(|| {
            if proxy["version"] == "V2" {
                ProxyVersion::V2
            } else {
                ProxyVersion::V1
            }
        });
    }

    fn tcp(&mut self, tcp: &Value) {
        self.policy.max_connections = self.number(tcp, "maxConnections");
        self.policy.connect_timeout = self.duration(tcp, "connectTimeout");
        self.policy.idle_timeout = self.duration(tcp, "idleTimeout");
        self.policy.max_connection_age = self.duration(tcp, "maxConnectionDuration");
        let keepalive = &tcp["tcpKeepalive"];
        if keepalive.is_object() {
            let default = TcpOptions::default();
            self.policy.tcp = Some(TcpOptions {
                keepalive: self
                    .duration(keepalive, "time")
                    .unwrap_or(default.keepalive),
                keepalive_interval: self
                    .duration(keepalive, "interval")
                    .unwrap_or(default.keepalive_interval),
                keepalive_probes: self
                    .number(keepalive, "probes")
                    .filter(|probes| *probes > 0)
                    .unwrap_or(default.keepalive_probes),
                ..default
            });
        }
    }

    fn balance(&mut self, balancer: &Value) {
        self.policy.zone_aware = balancer["localityLbSetting"]["enabled"].as_bool();
        let hash = &balancer["consistentHash"];
        if hash["useSourceIp"] == Value::Bool(true) {
            self.policy.balance = Some(Balance::Maglev);
        } else if hash.is_object() {
            let what =
                "loadBalancer.consistentHash: only useSourceIp is known, the default is used";
            self.wrong.push(what.to_owned());
        }
        match balancer["simple"].as_str() {
            None | Some("UNSPECIFIED") => {}
            Some("LEAST_CONN" | "LEAST_REQUEST") => {
                self.policy.balance = Some(Balance::LeastRequest);
            }
            Some("RANDOM") => self.policy.balance = Some(Balance::Random),
            Some("ROUND_ROBIN") => self.policy.balance = Some(Balance::RoundRobin),
            Some(other) => self.wrong.push(format!(
                "loadBalancer.simple {other} is not known, the default is used"
            )),
        }
    }

    /// Failures that count here are those of connecting. Istio's default that a tenth may be
    /// ejected is not taken over: of the few replicas of an API server it would be none.
    fn outlier(&mut self, outlier: &Value) {
        if !outlier.is_object() {
            return;
        }
        let own = self.number(outlier, "consecutiveLocalOriginFailures");
        let split = outlier["splitExternalLocalOriginErrors"] == Value::Bool(true);
        let failures = match own.filter(|_| split) {
            Some(failures) => Some(failures),
            None => self.number(outlier, "consecutive5xxErrors"),
        };
        let mut params = OutlierParams::default();
        if failures == Some(0) {
            self.policy.outlier = Some(None);
            return;
        }
        if let Some(failures) = failures {
            params.consecutive_connect_failures = failures;
        }
        if let Some(ejection) = self.duration(outlier, "baseEjectionTime") {
            params.ejection = ejection;
        }
        if let Some(percent) = self.number(outlier, "maxEjectionPercent") {
            params.max_ejected_percent = u8::try_from(percent.min(100)).unwrap_or(100);
        }
        self.policy.outlier = Some(Some(params));
    }

    fn number(&mut self, message: &Value, name: &str) -> Option<u32> {
        let value = message.get(name).filter(|value| !value.is_null())?;
        let own = value.as_u64().and_then(|own| u32::try_from(own).ok());
        if own.is_none() {
            self.wrong.push(format!(
                "{name} is not a number from 0 on, the default is used"
            ));
        }
        own
    }

    fn duration(&mut self, message: &Value, name: &str) -> Option<Duration> {
        let value = message.get(name).filter(|value| !value.is_null())?;
        let own = value.as_str().and_then(duration::parse);
        if own.is_none() {
            self.wrong
                .push(format!("{name} is not a duration, the default is used"));
        }
        own
    }
}
