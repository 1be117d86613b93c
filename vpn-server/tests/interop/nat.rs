//! A NAT between client and server, which can give the client another address, counts what passes,
//! and sends unsolicited datagrams.
//!
//! ```text
//!   client ─▶ inside (loopback) ─ count, remember ─▶ outside (an address of the shoot) ─▶ server
//! ```
//!
//! It reads only the unencrypted parts of a datagram: the kind, and the reserved bytes.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use testkit::netns::{Namespace, Place};

use crate::addresses::Addresses;

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

/// Which handshake message a datagram is, by the number in its first byte (WireGuard paper §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Initiation = 1,
    Response = 2,
    Cookie = 3,
}

/// A running NAT. Dropping it ends its threads.
#[derive(Debug)]
pub(crate) struct Nat<'a> {
    namespace: &'a Namespace,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    inside: UdpSocket,
    outside: Mutex<Arc<UdpSocket>>,
    client: Mutex<Option<SocketAddr>>,
    seen: Mutex<[Seen; 2]>,
    stop: AtomicBool,
}

/// What passed one way.
#[derive(Debug, Default)]
struct Seen {
    /// By kind.
    counts: [u64; 5],
    /// With reserved bytes that are not zero.
    marked: u64,
    initiation: Option<Vec<u8>>,
    latest: VecDeque<Vec<u8>>,
}

impl<'a> Nat<'a> {
    /// Starts one in `namespace` that leads to the server from the first address of the shoot.
    pub(crate) fn start(namespace: &'a Namespace, addresses: &Addresses) -> Self {
        let shared = Arc::new(Shared {
            server: addresses.endpoint(),
            inside: bind(namespace, addresses.loopback),
            outside: Mutex::new(Arc::new(bind(namespace, addresses.home))),
            client: Mutex::default(),
            seen: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let run = |work: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    work(&shared);
                }
            })
        };
        let threads = vec![run(Shared::to_server), run(Shared::to_client)];
        Self {
            namespace,
            shared,
            threads,
        }
    }

    /// Returns where clients find the server.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.shared.inside.local_addr().unwrap()
    }

    /// Gives the client another address, and port. What still comes to the old one is lost.
    pub(crate) fn rebind(&self, outside: IpAddr) {
        let fresh = Arc::new(bind(self.namespace, outside));
        *lock(&self.shared.outside) = fresh;
    }

    /// Returns how many datagrams of a kind have passed.
    pub(crate) fn count(&self, way: Way, kind: Kind) -> u64 {
        lock(&self.shared.seen)[way as usize].counts[kind as usize]
    }

    /// Returns how many datagrams had something in their reserved bytes.
    pub(crate) fn marked(&self) -> u64 {
        lock(&self.shared.seen).iter().map(|seen| seen.marked).sum()
    }

    /// Returns the latest initiation of the client.
    pub(crate) fn initiation(&self) -> Vec<u8> {
        let seen = lock(&self.shared.seen);
        seen[Way::ToServer as usize].initiation.clone().unwrap()
    }

    /// Sends both ends what is not theirs: noise of every kind and many sizes, and copies of what has
    /// passed lately. The server gets it from the address `from`, the client from where the server
    /// is, because it may have connected its socket.
    pub(crate) fn junk(&self, from: IpAddr) {
        let stranger = bind(self.namespace, from);
        for seed in 1..=2 {
            for datagram in self.strange(Way::ToServer, seed) {
                let _ = stranger.send_to(&datagram, self.shared.server);
            }
            let client = lock(&self.shared.client).unwrap();
            for datagram in self.strange(Way::ToClient, seed) {
                let _ = self.shared.inside.send_to(&datagram, client);
            }
        }
    }

    fn strange(&self, way: Way, seed: u64) -> Vec<Vec<u8>> {
        let mut random = Random(seed);
        let mut datagrams = Vec::new();
        for len in [0, 1, 3, 4, 16, 31, 32, 33, 64, 91, 92, 147, 148, 149, 1452] {
            for kind in 0..6 {
                let mut datagram: Vec<u8> = (0..len).map(|_| random.byte()).collect();
                let head = [kind, 0, 0, u8::from(seed == 2)];
                let head_len = head.len().min(len);
                datagram[..head_len].copy_from_slice(&head[..head_len]);
                datagrams.push(datagram);
            }
        }
        let seen = lock(&self.shared.seen);
        let known = &seen[way as usize].latest;
        for datagram in known.iter().chain(&seen[way as usize].initiation) {
            datagrams.push(datagram.clone());
            // The same for the same session, with one bit wrong.
            let mut wrong = datagram.clone();
            let at = wrong.len() - 1;
            wrong[at] ^= 1;
            datagrams.push(wrong);
        }
        datagrams
    }
}

impl Drop for Nat<'_> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn to_server(&self) {
        let mut buf = [0; 2048];
        let Ok((len, from)) = self.inside.recv_from(&mut buf) else {
            return;
        };
        *lock(&self.client) = Some(from);
        self.see(Way::ToServer, &buf[..len]);
        let outside = Arc::clone(&lock(&self.outside));
        // No socket listens while a server is restarted.
        let _ = outside.send_to(&buf[..len], self.server);
    }

    fn to_client(&self) {
        let mut buf = [0; 2048];
        let outside = Arc::clone(&lock(&self.outside));
        let Ok((len, from)) = outside.recv_from(&mut buf) else {
            return;
        };
        let client = *lock(&self.client);
        if let Some(client) = client.filter(|_| from == self.server) {
            self.see(Way::ToClient, &buf[..len]);
            let _ = self.inside.send_to(&buf[..len], client);
        }
    }

    fn see(&self, way: Way, datagram: &[u8]) {
        let [kind, reserved @ .., _, _, _, _] = datagram.first_chunk::<8>().unwrap();
        let seen = &mut lock(&self.seen)[way as usize];
        seen.counts[usize::from(*kind)] += 1;
        seen.marked += u64::from(*reserved != [0; 3]);
        if usize::from(*kind) == Kind::Initiation as usize {
            seen.initiation = Some(datagram.to_vec());
        } else {
            seen.latest.push_back(datagram.to_vec());
            if seen.latest.len() > LATEST {
                seen.latest.pop_front();
            }
        }
    }
}

/// xorshift64: noise that is the same in every run.
struct Random(u64);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_le_bytes()[0]
    }
}

fn bind(namespace: &Namespace, ip: IpAddr) -> UdpSocket {
    let bind = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((ip, 0))?;
        // Between two looks at what else there is to do.
        socket.set_read_timeout(Some(Duration::from_millis(10)))?;
        Ok(socket)
    };
    Place::In(namespace).run(bind).unwrap().unwrap()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Datagrams that are remembered each way.
const LATEST: usize = 16;
