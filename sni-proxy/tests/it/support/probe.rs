//! What a gateway says about itself on its probe and admin addresses.

use std::net::SocketAddr;

use serde_json::Value;
use testkit::http::{Connection, Response, Target};
use testkit::metrics::Metrics;
use testkit::wait;

use super::LIMIT;

/// The two addresses of a running gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) probes: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Probe {
    pub(crate) fn ask(addr: SocketAddr, method: &str, path: &str) -> Response {
        let mut connection = Connection::open(&Target::plain(addr)).unwrap();
        connection.request(method, path, None).unwrap()
    }

    pub(crate) fn admin_json(&self, path: &str) -> Value {
        let answer = Self::ask(self.admin, "GET", path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json().unwrap()
    }

    pub(crate) fn readiness(&self) -> u16 {
        Self::ask(self.probes, "GET", "/readyz").status
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::parse(&Self::ask(self.probes, "GET", "/metrics").text()).unwrap()
    }

    /// Returns a sum of samples, 0 when there is none yet.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metrics().value(name, labels).unwrap_or(0.0)
    }

    /// Waits until the samples add up to `wanted`.
    pub(crate) fn wait_value(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        let mut last = None;
        let reached = wait::until(&format!("{name}{labels:?} = {wanted}"), LIMIT, || {
            last = self.metrics().value(name, labels);
            last.unwrap_or(0.0) == wanted
        });
        assert!(reached.is_ok(), "{reached:?}; last seen: {last:?}");
    }

    /// Waits until `listener` has closed `count` connections for `reason`.
    pub(crate) fn wait_closed(&self, listener: &str, reason: &str, count: u32) {
        let labels = [("listener", listener), ("reason", reason)];
        let name = "rhizome_connections_closed_total";
        self.wait_value(name, &labels, f64::from(count));
    }

    /// Waits until no connection is open.
    pub(crate) fn wait_idle(&self) {
        self.wait_value("rhizome_listener_connections_active", &[], 0.0);
    }

    /// Waits until the snapshot in effect is number `generation`.
    pub(crate) fn wait_generation(&self, generation: u32) {
        self.wait_value("rhizome_snapshot_generation", &[], f64::from(generation));
    }

    /// Returns the open connections as `/connections` shows them.
    pub(crate) fn connections(&self) -> Vec<Value> {
        let answer = self.admin_json("/connections");
        answer["connections"].as_array().unwrap().clone()
    }
}
