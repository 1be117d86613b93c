//! One connection that a server asked for, from the dial to its end.
//!
//! ```text
//! PendingDial ──dial──▶ established ──relay──▶ linger ──▶ closed, or reset
//!       └──called off──▶ dropped          └──failed──▶ the text is answered
//! ```
//!
//! An idle tunnel holds no buffer, and what only dialing needs is given back when it is over.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::relay::{linger, reset_on_close, reset_when_sent};
use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::dial::{DialError, DialFault, Dialer};
use crate::link::PendingDial;
use crate::metrics::{AgentMetrics, Direction, EndpointDialFailure};
use crate::relay::{ByteCounts, Means, RelayEnd, Scratch, relay};

/// How long a destination may take to close a connection after all was sent to it. Closing under
/// it while it still sends would discard what it has not taken yet. Also the time for it to receive
/// what was read for it before it is reset.
const LINGER: Duration = Duration::from_secs(10);

/// Connections that may linger at once; those above it are closed right away.
const MAX_LINGERING: usize = 1000;

/// What the tunnels of a thread share.
#[derive(Debug)]
pub(super) struct Tunnels {
    pub(super) dialer: Dialer,
    pub(super) metrics: Arc<AgentMetrics>,
    means: Means,
    /// Held by each tunnel while it is relayed, then while it lingers.
    active: Rc<()>,
    lingering: Rc<()>,
    /// When the last one ended.
    ended: Cell<Instant>,
}

impl Tunnels {
    pub(super) fn new(dialer: Dialer, metrics: Arc<AgentMetrics>) -> Rc<Self> {
        Rc::new(Self {
            dialer,
            metrics,
            means: Means {
                scratch: Scratch::default(),
                share: None,
                write_duration: None,
                outward: Direction::FromDestination,
            },
            active: Rc::default(),
            lingering: Rc::default(),
            ended: Cell::new(Instant::now()),
        })
    }

    /// Returns since when there has been no tunnel; nothing while there is one, or a destination
    /// still takes the last of one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let idle = Rc::strong_count(&self.active) == 1 && Rc::strong_count(&self.lingering) == 1;
        idle.then(|| self.ended.get())
    }

    /// Serves one tunnel until it is over.
    pub(super) async fn serve(self: Rc<Self>, pending: PendingDial) {
        let stream = {
            let _active = Rc::clone(&self.active);
            let stream = self.open_and_relay(pending).await;
            self.ended.set(Instant::now());
            stream
        };
        if let Some((mut stream, clean)) = stream
            && Rc::strong_count(&self.lingering) <= MAX_LINGERING
        {
            let _lingering = Rc::clone(&self.lingering);
            match clean {
                true => linger(&mut stream, LINGER, MAX_DISCARDED).await,
                false => reset_when_sent(&stream, LINGER).await,
            }
        }
    }

    /// Returns a connection that is to be closed with patience, and whether nothing is missing.
    async fn open_and_relay(&self, pending: PendingDial) -> Option<(TcpStream, bool)> {
        let started = Instant::now();
        let dialing = {
            let target = pending.target.clone();
            let dialer = &self.dialer;
            // On the heap while it lasts: the tunnel is what stays.
            Box::pin(async move { dialer.dial(&target.protocol, &target.address).await })
        };
        let dialed = tokio::select! {
            dialed = dialing => dialed,
            () = pending.canceled() => {
                tracing::debug!(address = pending.target.address, "dial canceled");
                return None;
            }
        };
        let mut stream = match dialed {
            Ok(stream) => {
                (self.metrics.dial_duration).observe_duration(started.elapsed());
                stream
            }
            Err(error) => {
                self.count(&error);
                tracing::debug!(address = pending.target.address, %error, "dial failed");
                pending.failed(error.to_string());
                return None;
            }
        };
        let tunnel = pending.established().ok()?;
        let _open = self.metrics.endpoint_connection();
        let bytes = ByteCounts::default();
        match relay(tunnel, &mut stream, Bytes::new(), &self.means, &bytes).await {
            RelayEnd::Tunnel(reason) => {
                let clean = reason.is_clean();
                if !clean {
                    // One that was cut short must not be taken for complete.
                    reset_on_close(&stream);
                }
                Some((stream, clean))
            }
            RelayEnd::Socket(error) => {
                tracing::debug!(%error, "destination connection failed");
                None
            }
        }
    }

    fn count(&self, error: &DialError) {
        if matches!(error.fault, DialFault::Forbidden(..)) {
            self.metrics.destinations_refused.inc();
        }
        self.metrics.dial_failure(if error.fault.is_timeout() {
            EndpointDialFailure::Timeout
        } else {
            EndpointDialFailure::Unknown
        });
    }
}

/// Bytes that a destination may still send after the end was sent to it.
const MAX_DISCARDED: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::Registry;

    #[tokio::test]
    async fn an_idle_tunnel_is_small() {
        use crate::agent::dial::DialParams;
        use knp_proto::{
            Budget, DialTarget, Event, Extensions, Link, LinkConfig, Packet, StreamId, Tenant,
            TenantId, TenantLimits,
        };
        let metrics = AgentMetrics::new(&Registry::new());
        let tunnels = Tunnels::new(Dialer::new(DialParams::default()), metrics.clone());
        let tenant = Tenant::new(
            TenantId::new("c"),
            TenantLimits::default(),
            Budget::new(1 << 20),
        );
        let config = LinkConfig::default();
        let mut link = Link::agent(&tenant, StreamId(1), Extensions::ALL, config);
        let request = Packet::DialRequest {
            protocol: "tcp".to_owned(),
            address: "127.0.0.1:1".to_owned(),
            random: knp_proto::DialId(1),
        };
        link.handle_packet(crate::link::now(), request).unwrap();
        let Some(Event::Dial(tunnel, target)) = link.poll_event() else {
            panic!("a request is an event");
        };
        let target: DialTarget = target;
        let link = crate::link::LinkHandle::new(link, Arc::clone(&metrics.link));
        let serving = tunnels.serve(link.pending(tunnel, target));
        assert!(size_of_val(&serving) <= 1024, "{}", size_of_val(&serving));
    }
}
