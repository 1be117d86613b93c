//! Leases of servers (`coordination.k8s.io/v1`): how servers and agents know how many there are.
//!
//! ```text
//!     server ──renews its own every 15 s──▶ leases of one label ◀──watches── agent
//!            ──deletes what expired──────▶       │                             │
//!            ◀──counts the valid─────────────────┘                             └──▶ counts the valid
//! ```
//!
//! A lease is valid for its duration after it was renewed, by the clock of who looks. Connects to
//! no server: what the numbers are for is the server's and the agent's.

mod count;
mod labels;
mod own;
mod sweep;
mod validity;

use std::sync::Arc;
use std::time::Duration;

pub use count::{LeaseCount, LeaseCountParams};
pub use labels::{LabelError, LeaseLabels};
pub use own::{ServerLease, ServerLeaseParams};
use validity::{is_valid, valid_until};

/// What is counted of the requests that have to do with leases.
///
/// `code` is the HTTP status of the answer and `reason` the API server's own word for a failure,
/// empty on success. A request that was not answered is not counted.
pub trait LeaseMetrics: Send + Sync {
    /// The leases were listed, or a watch of them was refused, which upstream counts with lists.
    fn listed(&self, code: u16, reason: &str, took: Duration);
    /// One expired lease was asked to be deleted.
    fn deleted(&self, code: u16, reason: &str, took: Duration);
    /// One expired lease is gone because of this process.
    fn culled(&self);
}

/// Where the counts go.
pub type SharedLeaseMetrics = Arc<dyn LeaseMetrics>;

/// Returns the status and the reason of an answer that was a failure; `None` when there was none.
fn failure(error: &kube::Error) -> Option<(u16, &str)> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    Some((status.code, status.reason.as_str()))
}

/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
