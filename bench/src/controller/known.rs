//! What the controller is held to, at the sizes that are measured by default.

use super::figure as of;
use crate::report::Known;
use crate::samples::{Bound, Figure};

/// From an empty cluster to all policies.
pub(crate) const CONVERGE: &str = "policies from none";
/// One Service after the other gets another port.
pub(crate) const SERVICE: &str = "one service changes";
/// A second controller finds everything as it should be.
pub(crate) const RESTART: &str = "restart, nothing to do";
/// Services become routes.
pub(crate) const TRANSLATE: &str = "routes from none";
/// A gateway is started.
pub(crate) const SYNC: &str = "a gateway's first sync";
/// One endpoint after the other gets another address.
pub(crate) const ENDPOINT: &str = "one endpoint changes";
/// A namespace with a routed Service is created.
pub(crate) const SHOOT: &str = "one shoot comes";

/// Looks up the bound of a figure.
pub(crate) fn known(case: &str, figure: Figure) -> Known {
    let bound = |at_most| Known {
        must: Some(Bound::AtMost(at_most)),
        peer: None,
    };
    match (case, figure) {
        (CONVERGE | SERVICE | RESTART, of::NEEDLESS) => bound(0.0),
        (CONVERGE | RESTART, of::PEAK) => bound(60.0),
        (SERVICE, of::DELAY_P99) => bound(250.0),
        (SYNC, of::SYNC) => bound(2000.0),
        (ENDPOINT, of::DELAY_P99) => bound(100.0),
        // Its assignment, and what frames it.
        (ENDPOINT, of::OCTETS) => bound(1024.0),
        (SHOOT, of::OCTETS) => bound(8192.0),
        _ => Known::default(),
    }
}
