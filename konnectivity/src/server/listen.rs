//! Where connections come in: ports with TLS, and sockets of the file system.
//!
//! ```text
//!   agents' port, frontends' port ──accept──▶ TLS ──▶ whose? ──▶ agents::serve, Frontend::serve
//!   sockets, one per tenant ───────accept───────────────────▶ Frontend::serve
//! ```
//!
//! A connection stays on the thread that accepted it. What may be open at once is bounded, and who
//! does not get through a handshake in time is closed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use rustls::pki_types::UnixTime;
use serve::{Admission, Permit, Phase};
use telemetry::{AcceptBackoff, FairPermit, FairPermits};
use tokio::net::{TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::agents;
use super::context::{Context, HANDSHAKE};
use super::frontends::Frontend;
use super::sockets::Listen;
use super::tenant::Tenant;
use crate::fair_share::FairScheduler;
use crate::metrics::{Direction, PeerPort};
use crate::read_budget::ReadBudget;
use crate::registry::{FrontendMode, Peer, Port, TenantSource};
use crate::relay::{Means, Scratch};

/// What may be open at once, over all workers.
#[derive(Clone)]
pub(crate) struct Admissions {
    all: Arc<Admission>,
    /// By [`Port`], for handshakes: strangers of one port or source must not lock out others.
    strangers: [Arc<FairPermits>; 2],
}

impl Admissions {
    pub(crate) fn new(limit: u64) -> Self {
        let strangers = usize::try_from(limit / 4).unwrap_or(usize::MAX).max(1);
        Self {
            all: Admission::new(limit, 0),
            strangers: [(); 2].map(|()| FairPermits::new(strangers)),
        }
    }

    fn stranger(&self, port: Port, source: IpAddr) -> Option<FairPermit> {
        self.strangers[port as usize].take(serve::source_key(source))
    }
}

/// One worker's connections.
pub(crate) struct Worker {
    cx: Arc<Context>,
    admission: Admissions,
    scratch: Scratch,
    /// Where several tenants share the thread.
    shares: Option<FairScheduler>,
    /// Each connection of an agent has a receiver.
    agents: watch::Sender<()>,
}

impl Worker {
    pub(crate) fn new(cx: Arc<Context>, admission: Admissions) -> Rc<Self> {
        let many = matches!(cx.config.tenants, TenantSource::Registry(_));
        Rc::new(Self {
            cx,
            admission,
            scratch: Scratch::default(),
            shares: many.then(FairScheduler::default),
            agents: watch::Sender::default(),
        })
    }

    /// Does for ever what several tenants need who share the thread; spawn it once.
    pub(crate) async fn share_out(self: Rc<Self>) {
        if let Some(shares) = &self.shares {
            shares.run().await;
        }
    }

    /// Serves a connection that was accepted on `port`.
    pub(crate) fn accepted(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr, port: Port) {
        let worker = Rc::clone(self);
        let Some(permit) = self.admit(peer_port(port)) else {
            return;
        };
        let Some(stranger) = self.admission.stranger(port, peer.ip()) else {
            return self.cx.metrics.peer_refused(peer_port(port), "limit");
        };
        let open = match port {
            Port::Agents => self.agents.subscribe(),
            Port::Frontends => self.cx.frontends.subscribe(),
        };
        tokio::task::spawn_local(async move {
            worker.serve(stream, peer, port, stranger).await;
            drop((open, permit));
        });
    }

    fn admit(&self, port: PeerPort) -> Option<Permit> {
        let permit = self.admission.all.permit();
        if permit.is_none() {
            self.cx.metrics.peer_refused(port, "limit");
        }
        permit
    }

    async fn serve(&self, stream: TcpStream, from: SocketAddr, port: Port, stranger: FairPermit) {
        let mode = self.cx.config.tls.frontend_mode;
        let metrics = &self.cx.metrics;
        let before = self.cx.registry.current();
        // Moved, so that the connection does not keep a registry that was replaced.
        let choose = move |name: Option<&str>| before.tls(port, name);
        let stream = ReadBudget::new(stream);
        let flow = stream.flow();
        let accepted = connect::accept_tls_by_name(stream, choose, HANDSHAKE).await;
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let reason = error.reason();
                tracing::debug!(%from, reason, error = %telemetry::chain(&error), "TLS handshake failed");
                return metrics.peer_refused(peer_port(port), reason);
            }
        };
        let name = accepted.server_name;
        let (_, session) = accepted.stream.get_ref();
        let wants_h2 = port == Port::Agents || mode == FrontendMode::Grpc;
        if wants_h2 && session.alpn_protocol() != Some(b"h2") {
            // As gRPC's own servers do.
            tracing::debug!(%from, "peer without ALPN h2 refused");
            return metrics.peer_refused(peer_port(port), "alpn");
        }
        // As it is now: what was taken away during the handshake is not let in.
        let tenants = self.cx.registry.current();
        let (certs, now) = (session.peer_certificates(), UnixTime::now());
        let identity = tenants.identify(port, name.as_deref(), certs, now);
        drop(tenants);
        let identity = match identity {
            Ok(identity) => identity,
            Err(refused) => {
                let reason = refused.as_str();
                if let Some(suppressed) = self.cx.refusals.permit(reason) {
                    tracing::info!(%from, %refused, suppressed, "peer refused");
                }
                return metrics.peer_refused(peer_port(port), reason);
            }
        };
        match (port, identity) {
            (Port::Agents, peer) => {
                let share = (flow, self.shares.clone());
                // On the heap, so that frontends' connections need no place for it.
                let serve = agents::serve(accepted.stream, peer, from, stranger, share, &self.cx);
                Box::pin(serve).await;
            }
            (Port::Frontends, Peer::Certified(spec)) => {
                drop(stranger);
                let tenant = self.cx.tenant(&spec);
                if let Some(frontend) = self.frontend(tenant, PeerPort::Frontends, from, name) {
                    // On the heap: each future that takes it over has a place of its own for it.
                    frontend.serve(Box::new(accepted.stream), mode).await;
                }
            }
            // Frontends have no tokens.
            (Port::Frontends, Peer::ByToken { .. }) => {}
        }
    }

    /// Lets a connection of an API server in, if its tenant is still served and has not too many.
    fn frontend(
        &self,
        tenant: Option<Arc<Tenant>>,
        port: PeerPort,
        peer: SocketAddr,
        server_name: Option<String>,
    ) -> Option<Frontend> {
        let tenant = tenant?;
        let Some(open) = tenant.accept_frontend(port) else {
            tracing::debug!(%peer, tenant = %tenant.id(), "too many frontend connections");
            return None;
        };
        Some(Frontend {
            _open: open,
            cx: Arc::clone(&self.cx),
            means: Means {
                scratch: self.scratch.clone(),
                share: (self.shares.as_ref()).map(|shares| shares.share(tenant.id())),
                outward: Direction::ToDestination,
                write_duration: Some(self.cx.metrics.frontend_write_duration.clone()),
            },
            tenant,
            port,
            peer,
            server_name,
            started: Instant::now(),
        })
    }

    /// Accepts frontends of a tenant until the process drains or `stop` ends.
    pub(crate) async fn listen_unix(self: Rc<Self>, listen: Listen) {
        let Listen {
            listener,
            tenant,
            mode,
            mut stop,
        } = listen;
        let listener = match UnixListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%tenant, %error, "socket unusable"),
        };
        let mut backoff = AcceptBackoff::default();
        loop {
            let accepted = tokio::select! {
                // The queue is emptied before the socket is closed.
                biased;
                accepted = listener.accept() => accepted,
                () = self.cx.drain.reached(Phase::Closing) => return,
                _ = stop.changed() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    backoff.accepted();
                    let Some(permit) = self.admit(PeerPort::Uds) else {
                        continue;
                    };
                    let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                    let served = self.cx.tenant_of_socket(&tenant);
                    let Some(frontend) = self.frontend(served, PeerPort::Uds, unspecified, None)
                    else {
                        continue;
                    };
                    let open = self.cx.frontends.subscribe();
                    tokio::task::spawn_local(async move {
                        frontend.serve(stream, mode).await;
                        drop((open, permit));
                    });
                }
                Err(error) => {
                    if let Some(pause) = backoff.failed(&tenant, &error) {
                        sleep(pause).await;
                    }
                }
            }
        }
    }

    /// Waits for the frontends of every worker to end, which agents serve, then ends the agents'
    /// connections; the process waits for nothing longer than its drain allows.
    pub(crate) async fn finish(&self) {
        let quiet = async {
            self.cx.frontends.closed().await;
            // What frontends have sent last is still on its way.
            while self.cx.tunnels_under_way() > 0 {
                sleep(GLANCE).await;
            }
        };
        tokio::select! {
            () = quiet => {}
            () = self.cx.drain.reached(Phase::Cut) => {}
        }
        for tenant in self.cx.tenants() {
            tenant.close_links("the server ends");
        }
        drop(timeout(FLUSH_TIMEOUT, self.agents.closed()).await);
    }
}

fn peer_port(port: Port) -> PeerPort {
    match port {
        Port::Agents => PeerPort::Agents,
        Port::Frontends => PeerPort::Frontends,
    }
}

/// How often it is looked whether tunnels are still under way at the end.
const GLANCE: std::time::Duration = std::time::Duration::from_millis(10);
/// How long agents' connections may take to be told of the end.
const FLUSH_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_leave_permits_to_other_sources() {
        let admission = Admissions::new(32);
        let [first, second] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let take = |port, source| admission.stranger(port, source);
        let held: Vec<_> = std::iter::from_fn(|| take(Port::Agents, first)).collect();
        assert_eq!(held.len(), 4);
        assert!(take(Port::Agents, second).is_some());
        assert!(take(Port::Frontends, first).is_some());
    }
}
