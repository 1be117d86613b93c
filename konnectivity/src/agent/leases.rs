//! Counts servers by their leases, where that was asked for.
//!
//! Only connects [`LeaseCount`] with the agent's settings and metrics.

use std::sync::Arc;

use tokio::sync::watch;

use super::config::LeaseParams;
use crate::api_server::ApiServer;
use crate::lease::{LeaseCount, LeaseCountParams};
use crate::metrics::AgentMetrics;

/// Counts for ever on the current runtime; without `params` nothing is ever counted. Returns the
/// count, which stays as it is when what counts has ended.
pub(super) fn count(
    params: Option<&LeaseParams>,
    metrics: &AgentMetrics,
) -> (Option<LeaseCount>, watch::Receiver<Option<u32>>) {
    let Some(params) = params else {
        return (None, watch::channel(None).1);
    };
    let api = ApiServer::new(params.kubeconfig.clone());
    let which = LeaseCountParams {
        namespace: params.namespace.clone(),
        selector: params.selector.clone(),
    };
    let (counting, count) = LeaseCount::new(api, which, Arc::new(metrics.clone()));
    (Some(counting), count)
}
