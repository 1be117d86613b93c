//! What connections of the proxy are served with.

use std::sync::Arc;

use serve::{Accepting, Admission, WorkerHandle};
use telemetry::AccessLog;
use tls::ServerTls;
use tokio::sync::watch;
use tunnel::Status;

use super::names::Names;
use super::shoot::Shoot;
use crate::config::{Limits, ProxyConfig};
use crate::metrics::ProxyMetrics;

/// What all workers share; nothing in it is locked on a connection's path.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ProxyConfig,
    pub(crate) limits: Limits,
    /// Where connections may go.
    pub(crate) shoot: Shoot,
    pub(crate) tls: ServerTls,
    pub(crate) status: watch::Receiver<Arc<Status>>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) accepting: Accepting,
    pub(crate) listeners: serve::Metrics,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) access_log: AccessLog,
}

/// One worker thread's state.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) handle: WorkerHandle,
    /// Absent when no DNS server is configured.
    pub(super) names: Option<Names>,
}
