//! What the controller is held to, at the sizes that are measured by default.

use super::figure as of;
use crate::report::{Bound, Figure, Known};

/// From an empty cluster to all policies.
pub(crate) const CONVERGE: &str = "policies from none";
/// One Service after the other gets another port.
pub(crate) const SERVICE: &str = "one service changes";
/// A second controller finds everything as it should be.
pub(crate) const RESTART: &str = "restart, nothing to do";
pub(crate) const TRANSLATE: &str = "routes from none";
pub(crate) const SYNC: &str = "a gateway's first sync";
pub(crate) const ENDPOINT: &str = "one endpoint changes";
/// A namespace with a routed Service is created.
pub(crate) const SHOOT: &str = "one shoot comes";

/// Connections are held through gateways while routes change.
pub(crate) const CHURN: &str = "churn";
/// Of those changes, until a new connection goes to an endpoint's new address.
pub(crate) const MOVED: &str = "churn, an endpoint moves";
/// Of those changes, until a new connection by a shoot's new name arrives.
pub(crate) const NAMED: &str = "churn, a name comes";

/// Looks up the bound of a figure; `by_default` tells whether sizes are the default ones.
pub(crate) fn known(by_default: bool, case: &str, figure: Figure) -> Known {
    let must = match (case, figure) {
        (CHURN, of::LOST) => Some(Bound::AtMost(0.0)),
        _ => must(case, figure).filter(|_| by_default),
    };
    Known { must, peer: None }
}

fn must(case: &str, figure: Figure) -> Option<Bound> {
    Some(Bound::AtMost(match (case, figure) {
        (CONVERGE | SERVICE | RESTART, of::NEEDLESS) => 0.0,
        (CONVERGE | RESTART, of::PEAK) => 60.0,
        (SERVICE, of::DELAY_P99) => 250.0,
        (SYNC, of::SYNC) => 2000.0,
        (ENDPOINT, of::DELAY_P99) => 100.0,
        // Its assignment, and what frames it.
        (ENDPOINT, of::BYTES) => 1024.0,
        (SHOOT, of::BYTES) => 8192.0,
        // 2 KiB each.
        (CHURN, of::PER_10K) => 20.0,
        // Else they are not the changes a second that were asked for.
        (CHURN, of::CHANGES) => return Some(Bound::AtLeast(9.5)),
        // Shorter than a user waits.
        (MOVED | NAMED, of::DELAY_P99) => 1000.0,
        _ => return None,
    }))
}
