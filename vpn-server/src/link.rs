//! What this program needs of the tunnel while it serves.
//!
//! A seam: the proxy, the probes and the reloads work with whatever keeps to it.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tokio::sync::watch;
use tunnel::{Identity, IdentityError, Status, Tunnel, TunnelError};

/// The tunnels of this process.
pub trait Link: Clone + Send + Sync + 'static {
    /// Takes over a TCP connection that was accepted on the tunnel's port.
    fn accept(&self, stream: TcpStream, from: SocketAddr);

    /// Tells every client to choose another server. Cancel-safe.
    fn drain(&self) -> impl Future<Output = ()> + Send;

    /// Replaces keys and peers.
    ///
    /// # Errors
    /// Why they cannot be used together; the previous ones stay.
    fn replace(&self, identity: Identity)
    -> impl Future<Output = Result<(), IdentityError>> + Send;

    /// Ends all tunnels. Cancel-safe.
    fn stop(&self) -> impl Future<Output = ()> + Send;

    /// Returns a receiver of what is known of the tunnels; it fails once they have ended.
    fn watch(&self) -> watch::Receiver<Arc<Status>>;
}

impl Link for Tunnel {
    fn accept(&self, stream: TcpStream, from: SocketAddr) {
        Self::accept(self, stream, from);
    }

    async fn drain(&self) {
        // A tunnel that has ended is reported elsewhere, once.
        let _ = Self::drain(self).await;
    }

    async fn replace(&self, identity: Identity) -> Result<(), IdentityError> {
        match Self::replace(self, identity).await {
            Err(TunnelError::Identity(error)) => Err(error),
            // As above.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn stop(&self) {
        Self::stop(self).await;
    }

    fn watch(&self) -> watch::Receiver<Arc<Status>> {
        Self::watch(self)
    }
}
