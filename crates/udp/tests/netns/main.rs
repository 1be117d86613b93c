//! Datagrams on a device that takes less than they have, in a network namespace of its own.
//!
//! Needs root, or a user, network and mount namespace of its own.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use testkit::netns::Namespace;
use udp::{BufferSizes, Datagrams, Inbox, MtuDiscovery, Offloads, Options, Outbox, Tally, bind};

/// Bytes that the device takes, IP and UDP headers included.
const MTU: usize = 1300;

#[test]
fn probing_socket_counts_datagrams_above_mtu() {
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let (tally, sizes) = send(SocketAddr::new(ip, 0), MtuDiscovery::Probe);
        assert_eq!(sizes, [1000, 1000], "{ip}");
        assert_eq!((tally.sent, tally.too_large), (2, 2), "{ip}: {tally:?}");
    }
}

#[test]
fn fragmenting_sockets_send_it_one_by_one() {
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let (tally, sizes) = send(SocketAddr::new(ip, 0), MtuDiscovery::Fragment);
        assert_eq!(sizes, [1000, 1000, 1400, 1400], "{ip}");
        assert_eq!((tally.sent, tally.gso_refused), (4, 1), "{ip}: {tally:?}");
    }
}

#[test]
fn narrow_path_of_one_receiver_leaves_others_joined() {
    let namespace = Namespace::new("paths").expect("a namespace");
    let mtu = MTU.to_string();
    let narrow = ["replace", "local", "127.0.0.2", "dev", "lo", "mtu", &mtu];
    let narrow = [&["route"][..], &narrow, &["table", "local"]].concat();
    namespace.ip(&narrow).expect("a narrow path");
    let [narrow, wide] = [2, 3].map(|last| SocketAddr::from(([127, 0, 0, last], 9)));
    let options = Options {
        mtu_discovery: MtuDiscovery::Fragment,
        offloads: Offloads::default(),
    };
    let outcome = namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.expect("a runtime").block_on(async {
            let (sender, _) = bound(SocketAddr::from(([0; 4], 0)), options);
            let mut outbox = Outbox::default();
            let mut pair = |to| {
                for _ in 0..2 {
                    outbox.push(&sender, Some(to), None, (&[], &[0; 1400]));
                }
                outbox.flush(&sender);
                let tally = outbox.take_tally();
                assert_eq!(tally.sent, 2, "{tally:?}");
                (tally.messages, tally.gso_refused)
            };
            assert_eq!(pair(narrow), (2, 1));
            assert_eq!(pair(narrow), (2, 0), "it is remembered");
            assert_eq!(pair(wide), (1, 0), "the other path takes them");
            tokio::time::advance(Duration::from_secs(61)).await;
            assert_eq!(pair(narrow), (2, 1), "the path may have changed");
        });
    });
    outcome.expect("inside the namespace");
}

/// Sends two datagrams that fit and two that do not: what became of them, and what arrived.
fn send(any: SocketAddr, mtu_discovery: MtuDiscovery) -> (Tally, Vec<usize>) {
    let namespace = Namespace::new("mtu").expect("a namespace");
    let mtu = MTU.to_string();
    namespace
        .ip(&["link", "set", "lo", "mtu", &mtu])
        .expect("the device's size");
    let options = Options {
        mtu_discovery,
        offloads: Offloads::default(),
    };
    let outcome = namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let (sender, _) = bound(any, options);
            let (receiver, to) = bound(any, options);
            let mut outbox = Outbox::default();
            for size in [1000, 1000, 1400, 1400] {
                outbox.push(&sender, to, None, (&[], &vec![0; size]));
            }
            outbox.flush(&sender);
            let tally = outbox.take_tally();
            (tally, arrived(&receiver, tally.sent).await)
        })
    });
    outcome.expect("inside the namespace")
}

fn bound(any: SocketAddr, options: Options) -> (Datagrams, SocketAddr) {
    let sizes = BufferSizes {
        receive: 1 << 20,
        send: 1 << 20,
    };
    let socket = bind(any, 1, sizes).expect("a socket").remove(0);
    let address = socket.local_addr().expect("its address");
    (Datagrams::new(socket, options).expect("options"), address)
}

async fn arrived(socket: &Datagrams, count: u64) -> Vec<usize> {
    let (mut inbox, mut sizes) = (Inbox::default(), Vec::new());
    let all = async {
        while (sizes.len() as u64) < count {
            socket.readable().await.expect("a runtime");
            let filled = socket.receive(&mut inbox);
            for mut run in inbox.runs(filled) {
                sizes.extend(run.datagrams().map(|datagram| datagram.len()));
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), all).await;
    in_time.expect("what was sent arrives");
    sizes
}
