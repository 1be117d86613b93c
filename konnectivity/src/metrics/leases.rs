//! How an API server answered a request for leases, as upstream labels it.
//!
//! Watches count as lists, as with upstream, whose own family for them stays empty.

use std::time::Duration;

use super::{AgentMetrics, ServerMetrics};
use crate::lease::LeaseMetrics;

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseAnswer<'a> {
    /// The HTTP status; 200 for anything that went well.
    pub(super) code: u16,
    /// The `reason` of the `Status` object, empty for anything that went well. One that is not
    /// among those of Kubernetes is counted as `Unknown`.
    pub(super) reason: &'a str,
    /// How long it took.
    pub(super) elapsed: Duration,
}

impl LeaseAnswer<'_> {
    pub(super) fn code_label(&self) -> String {
        let code = if (100..600).contains(&self.code) {
            self.code
        } else {
            0
        };
        code.to_string()
    }

    pub(super) fn reason_label(&self) -> &'static str {
        let known = REASONS.iter().find(|&&reason| reason == self.reason);
        known.copied().unwrap_or("Unknown")
    }
}

impl LeaseMetrics for ServerMetrics {
    fn listed(&self, code: u16, reason: &str, took: Duration) {
        self.leases_listed(answer(code, reason, took));
    }

    fn deleted(&self, code: u16, reason: &str, took: Duration) {
        self.lease_deleted(answer(code, reason, took));
    }

    fn culled(&self) {
        self.lease_culled();
    }
}

/// An agent only looks at leases.
impl LeaseMetrics for AgentMetrics {
    fn listed(&self, code: u16, reason: &str, took: Duration) {
        self.leases_listed(answer(code, reason, took));
    }

    fn deleted(&self, _code: u16, _reason: &str, _took: Duration) {}

    fn culled(&self) {}
}

fn answer(code: u16, reason: &str, elapsed: Duration) -> LeaseAnswer<'_> {
    LeaseAnswer {
        code,
        reason,
        elapsed,
    }
}

/// Values of `metav1.StatusReason`, and the empty one.
const REASONS: [&str; 20] = [
    "",
    "AlreadyExists",
    "BadRequest",
    "Conflict",
    "Expired",
    "Forbidden",
    "Gone",
    "InternalError",
    "Invalid",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "RequestEntityTooLarge",
    "ServerTimeout",
    "ServiceUnavailable",
    "StoreReadError",
    "Timeout",
    "TooManyRequests",
    "Unauthorized",
    "UnsupportedMediaType",
];
