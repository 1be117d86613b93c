//! A DNS server that says what a test wants, and a client that asks one question.
//!
//! Written from RFC 1035 §4, apart from the library that the program uses.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use testkit::netns::Namespace;

use crate::node::LIMIT;

/// What a [`FakeDns`] does with a question.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    /// Names these addresses, those of the family that was asked for, for a second.
    Addresses(Vec<IpAddr>),
    /// Fails (`SERVFAIL`).
    Failure,
}

/// A running server. Its thread ends with the test's process.
#[derive(Debug)]
pub(crate) struct FakeDns {
    says: Arc<Mutex<Says>>,
    asked: Arc<AtomicUsize>,
}

impl FakeDns {
    /// Answers at `address` inside `ns`.
    pub(crate) fn start(ns: &Namespace, address: &str, says: Says) -> Self {
        let socket = ns.run(|| UdpSocket::bind(address)).unwrap().unwrap();
        let (says, asked) = (Arc::new(Mutex::new(says)), Arc::new(AtomicUsize::new(0)));
        let (shared, counter) = (Arc::clone(&says), Arc::clone(&asked));
        thread::spawn(move || {
            let mut buf = [0; 512];
            while let Ok((count, from)) = socket.recv_from(&mut buf) {
                counter.fetch_add(1, Ordering::Relaxed);
                let answer = answer(&buf[..count], &shared.lock().unwrap());
                let _ = socket.send_to(&answer, from);
            }
        });
        Self { says, asked }
    }

    /// Changes what it says from now on.
    pub(crate) fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }

    /// Returns how many questions have come.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn answer(query: &[u8], says: &Says) -> Vec<u8> {
    let end = after_name(query, HEADER) + 4;
    let kind = u16::from_be_bytes([query[end - 4], query[end - 3]]);
    let (addresses, code) = match says {
        Says::Addresses(all) => (all.as_slice(), 0),
        Says::Failure => ([].as_slice(), 2),
    };
    let matching: Vec<_> = addresses
        .iter()
        .filter(|ip| kind == if ip.is_ipv4() { A } else { AAAA })
        .collect();
    let mut message = query[..2].to_vec();
    // QR, RD and RA; one question, and nothing but answers.
    message.extend([0x81, 0x80 | code, 0, 1, 0, matching.len() as u8, 0, 0, 0, 0]);
    message.extend(&query[HEADER..end]);
    for ip in matching {
        // The name of the question, class IN, a second.
        message.extend([0xc0, HEADER as u8]);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 1]);
        let bytes = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        message.extend([0, bytes.len() as u8]);
        message.extend(bytes);
    }
    message
}

/// How a question is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Tcp,
    Udp,
}

/// Asks `server` from inside `ns` for the addresses of `name`; returns the response code and them.
pub(crate) fn ask(
    ns: &Namespace,
    server: SocketAddr,
    by: By,
    name: &str,
    kind: u16,
) -> (u8, Vec<IpAddr>) {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    let message = ns
        .run(|| match by {
            By::Udp => over_udp(server, &query),
            By::Tcp => over_tcp(server, &query),
        })
        .unwrap();
    assert_eq!(message[..2], query[..2]);
    (message[3] & 0xf, addresses(&message))
}

fn over_udp(server: SocketAddr, query: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    // Only an answer from the very address is taken.
    socket.connect(server).unwrap();
    socket.send(query).unwrap();
    let mut message = vec![0; 512];
    let count = socket.recv(&mut message).unwrap();
    message.truncate(count);
    message
}

fn over_tcp(server: SocketAddr, query: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect_timeout(&server, LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = (query.len() as u16).to_be_bytes();
    stream.write_all(&[&length, query].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message).unwrap();
    message
}

fn addresses(message: &[u8]) -> Vec<IpAddr> {
    let count = u16::from_be_bytes([message[6], message[7]]);
    let mut at = after_name(message, HEADER) + 4;
    let mut all = Vec::new();
    for _ in 0..count {
        at = after_name(message, at);
        let length = usize::from(u16::from_be_bytes([message[at + 8], message[at + 9]]));
        let data = &message[at + 10..at + 10 + length];
        match <[u8; 4]>::try_from(data) {
            Ok(bytes) => all.push(bytes.into()),
            Err(_) => all.extend(<[u8; 16]>::try_from(data).map(IpAddr::from)),
        }
        at += 10 + length;
    }
    all
}

/// Returns what follows the name at `at`: labels to an empty one, or to a pointer.
fn after_name(message: &[u8], mut at: usize) -> usize {
    loop {
        match message[at] {
            0 => return at + 1,
            0xc0.. => return at + 2,
            length => at += 1 + usize::from(length),
        }
    }
}

/// Bytes of a message's header.
const HEADER: usize = 12;
/// Types of records.
pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;
