//! One end against a peer that knows upstream's protocol only, packet by packet, with its odd
//! orders.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use knp_proto::{
    ConnectId, DialId, DialRefused, DialTarget, EndReason, Event, Extensions, Gone, Link,
    LinkConfig, Packet, Read, StreamId, TunnelId, Violation, WriteError,
};

use crate::world::{generous, start, tenant};

const ID: ConnectId = ConnectId(1);
const RANDOM: DialId = DialId(42);
/// An agent's word for a destination that has reset its connection.
const RESET: &str = "connection reset by peer";

struct Peer {
    link: Link,
    now: Instant,
}

impl Peer {
    fn server() -> Self {
        let tenant = tenant("a", generous(), 1 << 30);
        let (none, config) = (Extensions::default(), LinkConfig::default());
        Self {
            link: Link::server(&tenant, StreamId(1), none, config).unwrap(),
            now: start(),
        }
    }

    fn agent() -> Self {
        let tenant = tenant("a", generous(), 1 << 30);
        let (none, config) = (Extensions::default(), LinkConfig::default());
        Self {
            link: Link::agent(&tenant, StreamId(1), none, config),
            now: start(),
        }
    }

    fn sends(&mut self, packet: Packet) {
        self.link.handle_packet(self.now, packet).unwrap();
    }

    /// Returns all the link has to send.
    fn hears(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        let mut message = BytesMut::new();
        while let Some(transmit) = self.link.poll_transmit(self.now, &mut message) {
            message.extend_from_slice(&transmit.payload.unwrap_or_default());
            packets.push(Packet::decode(message.split().freeze()).unwrap());
        }
        packets
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.link.poll_event()).collect()
    }

    fn dial(&mut self) -> TunnelId {
        let id = self.link.dial(self.now, RANDOM, target()).unwrap();
        assert!(matches!(
            self.hears().as_slice(),
            [Packet::DialRequest { random: RANDOM, .. }]
        ));
        id
    }

    /// A tunnel open on a server.
    fn established(&mut self) -> TunnelId {
        let id = self.dial();
        self.sends(dial_response(RANDOM, ID));
        let established = Event::Established(id, ID);
        assert_eq!(self.events(), [established]);
        id
    }

    /// A tunnel open on an agent.
    fn dialed(&mut self) -> TunnelId {
        let id = self.asked();
        assert_eq!(self.link.dialed(self.now, id, Ok(())), Ok(ID));
        assert_eq!(self.hears(), [dial_response(RANDOM, ID)]);
        id
    }

    fn asked(&mut self) -> TunnelId {
        self.sends(dial_request(RANDOM));
        match self.events().as_slice() {
            [Event::Dial(tunnel, _)] => *tunnel,
            other => panic!("{other:?}"),
        }
    }

    fn ended(&mut self) -> Option<EndReason> {
        let reasons = self.events().into_iter().filter_map(|event| match event {
            Event::Ended(_, reason) => Some(reason),
            _ => None,
        });
        let reasons: Vec<_> = reasons.collect();
        assert!(reasons.len() <= 1, "{reasons:?}");
        reasons.into_iter().next()
    }
}

fn target() -> DialTarget {
    DialTarget {
        protocol: "tcp".to_owned(),
        address: "10.0.0.1:80".to_owned(),
    }
}

fn dial_request(random: DialId) -> Packet {
    let DialTarget { protocol, address } = target();
    Packet::DialRequest {
        protocol,
        address,
        random,
    }
}

fn dial_response(random: DialId, connect_id: ConnectId) -> Packet {
    Packet::DialResponse {
        error: String::new(),
        connect_id,
        random,
    }
}

fn data(connect_id: ConnectId, bytes: &'static [u8]) -> Packet {
    Packet::Data {
        connect_id,
        data: Bytes::from_static(bytes),
    }
}

fn close_request(connect_id: ConnectId) -> Packet {
    Packet::CloseRequest { connect_id }
}

fn close_response(connect_id: ConnectId, error: &str) -> Packet {
    Packet::CloseResponse {
        connect_id,
        error: error.to_owned(),
    }
}

// === Server ===

#[test]
fn close_follows_data_and_reads_until_answer() {
    let mut peer = Peer::server();
    let id = peer.established();
    peer.link.write(id, Bytes::from_static(b"up")).unwrap();
    peer.link.finish(peer.now, id);
    assert_eq!(
        peer.link.write(id, Bytes::from_static(b"more")),
        Err(WriteError::Closed)
    );
    assert_eq!(peer.hears(), [data(ID, b"up"), close_request(ID)]);
    peer.sends(data(ID, b"down"));
    peer.sends(close_response(ID, ""));
    let read = peer.link.read(id, 100);
    assert_eq!(read, Ok(Read::Data(Bytes::from_static(b"down"))));
    assert_eq!(peer.ended(), None);
    peer.link.consumed(peer.now, id, 4);
    assert_eq!(peer.ended(), Some(EndReason::LocalClosed));
    assert!(peer.link.is_idle());
}

#[test]
fn data_before_agents_close_is_delivered() {
    let mut peer = Peer::server();
    let id = peer.established();
    peer.sends(data(ID, b"banner"));
    peer.sends(close_response(ID, ""));
    assert_eq!(peer.link.write_capacity(id), 0);
    let read = peer.link.read(id, 100);
    assert_eq!(read, Ok(Read::Data(Bytes::from_static(b"banner"))));
    peer.link.consumed(peer.now, id, 6);
    let error = String::new();
    assert_eq!(peer.ended(), Some(EndReason::PeerClosed { error }));
    assert!(peer.hears().is_empty());
}

#[test]
fn an_error_of_the_agent_is_no_clean_end() {
    let mut peer = Peer::server();
    let id = peer.established();
    peer.sends(close_response(ID, "reset"));
    let reason = peer.ended().unwrap();
    assert!(!reason.is_clean());
    assert_eq!(reason.peer_text(), Some("reset"));
    assert_eq!(peer.link.read(id, 1), Err(Gone));
}

#[test]
fn error_answer_to_close_is_no_clean_end() {
    let mut peer = Peer::server();
    let id = peer.established();
    peer.link.finish(peer.now, id);
    assert_eq!(peer.hears(), [close_request(ID)]);
    peer.sends(close_response(ID, "reset"));
    let error = "reset".to_owned();
    assert_eq!(peer.ended(), Some(EndReason::PeerReset { error }));
}

#[test]
fn late_answer_closes_connection_once() {
    let mut peer = Peer::server();
    let id = peer.dial();
    peer.link.close(peer.now, id);
    assert_eq!(peer.ended(), Some(EndReason::Canceled));
    assert_eq!(peer.hears(), [Packet::CloseDial { random: RANDOM }]);
    assert!(peer.link.is_idle());
    // Upstream's agents ignore DIAL_CLS.
    peer.sends(dial_response(RANDOM, ID));
    peer.sends(data(ID, b"banner"));
    peer.sends(data(ID, b"more"));
    assert_eq!(peer.hears(), [close_request(ID)]);
    assert_eq!(peer.link.stats().unrecognized_responses, 1);
    peer.sends(close_response(ID, ""));
    assert!(peer.link.is_idle() && peer.events().is_empty());
}

#[test]
fn a_dial_that_was_not_sent_yet_is_never_sent() {
    let mut peer = Peer::server();
    let id = peer.link.dial(peer.now, RANDOM, target()).unwrap();
    let again = peer.link.dial(peer.now, RANDOM, target());
    assert_eq!(again, Err(DialRefused::DuplicateId));
    peer.link.close(peer.now, id);
    assert!(peer.hears().is_empty());
}

#[test]
fn frozen_agent_holds_no_abandoned_dials() {
    let mut peer = Peer::server();
    for random in 1..=20 {
        let random = DialId(random);
        peer.link.dial(peer.now, random, target()).unwrap();
    }
    assert_eq!(peer.hears().len(), 20);
    peer.now += LinkConfig::default().dial_timeout;
    assert_eq!(peer.link.poll_timeout(), Some(peer.now));
    peer.link.handle_timeout(peer.now);
    let ended = peer.events();
    assert_eq!(ended.len(), 20);
    assert!(
        ended
            .iter()
            .all(|event| matches!(event, Event::Ended(_, EndReason::DialTimeout)))
    );
    assert_eq!(peer.link.tunnels(), 0);
    // The agent goes on and connects them all.
    for id in 1..=20 {
        peer.sends(dial_response(DialId(id), ConnectId(id)));
    }
    let closes = peer.hears();
    let closes = closes
        .iter()
        .filter(|p| matches!(p, Packet::CloseRequest { .. }));
    assert_eq!(closes.count(), 20);
    assert!(peer.link.is_idle());
}

#[test]
fn a_refused_dial_says_why() {
    let mut peer = Peer::server();
    peer.dial();
    let error = "dial tcp 10.0.0.1:80: connect: connection refused".to_owned();
    peer.sends(Packet::DialResponse {
        error: error.clone(),
        connect_id: ConnectId(0),
        random: RANDOM,
    });
    assert_eq!(peer.ended(), Some(EndReason::DialFailed { error }));
    peer.dial();
    peer.sends(dial_response(RANDOM, ConnectId(0)));
    let violation = EndReason::Violation(Violation::NoConnectId);
    assert_eq!(peer.ended(), Some(violation));
    assert!(peer.link.is_idle());
}

#[test]
fn two_connections_of_one_id_are_both_given_up() {
    let mut peer = Peer::server();
    peer.established();
    let second = DialId(43);
    peer.link.dial(peer.now, second, target()).unwrap();
    peer.hears();
    peer.sends(dial_response(second, ID));
    let ended = peer.events().into_iter();
    let ended = ended.filter(|event| matches!(event, Event::Ended(..)));
    assert_eq!(ended.count(), 2);
    assert_eq!(peer.hears(), [close_request(ID)]);
    peer.sends(close_response(ID, ""));
    assert!(peer.link.is_idle());
}

#[test]
fn late_answer_with_used_id_closes_nothing() {
    let mut peer = Peer::server();
    let id = peer.established();
    peer.sends(dial_response(DialId(99), ID));
    assert!(peer.hears().is_empty());
    assert_eq!(peer.link.stats().violations, 1);
    peer.link.write(id, Bytes::from_static(b"x")).unwrap();
    assert_eq!(peer.hears(), [data(ID, b"x")]);
}

#[test]
fn unknown_data_is_answered_and_id_0_dropped() {
    let mut peer = Peer::server();
    peer.sends(data(ConnectId(7), b"x"));
    peer.sends(data(ConnectId(0), b"x"));
    assert_eq!(peer.hears(), [close_request(ConnectId(7))]);
    assert_eq!(peer.link.stats().unknown_connections, 1);
}

#[test]
fn unanswered_close_times_out() {
    let mut peer = Peer::server();
    let id = peer.established();
    peer.link.close(peer.now, id);
    assert_eq!(peer.hears(), [close_request(ID)]);
    peer.now += LinkConfig::default().close_timeout - Duration::from_millis(1);
    peer.link.handle_timeout(peer.now);
    assert_eq!(peer.link.tunnels(), 1);
    peer.now += Duration::from_millis(1);
    peer.link.handle_timeout(peer.now);
    assert_eq!(peer.ended(), Some(EndReason::LocalClosed));
    assert!(peer.link.is_idle());
}

#[test]
fn drain_is_reported_and_odd_packets_ignored() {
    let mut peer = Peer::server();
    peer.sends(Packet::Drain);
    assert_eq!(peer.events(), [Event::Draining]);
    for odd in [
        Packet::Empty,
        Packet::Unknown { packet_type: 9 },
        close_request(ID),
        dial_request(RANDOM),
        Packet::Fin { connect_id: ID },
        Packet::Credit {
            connect_id: ID,
            bytes: u64::MAX,
        },
    ] {
        peer.sends(odd);
    }
    assert_eq!(peer.link.stats().ignored, 6);
    assert!(peer.hears().is_empty() && peer.link.is_idle());
}

#[test]
fn stream_end_ends_dials_and_tunnels() {
    let mut peer = Peer::server();
    let open = peer.established();
    let closed = DialId(50);
    peer.link.dial(peer.now, closed, target()).unwrap();
    peer.sends(data(ID, b"half an answer"));
    peer.link.end(peer.now);
    let ended = peer.events().into_iter();
    let lost = |event: &Event| matches!(event, Event::Ended(_, EndReason::LinkLost));
    assert_eq!(ended.filter(lost).count(), 2);
    assert_eq!(peer.link.read(open, 1), Err(Gone));
    let again = peer.link.dial(peer.now, closed, target());
    assert_eq!(again, Err(DialRefused::Ended));
    assert!(peer.link.is_idle());
}

#[test]
fn closed_tunnel_outlives_the_stream() {
    let mut peer = Peer::server();
    let id = peer.established();
    peer.sends(data(ID, b"all"));
    peer.sends(close_response(ID, ""));
    peer.link.end(peer.now);
    let read = peer.link.read(id, 100);
    assert_eq!(read, Ok(Read::Data(Bytes::from_static(b"all"))));
    peer.link.consumed(peer.now, id, 3);
    let error = String::new();
    assert_eq!(peer.ended(), Some(EndReason::PeerClosed { error }));
}

// === Agent ===

#[test]
fn ids_count_from_1_and_failures_take_none() {
    let mut peer = Peer::agent();
    let id = peer.asked();
    let error = "dial tcp: connect: connection refused".to_owned();
    peer.link.dialed(peer.now, id, Err(error.clone())).unwrap();
    assert_eq!(
        peer.hears(),
        [Packet::DialResponse {
            error,
            connect_id: ConnectId(0),
            random: RANDOM
        }]
    );
    assert_eq!(peer.link.dialed(peer.now, id, Ok(())), Err(Gone));
    peer.events();
    peer.dialed();
}

#[test]
fn close_response_follows_read_data() {
    let mut peer = Peer::agent();
    let id = peer.dialed();
    peer.link.write(id, Bytes::from_static(b"down")).unwrap();
    peer.sends(data(ID, b"up"));
    peer.sends(close_request(ID));
    assert_eq!(peer.hears(), [data(ID, b"down"), close_response(ID, "")]);
    // What came before the close still goes to the destination.
    let read = peer.link.read(id, 100);
    assert_eq!(read, Ok(Read::Data(Bytes::from_static(b"up"))));
    peer.link.consumed(peer.now, id, 2);
    let error = String::new();
    assert_eq!(peer.ended(), Some(EndReason::PeerClosed { error }));
    assert!(peer.link.is_idle());
}

#[test]
fn destination_eof_closes_after_data() {
    let mut peer = Peer::agent();
    let id = peer.dialed();
    peer.link.write(id, Bytes::from_static(b"bye")).unwrap();
    peer.link.finish(peer.now, id);
    assert_eq!(peer.hears(), [data(ID, b"bye"), close_response(ID, "")]);
    assert_eq!(peer.ended(), Some(EndReason::LocalClosed));
    // A close that crossed it.
    peer.sends(close_request(ID));
    assert_eq!(peer.hears(), [close_response(ID, "Unknown connectID")]);
    assert!(peer.link.is_idle());
}

#[test]
fn agent_names_reset_in_close_response() {
    let begun = || {
        let mut peer = Peer::agent();
        let id = peer.dialed();
        peer.link.write(id, Bytes::from_static(b"cut")).unwrap();
        (peer, id)
    };
    let (mut peer, id) = begun();
    peer.link.close(peer.now, id);
    // What was read before it comes first.
    assert_eq!(peer.hears(), [data(ID, b"cut"), close_response(ID, RESET)]);
    // What had finished is whole, whatever becomes of its socket.
    let (mut peer, id) = begun();
    peer.link.finish(peer.now, id);
    peer.link.close(peer.now, id);
    assert_eq!(peer.hears(), [data(ID, b"cut"), close_response(ID, "")]);
}

#[test]
fn connection_ends_while_socket_drains() {
    let mut peer = Peer::agent();
    let id = peer.dialed();
    peer.sends(data(ID, b"up"));
    peer.link.finish(peer.now, id);
    assert_eq!(peer.hears(), [close_response(ID, "")]);
    peer.sends(data(ID, b"late"));
    peer.sends(close_request(ID));
    assert_eq!(
        peer.hears(),
        [
            close_response(ID, "unrecognized connectID"),
            close_response(ID, "Unknown connectID"),
        ]
    );
    let read = peer.link.read(id, 100);
    assert_eq!(read, Ok(Read::Data(Bytes::from_static(b"up"))));
    peer.link.consumed(peer.now, id, 2);
    assert_eq!(peer.ended(), Some(EndReason::LocalClosed));
    assert!(peer.link.is_idle());
}

#[test]
fn unknown_connections_get_upstream_texts() {
    let mut peer = Peer::agent();
    peer.sends(data(ConnectId(8), b"x"));
    peer.sends(data(ConnectId(8), b"y"));
    peer.sends(close_request(ConnectId(9)));
    assert_eq!(
        peer.hears(),
        [
            close_response(ConnectId(8), "unrecognized connectID"),
            close_response(ConnectId(9), "Unknown connectID"),
        ]
    );
}

#[test]
fn a_dial_called_off_is_gone_for_the_dialler() {
    let mut peer = Peer::agent();
    let id = peer.asked();
    peer.sends(Packet::CloseDial { random: RANDOM });
    assert_eq!(peer.ended(), Some(EndReason::Canceled));
    assert_eq!(peer.link.dialed(peer.now, id, Ok(())), Err(Gone));
    assert!(peer.hears().is_empty() && peer.link.is_idle());
}

#[test]
fn late_canceled_dial_waits_for_close() {
    let mut peer = Peer::agent();
    peer.dialed();
    peer.sends(Packet::CloseDial { random: RANDOM });
    assert_eq!(peer.link.tunnels(), 1);
    peer.sends(close_request(ID));
    assert_eq!(peer.hears(), [close_response(ID, "")]);
    assert!(peer.ended().is_some() && peer.link.is_idle());
}

#[test]
fn a_dial_without_end_is_answered_in_time() {
    let mut peer = Peer::agent();
    let id = peer.asked();
    peer.now += LinkConfig::default().dial_timeout;
    peer.link.handle_timeout(peer.now);
    assert_eq!(peer.ended(), Some(EndReason::DialTimeout));
    assert!(matches!(
        peer.hears().as_slice(),
        [Packet::DialResponse { error, .. }] if error.contains("timeout")
    ));
    assert_eq!(peer.link.dialed(peer.now, id, Ok(())), Err(Gone));
}

#[test]
fn a_dial_id_in_use_is_refused() {
    let mut peer = Peer::agent();
    peer.asked();
    peer.sends(dial_request(RANDOM));
    assert!(peer.events().is_empty());
    assert!(matches!(
        peer.hears().as_slice(),
        [Packet::DialResponse { error, .. }] if !error.is_empty()
    ));
}

#[test]
fn draining_is_said_first() {
    let mut peer = Peer::agent();
    let id = peer.dialed();
    peer.link.write(id, Bytes::from_static(b"x")).unwrap();
    peer.link.drain();
    assert_eq!(peer.hears(), [Packet::Drain, data(ID, b"x")]);
}

#[test]
fn handles_of_another_stream_mean_nothing() {
    let mut first = Peer::agent();
    let id = first.dialed();
    let tenant = tenant("a", generous(), 1 << 30);
    let (none, config) = (Extensions::default(), LinkConfig::default());
    let mut second = Peer {
        link: Link::agent(&tenant, StreamId(2), none, config),
        now: first.now,
    };
    second.dialed();
    assert_eq!(second.link.read(id, 1), Err(Gone));
    second.link.close(second.now, id);
    assert_eq!(second.link.tunnels(), 1);
}
