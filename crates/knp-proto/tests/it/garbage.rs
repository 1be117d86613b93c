//! What a peer may send that means nothing, and for how long.

use bytes::{Bytes, BytesMut};
use knp_proto::{
    ConnectId, DialId, DialTarget, Event, Extensions, Link, LinkConfig, LinkError, Packet, StreamId,
};

use crate::world::{generous, start, tenant};

/// More than any race explains.
const MANY: i64 = 100_000;

fn server() -> Link {
    let tenant = tenant("a", generous(), 1 << 30);
    let (all, config) = (Extensions::ALL, LinkConfig::default());
    Link::server(&tenant, StreamId(1), all, config).unwrap()
}

fn data(id: i64) -> Packet {
    Packet::Data {
        connect_id: ConnectId(id),
        data: Bytes::from_static(b"x"),
    }
}

/// Returns how many packets a link takes, and why no more; its answers are read.
fn taken(link: &mut Link, mut packet: impl FnMut(i64) -> Packet) -> (i64, Option<LinkError>) {
    let (now, mut message) = (start(), BytesMut::new());
    for number in 0..MANY {
        if let Err(error) = link.handle_packet(now, packet(number)) {
            return (number, Some(error));
        }
        while link.poll_event().is_some() {}
        while link.poll_transmit(now, &mut message).is_some() {
            message.clear();
        }
    }
    (MANY, None)
}

#[test]
fn agent_of_garbage_is_ended() {
    let packets: [fn(i64) -> Packet; 10] = [
        |_| Packet::Unknown { packet_type: 99 },
        |_| Packet::Empty,
        |_| Packet::Drain,
        |_| data(0),
        |_| data(7),
        |number| data(number + 1),
        |number| Packet::CloseRequest {
            connect_id: ConnectId(number),
        },
        |number| Packet::CloseResponse {
            connect_id: ConnectId(number),
            error: String::new(),
        },
        |number| Packet::Credit {
            connect_id: ConnectId(number),
            bytes: 1,
        },
        |number| Packet::DialResponse {
            error: "no".to_owned(),
            connect_id: ConnectId(0),
            random: DialId(number),
        },
    ];
    for (kind, packet) in packets.into_iter().enumerate() {
        let (count, error) = taken(&mut server(), packet);
        assert_eq!(error, Some(LinkError::Garbage), "{kind}");
        assert!(count > 10_000, "{kind}: {count} may be a race");
    }
}

#[test]
fn draining_agent_is_reported_once() {
    let mut link = server();
    for _ in 0..3 {
        link.handle_packet(start(), Packet::Drain).unwrap();
    }
    let events: Vec<_> = std::iter::from_fn(|| link.poll_event()).collect();
    assert_eq!(events, [Event::Draining]);
}

/// What crosses a close is made up for by what does not, however long a link lasts.
#[test]
fn races_never_end_a_link() {
    let mut link = server();
    let (now, mut message) = (start(), BytesMut::new());
    for number in 1..=MANY {
        let target = DialTarget {
            protocol: "tcp".to_owned(),
            address: "10.0.0.1:80".to_owned(),
        };
        let (random, connect_id) = (DialId(number), ConnectId(number));
        let id = link.dial(now, random, target).unwrap();
        while link.poll_transmit(now, &mut message).is_some() {}
        let established = Packet::DialResponse {
            error: String::new(),
            connect_id,
            random,
        };
        link.handle_packet(now, established).unwrap();
        link.close(now, id);
        while link.poll_transmit(now, &mut message).is_some() {}
        link.handle_packet(now, data(number)).unwrap();
        let closed = Packet::CloseResponse {
            connect_id,
            error: String::new(),
        };
        link.handle_packet(now, closed).unwrap();
        let crossing = Packet::Credit {
            connect_id,
            bytes: 1,
        };
        link.handle_packet(now, crossing).unwrap();
        while link.poll_event().is_some() {}
        message.clear();
    }
}

#[test]
fn server_is_never_ended_for_garbage() {
    let tenant = tenant("a", generous(), 1 << 30);
    let (all, config) = (Extensions::ALL, LinkConfig::default());
    let mut link = Link::agent(&tenant, StreamId(1), all, config);
    assert_eq!(taken(&mut link, |_| data(7)), (MANY, None));
}
