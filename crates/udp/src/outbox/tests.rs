//! What was put into an outbox arrives, however the kernel is asked to carry it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::*;
use crate::{BufferSizes, Inbox, MtuDiscovery, Offloads, Options, bind, connect};

const SIZES: BufferSizes = BufferSizes {
    receive: 1 << 20,
    send: 1 << 20,
};
const PROBE: Options = Options {
    mtu_discovery: MtuDiscovery::Probe,
    offloads: Offloads {
        gso: true,
        gro: true,
    },
};

/// A bound socket on loopback, and its address.
fn bound(ip: IpAddr, options: Options) -> (Datagrams, SocketAddr) {
    let socket = bind(SocketAddr::new(ip, 0), 1, SIZES).unwrap().remove(0);
    let address = socket.local_addr().unwrap();
    (Datagrams::new(socket, options).unwrap(), address)
}

/// Two sockets on loopback: one that sends, and one that receives at the address.
fn ends() -> (Datagrams, Datagrams, SocketAddr) {
    let [(sender, _), (receiver, to)] = [(); 2].map(|()| bound(Ipv4Addr::LOCALHOST.into(), PROBE));
    (sender, receiver, to)
}

/// Waits for `count` datagrams; also the lengths of the runs they came in.
async fn receive(socket: &Datagrams, count: usize) -> (Vec<Vec<u8>>, Vec<usize>) {
    let (mut inbox, mut datagrams, mut runs) = (Inbox::default(), Vec::new(), Vec::new());
    let all = async {
        while datagrams.len() < count {
            socket.readable().await.unwrap();
            let filled = socket.receive(&mut inbox);
            for mut run in inbox.runs(filled) {
                let before = datagrams.len();
                datagrams.extend(run.datagrams().map(|datagram| datagram.to_vec()));
                runs.push(datagrams.len() - before);
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), all).await;
    in_time.expect("the datagrams arrive");
    (datagrams, runs)
}

/// Datagrams that begin, go on, end and outgrow runs.
fn traffic() -> Vec<Vec<u8>> {
    let sizes = [
        1452, 1452, 1452, 60, 1452, 1452, 1, 1, 1, 1452, 300, 300, 299, 300, 1400, 1452, 92, 92,
    ];
    let sizes = sizes
        .into_iter()
        .chain(std::iter::repeat_n(700, 100))
        .chain([9000, 9000]);
    let datagram = |(number, size): (usize, usize)| {
        let byte = |at: usize| u8::try_from((number * 31 + at * 7) % 251).unwrap();
        (0..size).map(byte).collect()
    };
    sizes.enumerate().map(datagram).collect()
}

#[tokio::test]
async fn datagrams_arrive_unchanged_with_any_offloads() {
    let loopbacks: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for ip in loopbacks {
        for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
            let options = Options {
                offloads: Offloads { gso, gro },
                ..PROBE
            };
            let (sender, _) = bound(ip, options);
            let (receiver, to) = bound(ip, options);
            let (traffic, mut outbox) = (traffic(), Outbox::default());
            for (number, datagram) in traffic.iter().enumerate() {
                let (head, body) = datagram.split_at(datagram.len().min(16));
                if number % 3 == 0 {
                    outbox.push(&sender, to, Some(ip), (head, body));
                } else {
                    outbox.slot(&sender, to, Some(ip), head, 9000, |buf| {
                        buf[..body.len()].copy_from_slice(body);
                        // `push` alone sends what has no bytes behind the head.
                        body.len()
                    });
                }
                if number % 3 != 0 && body.is_empty() {
                    outbox.push(&sender, to, Some(ip), (head, body));
                }
            }
            outbox.flush(&sender);
            let (arrived, runs) = receive(&receiver, traffic.len()).await;
            assert_eq!(arrived, traffic, "{ip}, gso {gso}, gro {gro}");
            let tally = outbox.take_tally();
            assert_eq!((tally.sent, tally.lost()), (traffic.len() as u64, 0));
            assert_eq!(tally.messages == tally.sent, !gso, "{tally:?}");
            if !gro {
                assert!(runs.iter().all(|datagrams| *datagrams == 1), "{runs:?}");
            }
        }
    }
}

#[tokio::test]
async fn run_is_sent_and_received_in_one_call() {
    let (sender, receiver, to) = ends();
    let mut outbox = Outbox::default();
    for _ in 0..sender.max_segments() {
        outbox.slot(&sender, to, None, &[], 1000, |buf| {
            buf.fill(7);
            1000
        });
    }
    outbox.flush(&sender);
    assert_eq!(outbox.take_tally().messages, 1);
    assert_eq!(outbox.take_tally(), Tally::default());
    let (_, runs) = receive(&receiver, sender.max_segments()).await;
    assert_eq!(runs, [sender.max_segments()]);
}

#[tokio::test]
async fn empty_slot_leaves_run_unchanged() {
    let (sender, receiver, to) = ends();
    let mut outbox = Outbox::default();
    outbox.slot(&sender, to, None, b"head", 100, |_| 0);
    for byte in [1, 2] {
        outbox.push(&sender, to, None, (&[], &[byte; 50]));
        outbox.slot(&sender, to, None, b"head", 40, |buf| {
            buf.fill(9);
            0
        });
    }
    outbox.flush(&sender);
    let (arrived, _) = receive(&receiver, 2).await;
    assert_eq!(arrived, [[1; 50], [2; 50]]);
    assert_eq!(outbox.take_tally().messages, 1);
}

#[tokio::test]
async fn connected_socket_survives_earlier_errors() {
    let (silent, to) = bound(Ipv4Addr::LOCALHOST.into(), PROBE);
    drop(silent);
    let sender = Datagrams::new(connect(to, SIZES).unwrap(), PROBE).unwrap();
    let mut outbox = Outbox::default();
    outbox.push(&sender, None, None, (&[], b"no socket listens"));
    outbox.flush(&sender);
    // The port's answer to that, by ICMP, is what the next call is told.
    let socket = bind(to, 1, SIZES).unwrap().remove(0);
    let receiver = Datagrams::new(socket, PROBE).unwrap();
    for byte in [1, 2, 3] {
        outbox.push(&sender, None, None, (&[], &[byte; 500]));
    }
    outbox.flush(&sender);
    let (arrived, _) = receive(&receiver, 3).await;
    assert_eq!(arrived, [[1; 500], [2; 500], [3; 500]]);
    let tally = outbox.take_tally();
    assert_eq!((tally.messages, tally.gso_refused), (2, 0), "{tally:?}");
}

#[tokio::test]
async fn oversized_datagram_is_counted() {
    let (sender, to) = bound(Ipv4Addr::LOCALHOST.into(), PROBE);
    let mut outbox = Outbox::default();
    outbox.push(&sender, to, None, (&[0; 24], &vec![0; 65_470]));
    outbox.slot(&sender, to, None, &[], usize::from(u16::MAX), |_| {
        panic!("there is no buf to fill")
    });
    outbox.flush(&sender);
    let tally = outbox.take_tally();
    assert_eq!((tally.too_large, tally.sent), (2, 0));
}

#[tokio::test]
async fn receiver_learns_local_address() {
    let (sender, _) = bound(Ipv4Addr::LOCALHOST.into(), PROBE);
    let (receiver, mut to) = bound(Ipv6Addr::UNSPECIFIED.into(), PROBE);
    to.set_ip(Ipv4Addr::new(127, 0, 0, 2).into());
    let mut outbox = Outbox::default();
    outbox.push(&sender, to, None, (&[], b"hello"));
    outbox.flush(&sender);
    let mut inbox = Inbox::default();
    receiver.readable().await.unwrap();
    let filled = receiver.receive(&mut inbox);
    let locals: Vec<_> = inbox.runs(filled).map(|run| run.local).collect();
    assert_eq!(locals, [Some(to.ip())]);
}
