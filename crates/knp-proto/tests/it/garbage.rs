//! What a peer may send that means nothing, and for how long.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use knp_proto::{
    ConnectId, DialId, DialTarget, Event, Extensions, Link, LinkConfig, LinkError, Packet, Read,
    StreamId, TunnelId,
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

/// Upstream's agents know it not, and log what they do not know.
#[test]
fn draining_server_tells_agents_with_extensions() {
    let tell = |mut link: Link| {
        link.drain();
        sent(&mut link, start())
    };
    assert_eq!(tell(of_upstream()), []);
    let [drain] = tell(server()).try_into().unwrap();
    assert_eq!(drain, Packet::Drain);
    let tenant = tenant("a", generous(), 1 << 30);
    let (all, config) = (Extensions::ALL, LinkConfig::default());
    let mut agent = Link::agent(&tenant, StreamId(1), all, config);
    agent.handle_packet(start(), drain).unwrap();
    assert_eq!(agent.poll_event(), Some(Event::Draining));
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

/// Connects a tunnel over a link whose peer knows no extension.
fn connected(link: &mut Link, number: i64) -> TunnelId {
    let target = DialTarget {
        protocol: "tcp".to_owned(),
        address: "10.0.0.1:80".to_owned(),
    };
    let id = link.dial(start(), DialId(number), target).unwrap();
    let _ = sent(link, start());
    let established = Packet::DialResponse {
        error: String::new(),
        connect_id: ConnectId(number),
        random: DialId(number),
    };
    link.handle_packet(start(), established).unwrap();
    id
}

fn of_upstream() -> Link {
    let tenant = tenant("a", generous(), 1 << 30);
    let (none, config) = (Extensions::default(), LinkConfig::default());
    Link::server(&tenant, StreamId(1), none, config).unwrap()
}

/// Returns what a link sends now.
fn sent(link: &mut Link, now: Instant) -> Vec<Packet> {
    let next = || {
        let mut message = BytesMut::new();
        link.poll_transmit(now, &mut message)?;
        Some(Packet::decode(message.freeze()).unwrap())
    };
    std::iter::from_fn(next).collect()
}

/// Returns the connections that a link asks to close now, and nothing else.
fn closes(link: &mut Link) -> Vec<ConnectId> {
    let close = |packet| match packet {
        Packet::CloseRequest { connect_id } => connect_id,
        other => panic!("{other:?}"),
    };
    sent(link, start()).into_iter().map(close).collect()
}

/// Its loop may be stuck for longer than a close may take, and its sockets send on.
#[test]
fn data_behind_a_close_without_answer_is_no_garbage() {
    let mut link = of_upstream();
    let id = connected(&mut link, 1);
    link.close(start(), id);
    assert_eq!(closes(&mut link), [ConnectId(1)]);
    let later = start() + LinkConfig::default().close_timeout;
    link.handle_timeout(later);
    for _ in 0..MANY {
        link.handle_packet(later, data(1)).unwrap();
    }
    let closed = Packet::CloseResponse {
        connect_id: ConnectId(1),
        error: String::new(),
    };
    link.handle_packet(later, closed).unwrap();
    let (count, error) = taken(&mut link, |_| data(1));
    assert_eq!(error, Some(LinkError::Garbage), "{count}");
}

/// Each close makes upstream's agent send all that it has read of the tunnel before it hears of a dial.
#[test]
fn closes_of_slow_tunnels_come_one_by_one() {
    const COUNT: i64 = 40;
    let mut link = of_upstream();
    let ids: Vec<_> = (1..=COUNT)
        .map(|number| connected(&mut link, number))
        .collect();
    let much = Bytes::from(vec![0; 400 << 10]);
    for number in 1..=COUNT {
        let (connect_id, data) = (ConnectId(number), much.clone());
        link.handle_packet(start(), Packet::Data { connect_id, data })
            .unwrap();
    }
    let (slow, gone) = ids.split_at(20);
    for id in gone {
        link.close(start(), *id);
    }
    for number in 21..=COUNT {
        let [connect_id] = closes(&mut link)[..] else {
            panic!("not one of those from {number} on");
        };
        let target = DialTarget {
            protocol: "tcp".to_owned(),
            address: "10.0.0.1:80".to_owned(),
        };
        link.dial(start(), DialId(100 + number), target).unwrap();
        let dial = sent(&mut link, start());
        assert!(matches!(dial[..], [Packet::DialRequest { .. }]), "{dial:?}");
        let error = String::new();
        let closed = Packet::CloseResponse { connect_id, error };
        link.handle_packet(start(), closed).unwrap();
    }
    assert_eq!(closes(&mut link), [], "all are closed");
    // Without slow ones all at once.
    for id in slow {
        while let Ok(Read::Data(data)) = link.read(*id, 1 << 20) {
            link.consumed(start(), *id, data.len());
        }
    }
    for id in slow {
        link.close(start() + Duration::from_secs(2), *id);
    }
    assert_eq!(closes(&mut link).len(), 20);
}

/// Their clients leave all at once; none is slow afterwards, and the agent still has much of each.
#[test]
fn closes_of_tunnels_that_were_slow_come_one_by_one() {
    let mut link = of_upstream();
    let ids: Vec<_> = (1..=20)
        .map(|number| connected(&mut link, number))
        .collect();
    let receive = |link: &mut Link, number, len| {
        let (connect_id, data) = (ConnectId(number), Bytes::from(vec![0; len]));
        link.handle_packet(start(), Packet::Data { connect_id, data })
            .unwrap();
    };
    (1..=20).for_each(|number| receive(&mut link, number, 400 << 10));
    for id in &ids {
        link.close(start(), *id);
    }
    for number in 1..=20 {
        let [connect_id] = closes(&mut link)[..] else {
            panic!("not {number} alone");
        };
        receive(&mut link, connect_id.0, 4096);
        assert_eq!(closes(&mut link), [], "{number}");
        let error = String::new();
        let closed = Packet::CloseResponse { connect_id, error };
        link.handle_packet(start(), closed).unwrap();
    }
    assert_eq!(closes(&mut link), []);
}

/// What upstream's agent has read of each is sent before it hears of the next.
#[test]
fn closes_amid_much_data_come_one_by_one() {
    let mut link = of_upstream();
    let ids: Vec<_> = (1..=20)
        .map(|number| connected(&mut link, number))
        .collect();
    // All is taken as it comes; of one it was little, and one had its last long ago.
    for (number, id) in (1..=20).zip(&ids) {
        let pieces = if number == 1 { 1 } else { 40 };
        for _ in 0..pieces {
            let (connect_id, data) = (ConnectId(number), Bytes::from(vec![0; 4096]));
            let packet = Packet::Data { connect_id, data };
            link.handle_packet(start(), packet).unwrap();
            let Ok(Read::Data(data)) = link.read(*id, 4096) else {
                panic!("{number} has nothing");
            };
            link.consumed(start(), *id, data.len());
        }
    }
    let ends = |link: &mut Link, time, ids: &[TunnelId]| {
        for id in ids {
            link.close(start() + time, *id);
        }
        closes(link).len()
    };
    assert_eq!(ends(&mut link, Duration::ZERO, &ids[..1]), 1);
    assert_eq!(ends(&mut link, Duration::from_secs(2), &ids[1..4]), 3);
    assert_eq!(ends(&mut link, Duration::from_millis(1999), &ids[4..]), 0);
}

#[test]
fn server_is_never_ended_for_garbage() {
    let tenant = tenant("a", generous(), 1 << 30);
    let (all, config) = (Extensions::ALL, LinkConfig::default());
    let mut link = Link::agent(&tenant, StreamId(1), all, config);
    assert_eq!(taken(&mut link, |_| data(7)), (MANY, None));
}
