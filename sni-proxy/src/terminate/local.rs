//! Runs what hyper starts beside a connection on the worker's own thread.

use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::timeout;

use super::exchange::GRACE;

/// Starts tasks on the current thread, and ends each after this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor(Duration);

impl LocalExecutor {
    /// Ends a request of HTTP/2 with its answer after `limit`, whichever side is slow. A little later, so that one
    /// without an answer is told so.
    pub(crate) fn within(limit: Duration) -> Self {
        Self(limit + GRACE)
    }
}

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, future: F) {
        drop(spawn_local(timeout(self.0, future)));
    }
}
