//! Answers of API servers to requests for leases, as upstream labels them.

use std::time::Duration;

use telemetry::metrics::{CounterFamily, HistogramFamily};

use super::{AgentMetrics, ServerMetrics};
use crate::lease::LeaseMetrics;

impl LeaseMetrics for ServerMetrics {
    fn listed(&self, code: u16, reason: &str, took: Duration) {
        let families = (&self.lease_lists, &self.lease_list_latency);
        count(families, code, reason, took);
    }

    fn deleted(&self, code: u16, reason: &str, took: Duration) {
        let families = (&self.lease_deletes, &self.lease_delete_latency);
        count(families, code, reason, took);
    }

    fn culled(&self) {
        self.culled_leases.inc();
    }
}

/// An agent deletes nothing.
impl LeaseMetrics for AgentMetrics {
    fn listed(&self, code: u16, reason: &str, took: Duration) {
        let families = (&self.lease_lists, &self.lease_list_latency);
        count(families, code, reason, took);
    }

    fn deleted(&self, _: u16, _: &str, _: Duration) {}

    fn culled(&self) {}
}

/// A reason that is not among those of Kubernetes is counted as `Unknown`.
fn count(
    (total, latency): (&CounterFamily, &HistogramFamily),
    code: u16,
    reason: &str,
    took: Duration,
) {
    let code = if (100..600).contains(&code) { code } else { 0 };
    let code = code.to_string();
    let mut known = REASONS.split(' ').chain([""]);
    let reason = known.find(|known| *known == reason).unwrap_or("Unknown");
    total.with(&[&code, reason]).inc();
    latency.with(&[&code]).observe_duration(took);
}

/// Values of `metav1.StatusReason`.
const REASONS: &str = "AlreadyExists BadRequest Conflict Expired Forbidden Gone InternalError \
                       Invalid MethodNotAllowed NotAcceptable NotFound RequestEntityTooLarge \
                       ServerTimeout ServiceUnavailable StoreReadError Timeout TooManyRequests \
                       Unauthorized UnsupportedMediaType";
