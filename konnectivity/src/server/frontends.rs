//! A frontend: one connection of an API server, over whatever it came.
//!
//! ```text
//!   UDS ────────────────────┐
//!   TCP ──▶ TLS, identity ──┴▶ Frontend ──▶ HTTP CONNECT, or gRPC
//! ```
//!
//! Holds what both ways of asking need. Which tenant a connection is of was settled before.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use connect::Stream;
use knp_proto::DialTarget;
use serve::Phase;
use telemetry::access_log::AccessRecord;
use tokio::time::Instant;

use super::context::Context;
use super::tenant::{Dialed, Tenant, TunnelError};
use super::{grpc_frontend, http_frontend};
use crate::metrics::PeerPort;
use crate::registry::FrontendMode;
use crate::relay::Means;

/// One connection, and whose it is.
pub(crate) struct Frontend {
    pub(crate) cx: Arc<Context>,
    pub(crate) tenant: Arc<Tenant>,
    /// Counts the connection toward the tenant's limit.
    pub(crate) _open: Arc<()>,
    pub(crate) means: Means,
    /// Where it came.
    pub(crate) port: PeerPort,
    /// Unspecified over a Unix socket.
    pub(crate) peer: SocketAddr,
    pub(crate) server_name: Option<String>,
    pub(crate) started: Instant,
}

impl Frontend {
    /// Serves the connection to its end.
    pub(crate) async fn serve<S>(self, stream: S, mode: FrontendMode)
    where
        S: Stream + 'static,
    {
        match mode {
            FrontendMode::Grpc => grpc_frontend::serve(stream, Rc::new(self)).await,
            FrontendMode::HttpConnect => http_frontend::serve(stream, &self).await,
        }
    }

    /// Asks an agent of the tenant for a connection. Dropping the future calls the dial off.
    pub(crate) async fn dial(&self, target: DialTarget) -> Result<Dialed, TunnelError> {
        let started = Instant::now();
        let address = target.address.clone();
        let result = self.tenant.dial(target, self.cx.config.dial_timeout).await;
        match &result {
            Ok(dialed) => {
                (self.cx.metrics.dial_duration).observe_duration(started.elapsed());
                tracing::debug!(tenant = %self.tenant.id(), address, agent = %dialed.agent, "dialed");
            }
            Err(error) => {
                tracing::debug!(tenant = %self.tenant.id(), address, %error, "dial failed");
            }
        }
        result
    }

    /// Waits until the connection is to be cut, and says why. Cancel-safe.
    pub(crate) async fn cut(&self) -> &'static str {
        tokio::select! {
            () = self.tenant.removed() => "removed",
            () = self.cx.drain.reached(Phase::Cut) => "drained",
        }
    }

    /// Writes the access-log line of one tunnel that was asked for at `started`, or of a connection that got none,
    /// with the bytes received and sent.
    pub(crate) fn log(
        &self,
        started: Instant,
        target: Option<&str>,
        (received, sent): (u64, u64),
        reason: &'static str,
    ) {
        if !self.cx.access_log.is_on() {
            return;
        }
        self.cx.access_log.write(&AccessRecord {
            time: SystemTime::now(),
            listener: self.port.as_str(),
            protocol: "konnectivity",
            peer: self.peer,
            client: self.peer,
            server_name: self.server_name.as_deref(),
            alpn: None,
            destination: None,
            connect: target,
            cluster: Some(self.tenant.id().as_str()),
            endpoint: None,
            rx_bytes: received,
            tx_bytes: sent,
            duration: started.elapsed(),
            reason,
        });
    }
}
