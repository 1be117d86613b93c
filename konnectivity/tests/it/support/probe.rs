//! What a program says about itself on its health port.

use std::net::SocketAddr;

use testkit::http::{Connection, Response, Target};
use testkit::metrics::Metrics;
use testkit::wait;

use super::LIMIT;

/// What the names of a server's metrics begin with.
pub(crate) const SERVER: &str = "konnectivity_network_proxy_server_";
/// What the names of an agent's metrics begin with.
pub(crate) const AGENT: &str = "konnectivity_network_proxy_agent_";

/// The health port of a running program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe(pub(crate) SocketAddr);

impl Probe {
    pub(crate) fn get(self, path: &str) -> Response {
        let mut connection = Connection::open(&Target::plain(self.0)).unwrap();
        connection.get(path).unwrap()
    }

    pub(crate) fn readiness(self) -> u16 {
        self.get("/readyz").status
    }

    pub(crate) fn wait_ready(self, wanted: u16) {
        self.wait_status("/readyz", wanted);
    }

    pub(crate) fn wait_status(self, path: &str, wanted: u16) {
        let mut last = 0;
        let reached = wait::until(&format!("{path} {wanted}"), LIMIT, || {
            last = self.get(path).status;
            last == wanted
        });
        assert!(reached.is_ok(), "{reached:?}; last {last}");
    }

    pub(crate) fn metrics(self) -> Metrics {
        Metrics::parse(&self.get("/metrics").text()).unwrap()
    }

    /// Returns a sum of samples, 0 when there is none.
    pub(crate) fn value(self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metrics().value(name, labels).unwrap_or(0.0)
    }

    /// Waits until the samples add up to `wanted`.
    pub(crate) fn wait_value(self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        let mut last = None;
        let reached = wait::until(&format!("{name}{labels:?} = {wanted}"), LIMIT, || {
            last = self.metrics().value(name, labels);
            last.unwrap_or(0.0) == wanted
        });
        assert!(reached.is_ok(), "{reached:?}; last seen: {last:?}");
    }
}
