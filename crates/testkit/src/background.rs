//! A thread with a single-threaded runtime that serves until its value is dropped.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A service on a thread of its own. Dropping it ends every task of the service at its next await.
#[derive(Debug)]
pub struct Background {
    handle: Handle,
    // Dropped in this order: the service is told to end, then waited for.
    _stop: oneshot::Sender<()>,
    _thread: Joined,
}

impl Background {
    /// Starts a thread named `name` that runs the future which `make` builds inside the runtime.
    pub fn spawn<F, M>(name: &str, make: M) -> Result<Self>
    where
        F: Future<Output = ()>,
        M: FnOnce() -> F + Send + 'static,
    {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().context("building a runtime")?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = Joined::spawn(name, move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = make() => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self {
            handle,
            _stop: stop,
            _thread: thread,
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// A thread that is waited for when its value is dropped.
#[derive(Debug)]
pub struct Joined(Option<JoinHandle<()>>);

impl Joined {
    /// Starts a thread named `name`. Its owner tells it to end before this is dropped.
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Self> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(work).context("starting a thread")?;
        Ok(Self(Some(thread)))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts connections and has each served by a task of its own.
pub async fn accept<S>(
    listener: std::net::TcpListener,
    mut serve: impl FnMut(TcpStream, SocketAddr) -> S,
) where
    S: Future<Output = ()> + Send + 'static,
{
    let listener = listener.set_nonblocking(true).map(|()| listener);
    // It is bound, so all that can fail here is the runtime's own descriptor.
    let Ok(listener) = listener.and_then(TcpListener::from_std) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => drop(tokio::spawn(serve(stream, peer))),
            // Out of descriptors: let some close.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
