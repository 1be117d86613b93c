//! TCP connections to the tunnel's port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::json;
use tunnel::{LinkStatus, PeerStatus, Status, Transport};

use crate::support::{Call, LIMIT, Rig};

const LINKS: &str = "rhizome_vpn_links_total";

fn connect(rig: &Rig) -> TcpStream {
    let stream = TcpStream::connect(rig.tunnel).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

#[test]
fn connection_is_handed_over_with_its_bytes() {
    let rig = Rig::start(&json!({}));
    let mut client = connect(&rig);
    client.write_all(b"frames").unwrap();
    let Call::Accepted(mut stream, from) = rig.call() else {
        panic!("another call");
    };
    assert_eq!(from, client.local_addr().unwrap());
    stream.set_nonblocking(false).unwrap();
    let mut read = [0; 6];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"frames");
    rig.wait_value(LINKS, &[("result", "taken")], 1.0);
}

#[test]
fn silent_connection_is_closed() {
    let rig = Rig::start(&json!({ "limits": { "helloTimeout": "100ms" } }));
    let mut silent = connect(&rig);
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    rig.wait_value(LINKS, &[("result", "silent")], 1.0);
    drop(connect(&rig));
    rig.wait_value(LINKS, &[("result", "gone")], 1.0);
    assert!(rig.is_idle());
}

#[test]
fn silent_connections_make_way_for_clients() {
    for limits in [json!({ "links": 4 }), json!({ "linksPerSource": 4 })] {
        let rig = Rig::start(&json!({ "limits": limits }));
        let mut silent: Vec<_> = (0..4).map(|_| connect(&rig)).collect();
        connect(&rig).write_all(b"x").unwrap();
        assert!(matches!(rig.call(), Call::Accepted(..)), "{limits}");
        rig.wait_value(LINKS, &[("result", "evicted")], 1.0);
        // The one that waited longest.
        assert_eq!(silent.remove(0).read(&mut [0; 1]).unwrap_or(0), 0);
        for mut other in silent {
            other.write_all(b"x").unwrap();
            assert!(matches!(rig.call(), Call::Accepted(..)), "{limits}");
        }
    }
}

#[test]
fn tunnels_and_strangers_count_for_limit() {
    let rig = Rig::start(&json!({ "limits": { "links": 2 } }));
    rig.set_status(Arc::new(Status {
        strangers: 2,
        ..Status::default()
    }));
    let mut refused = connect(&rig);
    assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0);
    rig.wait_value(LINKS, &[("result", "limit")], 1.0);
    rig.set_status(Arc::default());
    connect(&rig).write_all(b"x").unwrap();
    assert!(matches!(rig.call(), Call::Accepted(..)));
}

#[test]
fn tunnels_per_source_are_bounded_if_set() {
    let rig = Rig::start(&json!({ "limits": { "linksPerSource": 1 } }));
    let with_link = |transport, remote: &str| {
        let link = LinkStatus {
            transport,
            remote: remote.to_owned(),
            active: true,
            proven: true,
            rtt: None,
        };
        let peers = vec![PeerStatus {
            links: vec![link],
            ..PeerStatus::default()
        }];
        let draining = false;
        rig.set_status(Arc::new(Status {
            peers,
            draining,
            strangers: 0,
        }));
    };
    with_link(Transport::Tcp, "127.0.0.1:1");
    let mut refused = connect(&rig);
    assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0);
    rig.wait_value(LINKS, &[("result", "source_limit")], 1.0);
    // Neither another address's tunnel counts, nor one over UDP.
    for (transport, remote) in [
        (Transport::Tcp, "192.0.2.1:1"),
        (Transport::Udp, "127.0.0.1:1"),
    ] {
        with_link(transport, remote);
        connect(&rig).write_all(b"x").unwrap();
        assert!(matches!(rig.call(), Call::Accepted(..)));
    }
}
