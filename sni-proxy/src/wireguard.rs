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

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;

use serve::Phase;
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

/// Forwards the datagrams of one listener on one worker until the process is cut, or drains and
/// has no proven flow left on any worker. Dropping the future ends all flows.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    listener: Rc<Listener>,
    socket: std::net::UdpSocket,
    scanner: Scanner,
) -> io::Result<()> {
    let drain = worker.shared.accepting.drain.clone();
    let (answers, mut scanned) = mpsc::channel(SCANNED);
    let sizes = worker.shared.config.wireguard.buffers();
    let mut forwarder = Forwarder {
        downstream: Datagrams::new(socket, OPTIONS)?,
        upstream: toward_servers(sizes)?,
        inbox: Inbox::default(),
        to_servers: Outbox::default(),
        to_clients: Outbox::default(),
        router: Router::new(&worker, &listener, now()),
        scanner,
        answers,
    };
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut closing = pin!(drain.reached(Phase::Closing));
    loop {
        tokio::select! {
            biased;
            () = &mut closing, if !forwarder.router.draining => forwarder.router.draining = true,
            _ = tick.tick() => forwarder.router.expire(now()),
            Some(scanned) = scanned.recv() => forwarder.scanned(scanned),
            readable = forwarder.downstream.readable() => readable?,
            readable = forwarder.upstream.readable() => readable?,
        }
        let now = now();
        forwarder.router.follow(now);
        let moved = forwarder.forward_servers(now) + forwarder.forward_clients(now);
        if forwarder.router.draining && worker.shared.flows.connections() == 0 {
            return Ok(());
        }
        if moved > 0 {
            yield_now().await; // to the connections of this worker
        }
    }
}

/// Opens a socket toward servers: any address, a port of the kernel's choice.
fn toward_servers(sizes: BufferSizes) -> io::Result<Datagrams> {
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let socket = udp::bind(any, 1, sizes)?.pop();
    let socket = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Datagrams::new(socket, OPTIONS)
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
