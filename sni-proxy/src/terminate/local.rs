//! Runs what hyper starts beside a connection on the worker's own thread.

use std::time::Duration;

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
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        let limit = self.0;
        tokio::task::spawn_local(async move {
            match limit {
                Some(limit) => drop(tokio::time::timeout(limit, future).await),
                None => drop(future.await),
            }
        });
    }
}
