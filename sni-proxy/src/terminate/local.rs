//! Runs what hyper starts beside a connection on the worker's own thread.

use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::timeout;

use super::exchange::GRACE;

/// Starts tasks on the current thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalExecutor(Option<Duration>);

impl LocalExecutor {
    /// Ends each task after `limit`: a request of HTTP/2 with its answer, whichever side is slow. A little later, so
    /// that one without an answer is told so.
    pub(crate) fn within(limit: Duration) -> Self {
        Self(Some(limit + GRACE))
    }
}

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, future: F) {
        // No block around both: it would take the place of each.
        match self.0 {
            Some(limit) => drop(spawn_local(timeout(limit, future))),
            None => drop(spawn_local(future)),
        }
    }
}
