//! How an API server answered a request for leases, as upstream labels it.

use std::time::Duration;

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseAnswer<'a> {
    /// The HTTP status; 200 for anything that went well.
    pub(crate) code: u16,
    /// The `reason` of the `Status` object, empty for anything that went well. One that is not
    /// among those of Kubernetes is counted as `Unknown`.
    pub(crate) reason: &'a str,
    /// How long it took.
    pub(crate) elapsed: Duration,
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
