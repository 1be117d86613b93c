//! WireGuard listeners: one UDP port for the tunnels of all shoots, without any of their keys.
//!
//! ```text
//!     clients ═UDP═▶ socket ─▶ router ─▶ outbox ═UDP, wrapped═▶ server of the route
//!                     (one per worker)  ▲ │
//!                                scanner┘ └ flows: clients heard from, by route
//!     clients ◀═UDP═ outbox ◀─ router ◀─ socket ◀═UDP, wrapped═ server
//! ```
//!
//! A datagram says where it goes: by the route id in its reserved bytes, by the index of its
//! receiver, or, a handshake of a client that knows nothing of us, by whose key it was made with.
//! So nothing need be remembered across a restart. What is remembered, the flows, are the clients that may
//! be sent answers. Both directions are handled in batches on the worker that the kernel chose for
//! the client, and nothing is shared between workers but counters and the scanner.
//!
//! Opens no datagram, keeps no key, decides nothing about roaming, and stores nothing.

use std::future::pending;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::pin;
use std::rc::Rc;

use serve::{AskedFlows, MovableFlows, MovingFlows, Phase};
use telemetry::Throttle;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tunnel_proto::datagram::INITIATION_LEN;
use tunnel_proto::wrapped;
use udp::{BufferSizes, Datagrams, Inbox, MtuDiscovery, Offloads, Options, Outbox};

mod dropped;
mod flow;
mod flows;
mod metrics;
mod router;
mod scanner;

use self::dropped::Dropped;
use self::router::{Answer, Router, Verdict};
use self::scanner::{Handshake, Scanned};
use crate::worker::{Listener, Worker};

pub(crate) use self::metrics::Metrics;
pub(crate) use self::scanner::Scanner;

/// How often flows are looked at that may have ended.
const TICK: Duration = Duration::from_secs(1);

/// A forwarder does not choose the sizes.
const OPTIONS: Options = Options {
    mtu_discovery: MtuDiscovery::Fragment,
    offloads: Offloads {
        gso: true,
        gro: true,
    },
};

/// Handshakes whose keys were tried and that wait for their worker.
const SCANNED: usize = 512;

/// Forwards the datagrams of one listener on one worker until the process is cut, another one has the flows, or
/// it drains and has no proven flow left on any worker. While it drains it begins no flow, unless another process
/// shares its port. Dropping the future ends all flows.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    listener: Rc<Listener>,
    table: MovingFlows,
    scanner: Scanner,
) -> io::Result<()> {
    let drain = worker.shared.accepting.drain.clone();
    let (answers, mut scanned) = mpsc::channel(SCANNED);
    let movable = worker.handle.movable.flows(&listener.context.name);
    let [downstream, upstream] = table.sockets;
    let own = worker.shared.datagrams.read(&downstream)?;
    let mut forwarder = Forwarder {
        downstream: Datagrams::new(downstream, OPTIONS)?,
        upstream: Datagrams::new(upstream, OPTIONS)?,
        inbox: Inbox::default(),
        to_servers: Outbox::default(),
        to_clients: Outbox::default(),
        router: Router::new(&worker, &listener, now()),
        scanner,
        answers,
    };
    forwarder.router.adopt(now(), table.flows);
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut closing = pin!(drain.reached(Phase::Closing));
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            () = &mut closing, if !draining => {
                draining = true;
                forwarder.router.refusing = !own.is_shared();
            },
            asked = asked(movable.as_ref()) => if forwarder.give(asked).await {
                return Ok(());
            },
            _ = tick.tick() => {
                forwarder.router.expire(now());
                // The kernel leads some clients here while its socket is open, even if another process serves.
                forwarder.router.refusing = draining && !own.is_shared();
            },
            Some(scanned) = scanned.recv() => forwarder.scanned(scanned),
            readable = forwarder.downstream.readable() => readable?,
            readable = forwarder.upstream.readable() => readable?,
        }
        let now = now();
        forwarder.router.follow(now);
        let moved = forwarder.forward_servers(now) + forwarder.forward_clients(now);
        if draining && worker.shared.flows.connections() == 0 {
            return Ok(());
        }
        if moved > 0 {
            yield_now().await; // to the connections of this worker
        }
    }
}

/// Opens the sockets of `tables` tables of a listener: on its address, and toward servers at any address, with a
/// port of the kernel's choice.
pub(crate) fn open(
    address: SocketAddr,
    tables: usize,
    sizes: BufferSizes,
) -> io::Result<Vec<[UdpSocket; 2]>> {
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let with_upstream = |socket| {
        let upstream = udp::bind(any, 1, sizes)?.pop();
        Ok([socket, upstream.ok_or(io::ErrorKind::AddrNotAvailable)?])
    };
    let sockets = udp::bind(address, tables, sizes)?;
    sockets.into_iter().map(with_upstream).collect()
}

async fn asked(movable: Option<&MovableFlows>) -> AskedFlows {
    match movable {
        Some(movable) => movable.asked().await,
        None => pending().await,
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// The sockets of one listener on one worker, and what is between them.
#[derive(Debug)]
struct Forwarder {
    downstream: Datagrams,
    upstream: Datagrams,
    inbox: Inbox,
    to_servers: Outbox,
    to_clients: Outbox,
    router: Router,
    scanner: Scanner,
    answers: mpsc::Sender<Scanned>,
}

impl Forwarder {
    /// Offers the sockets and flows to another process: true if it has them. Nothing is read meanwhile.
    async fn give(&mut self, asked: AskedFlows) -> bool {
        let (downstream, upstream) = match (self.downstream.share(), self.upstream.share()) {
            (Ok(downstream), Ok(upstream)) => (downstream, upstream),
            (Err(error), _) | (_, Err(error)) => {
                // It is asked again every 50 ms.
                static LIMIT: Throttle = Throttle::new(Duration::from_secs(10));
                if let Some(suppressed) = LIMIT.permit(now()) {
                    tracing::warn!(%error, suppressed, "flows cannot be handed over");
                }
                return false;
            }
        };
        let moved = asked.give(MovingFlows {
            listener: self.router.listener_name().to_owned(),
            sockets: [downstream, upstream],
            flows: self.router.describe(now()),
        });
        let moved = moved.await;
        if moved {
            self.router.leave();
        }
        moved
    }

    /// Forwards one batch of clients' datagrams; the number of messages it had.
    fn forward_clients(&mut self, now: std::time::Instant) -> usize {
        let filled = self.downstream.receive(&mut self.inbox);
        for mut run in self.inbox.runs(filled) {
            let from @ (client, local) = (run.sender, run.local);
            let head = wrapped::header(client);
            for datagram in run.datagrams() {
                let verdict = self.router.client_sent(now, from, datagram);
                let done = verdict.and_then(|verdict| match verdict {
                    Verdict::Forward(server) => {
                        let parts = (&head[..], &*datagram);
                        self.to_servers.push(&self.upstream, server, None, parts);
                        Ok(())
                    }
                    Verdict::Scan => {
                        let handshake: &[u8; INITIATION_LEN] =
                            (&*datagram).try_into().map_err(|_| Dropped::BadSize)?;
                        let handshake = Handshake {
                            client,
                            local,
                            datagram: *handshake,
                        };
                        self.scanner.ask(handshake, &self.answers)
                    }
                });
                if let Err(reason) = done {
                    self.router.metrics.dropped(reason, 1);
                }
            }
        }
        self.flush();
        filled
    }

    /// Forwards one batch of servers' datagrams; the number of messages it had.
    fn forward_servers(&mut self, now: std::time::Instant) -> usize {
        let filled = self.upstream.receive(&mut self.inbox);
        for mut run in self.inbox.runs(filled) {
            let sender = run.sender;
            for datagram in run.datagrams() {
                match self.router.server_sent(now, sender, datagram) {
                    Ok(Answer {
                        client,
                        local,
                        datagram,
                    }) => {
                        let parts = (&[][..], datagram);
                        self.to_clients.push(&self.downstream, client, local, parts);
                    }
                    Err(reason) => self.router.metrics.dropped(reason, 1),
                }
            }
        }
        self.flush();
        filled
    }

    /// Forwards a handshake whose keys were tried, if one fitted.
    fn scanned(&mut self, (mut handshake, found): Scanned) {
        let from @ (client, _) = (handshake.client, handshake.local);
        let verdict = found.map_err(Dropped::from).and_then(|route| {
            let datagram = &mut handshake.datagram;
            self.router.found(now(), from, &route, datagram)
        });
        match verdict {
            Ok(Verdict::Forward(server)) => {
                let parts = (&wrapped::header(client)[..], &handshake.datagram[..]);
                self.to_servers.push(&self.upstream, server, None, parts);
                self.flush();
            }
            Ok(Verdict::Scan) => {} // it just was
            Err(reason) => self.router.metrics.dropped(reason, 1),
        }
    }

    fn flush(&mut self) {
        self.to_servers.flush(&self.upstream);
        self.to_clients.flush(&self.downstream);
        let failed = self.to_servers.take_tally().lost() + self.to_clients.take_tally().lost();
        if failed > 0 {
            self.router.metrics.dropped(Dropped::SendFailed, failed);
        }
    }
}
