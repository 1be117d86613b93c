//! A thread with a single-threaded runtime that serves until its value is dropped.

use std::future::Future;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::sync::oneshot;

/// A service on a thread of its own. Dropping it ends every task of the service at its next await.
#[derive(Debug)]
pub struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread named `name` that runs the future which `make` builds inside the runtime.
    pub fn spawn<F, M>(name: &str, make: M) -> Result<Self>
    where
        F: Future<Output = ()>,
        M: FnOnce() -> F + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("building a runtime")?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        () = make() => {}
                        _ = stopped => {}
                    }
                });
            })
            .context("starting a thread")?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
