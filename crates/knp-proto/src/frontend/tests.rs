//! A client's stream, packet by packet.

use super::*;

const MINE: ConnectId = ConnectId(5);
const OTHER: ConnectId = ConnectId(6);
const RANDOM: DialId = DialId(77);

fn dial(random: DialId) -> Packet {
    Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address: "10.0.0.1:10250".to_owned(),
        random,
    }
}

fn data(connect_id: ConnectId) -> Packet {
    Packet::Data {
        connect_id,
        data: Bytes::from_static(b"x"),
    }
}

fn close(connect_id: ConnectId) -> Packet {
    Packet::CloseRequest { connect_id }
}

/// Returns the action, and the replies.
fn take(frontend: &mut GrpcFrontend, packet: Packet) -> (Option<FrontendAction>, Vec<Packet>) {
    let mut replies = Vec::new();
    let action = frontend.handle_packet(packet, &mut replies);
    (action, replies)
}

fn open() -> GrpcFrontend {
    let mut frontend = GrpcFrontend::new();
    let (action, _) = take(&mut frontend, dial(RANDOM));
    assert!(matches!(action, Some(FrontendAction::Dial(_))));
    assert!(frontend.established(MINE).is_some());
    frontend
}

#[test]
fn the_clients_own_number_comes_back() {
    let mut frontend = GrpcFrontend::new();
    take(&mut frontend, dial(RANDOM));
    let answer = frontend.established(MINE);
    assert_eq!(
        answer,
        Some(Packet::DialResponse {
            error: String::new(),
            connect_id: MINE,
            random: RANDOM,
        })
    );
    let (action, _) = take(&mut frontend, data(MINE));
    assert_eq!(action, Some(FrontendAction::Data(Bytes::from_static(b"x"))));
}

#[test]
fn data_and_closes_before_a_dial_get_upstreams_texts() {
    let mut frontend = GrpcFrontend::new();
    let (action, replies) = take(&mut frontend, close(MINE));
    assert_eq!(action, None);
    assert_eq!(replies, [close_response(MINE, "backend uninitialized")]);
    assert!(frontend.wants_read());
    let (_, replies) = take(&mut frontend, data(MINE));
    assert_eq!(replies, [close_response(MINE, "backend not initialized")]);
    assert!(!frontend.wants_read());
}

#[test]
fn another_id_ends_the_stream_and_touches_no_other_tunnel() {
    let mut frontend = open();
    let (action, replies) = take(&mut frontend, data(OTHER));
    assert_eq!(action, Some(FrontendAction::Close));
    let text = "mismatched connection IDs";
    assert_eq!(
        replies,
        [close_response(OTHER, text), close_response(MINE, text)]
    );
    assert!(!frontend.wants_read());
    assert_eq!(frontend.ended(&EndReason::LocalClosed), None);
}

#[test]
fn id_0_is_dropped() {
    let mut frontend = open();
    assert_eq!(take(&mut frontend, data(ConnectId(0))), (None, Vec::new()));
    assert!(frontend.wants_read());
}

#[test]
fn a_second_dial_is_refused_and_the_first_goes_on() {
    let mut frontend = open();
    let (action, replies) = take(&mut frontend, dial(DialId(78)));
    assert_eq!(action, None);
    assert!(matches!(
        replies.as_slice(),
        [Packet::DialResponse { error, random: DialId(78), .. }] if !error.is_empty()
    ));
    assert!(take(&mut frontend, data(MINE)).0.is_some());
}

#[test]
fn a_close_is_the_last_packet_and_is_answered_at_the_end() {
    let mut frontend = open();
    assert_eq!(
        take(&mut frontend, close(MINE)).0,
        Some(FrontendAction::Close)
    );
    assert!(!frontend.wants_read());
    assert_eq!(take(&mut frontend, data(MINE)), (None, Vec::new()));
    let answer = frontend.ended(&EndReason::LocalClosed);
    assert_eq!(answer, Some(close_response(MINE, "")));
    assert_eq!(frontend.ended(&EndReason::LocalClosed), None);
}

#[test]
fn reset_without_text_is_named() {
    let error = String::new();
    let answer = open().ended(&EndReason::PeerReset { error });
    assert_eq!(answer, Some(close_response(MINE, RESET_BY_PEER)));
    let error = "its own words".to_owned();
    let answer = open().ended(&EndReason::PeerReset { error });
    assert_eq!(answer, Some(close_response(MINE, "its own words")));
}

#[test]
fn giving_up_crosses_an_answer() {
    for answered in [false, true] {
        let mut frontend = GrpcFrontend::new();
        take(&mut frontend, dial(RANDOM));
        if answered {
            frontend.established(MINE);
        }
        let other = Packet::CloseDial { random: DialId(1) };
        assert_eq!(take(&mut frontend, other).0, None);
        let mine = Packet::CloseDial { random: RANDOM };
        assert_eq!(take(&mut frontend, mine).0, Some(FrontendAction::Close));
        assert_eq!(frontend.established(MINE), None);
        assert_eq!(frontend.ended(&EndReason::Canceled), None);
    }
}

#[test]
fn a_dial_that_fails_is_told_once_with_the_agents_text() {
    let mut frontend = GrpcFrontend::new();
    take(&mut frontend, dial(RANDOM));
    let error = "dial tcp 127.0.0.1:1: connect: connection refused".to_owned();
    let reason = EndReason::DialFailed {
        error: error.clone(),
    };
    assert_eq!(
        frontend.ended(&reason),
        Some(Packet::DialResponse {
            error,
            connect_id: ConnectId(0),
            random: RANDOM,
        })
    );
    assert!(!frontend.wants_read());
    assert_eq!(frontend.ended(&reason), None);
}
