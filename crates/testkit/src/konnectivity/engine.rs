//! A runtime on a thread of its own that fakes of one kind share, and blocking waits for it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::runtime::Handle;

use crate::background::Background;

/// A shared runtime. When the last of its users goes, so do its tasks and their sockets.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    handle: Handle,
    /// Absent in what the runtime's own tasks hold, which must not keep it alive.
    _thread: Option<Arc<Background>>,
}

impl Engine {
    pub(super) fn start(name: &str) -> Result<Self> {
        let thread = Background::spawn(name, std::future::pending)?;
        Ok(Self {
            handle: thread.handle().clone(),
            _thread: Some(Arc::new(thread)),
        })
    }

    /// Returns the same runtime for its own tasks.
    pub(super) fn inside(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            _thread: None,
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Blocks the calling thread, which must not be the runtime's own.
    pub(super) fn wait<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let bounded = async { tokio::time::timeout(limit, future).await };
        self.handle.block_on(bounded).ok()
    }
}
