//! Cluster settings from Istio's `DestinationRule`s.
//!
//! The rule is found as Istio does: that of the gateway's namespace, else that of the Service's,
//! else that of the root namespace; a full name before a wildcard; the oldest of several. Subsets,
//! and what concerns HTTP, mean nothing here. TLS is never added to what passes through, which is TLS
//! already, from end to end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use route::{Balance, ClusterSpec, OutlierParams, ProxyVersion, TcpOptions};
use serde_json::Value;
use settings::{GoDuration, TcpSettings};

use super::claims::{Target, Times};
use super::{GatewayEntry, ROOT_NAMESPACE, select};
use crate::state::{
    ClusterState, DestinationRule, Kind, Mention, ObjectKey, ObjectRef, Protocol, service_of_host,
};

/// Settings of a rule that are served in another way.
pub(super) type Adapted = Vec<(ObjectRef, String)>;

/// Sets in a cluster what the rule for its port says, as a gateway sees it. Returns the timeouts
/// of its routes.
pub(super) fn apply(
    state: &ClusterState,
    entry: &GatewayEntry,
    target: &Target,
    cluster: &mut ClusterSpec,
) -> (Times, Adapted) {
    let rule = (target.protocol == Protocol::Tcp).then(|| rule_for(state, entry, &target.service));
    let Some((key, rule)) = rule.flatten() else {
        return (Times::default(), Vec::new());
    };
    let mut reader = Reader {
        cluster,
        times: Times::default(),
        terminates: entry.terminates_tls && target.service.name.ends_with("kube-apiserver"),
        wrong: Vec::new(),
    };
    reader.read(of_port(&rule.traffic_policy, target.port));
    let object = ObjectRef::new(Kind::DestinationRule, key);
    let adapted = reader.wrong.into_iter().map(|what| (object.clone(), what));
    (reader.times, adapted.collect())
}

/// Returns whether a rule is about exactly this Service, and holds for it at the gateway.
pub(super) fn exposes(state: &ClusterState, entry: &GatewayEntry, service: &ObjectKey) -> bool {
    let mention = Mention::Namespace(service.namespace.clone());
    let mut rules = state.destination_rules.mentioning(&mention);
    rules.any(|(key, rule)| {
        rank(entry, key, service).is_some()
            && service_of_host(&rule.host, &key.namespace).as_ref() == Some(service)
            && select::exported(&rule.export_to, &key.namespace, &entry.namespace)
    })
}

/// Returns what the rule for a port of a Service sets, as a gateway sees it.
pub(super) fn of_service<'w>(
    state: &'w ClusterState,
    entry: &GatewayEntry,
    service: &ObjectKey,
    port: u16,
) -> Option<&'w Value> {
    let (_, rule) = rule_for(state, entry, service)?;
    Some(of_port(&rule.traffic_policy, port))
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
        let rank = rank(entry, key, service)?;
        let exact = service_of_host(&rule.host, &key.namespace).as_ref() == Some(service);
        let wild = rule.host == format!("*.{}.svc.cluster.local", service.namespace);
        (exact || wild).then_some(((!exact, rank, rule.created, key), (key, rule)))
    });
    ranked
        .min_by(|(a, _), (b, _)| a.cmp(b))
        .map(|(_, found)| found)
}

/// Returns the place of a rule's namespace among those whose rules hold for a Service.
fn rank(entry: &GatewayEntry, rule: &ObjectKey, service: &ObjectKey) -> Option<usize> {
    let near = [&*entry.namespace, &*service.namespace, ROOT_NAMESPACE];
    near.iter().position(|own| *own == &*rule.namespace)
}

/// Returns the settings for a port; those of the port stand in place of all others.
fn of_port(policy: &Value, port: u16) -> &Value {
    let own = policy["portLevelSettings"].as_array().into_iter().flatten();
    let mut own = own.filter(|one| one["port"]["number"].as_u64() == Some(port.into()));
    own.next().unwrap_or(policy)
}

struct Reader<'c> {
    cluster: &'c mut ClusterSpec,
    times: Times,
    /// TLS ends in the gateway, and begins anew.
    terminates: bool,
    wrong: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, policy: &Value) {
        self.tcp(&policy["connectionPool"]["tcp"]);
        self.balance(&policy["loadBalancer"]);
        self.outlier(&policy["outlierDetection"]);
        match policy["tls"]["mode"].as_str() {
            None | Some("DISABLE") => {}
            Some(_) if self.terminates => {}
            Some(mode) => self.wrong.push(format!(
                "tls.mode {mode} is not followed: TLS passes from the client to the Service as it is"
            )),
        }
        // Istio's default of a `proxyProtocol` without a version is version 1.
        let proxy = &policy["proxyProtocol"];
        self.cluster.send_proxy_protocol = proxy.is_object().then(|| {
            if proxy["version"] == "V2" {
                ProxyVersion::V2
            } else {
                ProxyVersion::V1
            }
        });
    }

    fn tcp(&mut self, tcp: &Value) {
        if let Some(max) = self.number(tcp, "maxConnections") {
            self.cluster.max_connections = max;
        }
        let timeout = self.duration(tcp, "connectTimeout");
        if let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) {
            self.cluster.connect_timeout = timeout;
        }
        self.times.idle_timeout = self.duration(tcp, "idleTimeout");
        self.times.max_connection_age = self.duration(tcp, "maxConnectionDuration");
        let keepalive = &tcp["tcpKeepalive"];
        if keepalive.is_object() {
            let mut options = TcpOptions::default();
            if let Some(time) = self.duration(keepalive, "time") {
                options.keepalive = self.at_most("time", time, TcpSettings::MAX_KEEPALIVE);
            }
            if let Some(interval) = self.duration(keepalive, "interval") {
                let most = TcpSettings::MAX_KEEPALIVE;
                options.keepalive_interval = self.at_most("interval", interval, most);
            }
            if let Some(probes) = self.number(keepalive, "probes").filter(|own| *own > 0) {
                let most = TcpSettings::MAX_KEEPALIVE_PROBES;
                options.keepalive_probes = self.at_most("probes", probes, most);
            }
            self.cluster.tcp = Some(Arc::new(options));
        }
    }

    fn balance(&mut self, balancer: &Value) {
        if let Some(enabled) = balancer["localityLbSetting"]["enabled"].as_bool() {
            self.cluster.zone_aware = enabled;
        }
        let hash = &balancer["consistentHash"];
        if hash["useSourceIp"] == Value::Bool(true) {
            self.cluster.balance = Balance::Maglev;
        } else if hash.is_object() {
            let what =
                "loadBalancer.consistentHash: only useSourceIp is known, the default is used";
            self.wrong.push(what.to_owned());
        }
        match balancer["simple"].as_str() {
            None | Some("UNSPECIFIED") => {}
            Some("LEAST_CONN" | "LEAST_REQUEST") => self.cluster.balance = Balance::LeastRequest,
            Some("RANDOM") => self.cluster.balance = Balance::Random,
            Some("ROUND_ROBIN") => self.cluster.balance = Balance::RoundRobin,
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
            self.cluster.outlier = None;
            return;
        }
        if let Some(failures) = failures {
            params.consecutive_connect_failures = failures;
        }
        if let Some(ejection) = self.duration(outlier, "baseEjectionTime") {
            if ejection.is_zero() {
                let what = "baseEjectionTime is zero, the default is used";
                self.wrong.push(what.to_owned());
            } else {
                params.ejection = ejection;
            }
        }
        if let Some(percent) = self.number(outlier, "maxEjectionPercent") {
            params.max_ejected_percent = u8::try_from(percent.min(100)).unwrap_or(100);
        }
        self.cluster.outlier = Some(params);
    }

    /// Returns what a kernel takes of a value: with another one no connection would be made.
    fn at_most<T: fmt::Debug + Ord>(&mut self, name: &str, value: T, most: T) -> T {
        if value <= most {
            return value;
        }
        let what = format!("tcpKeepalive.{name} is more than {most:?}, which is used");
        self.wrong.push(what);
        most
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
        let own = value
            .as_str()
            .and_then(|text| text.parse().map(GoDuration::get).ok());
        if own.is_none() {
            self.wrong
                .push(format!("{name} is not a duration, the default is used"));
        }
        own
    }
}
