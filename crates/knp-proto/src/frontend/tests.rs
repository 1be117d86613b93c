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

/// Returns whether packets are still read: none is after a client's close.
fn is_read(frontend: &GrpcFrontend) -> bool {
    !matches!(frontend.state, State::Closing | State::Done)
}

fn dialing() -> GrpcFrontend {
    let mut frontend = GrpcFrontend::default();
    let (action, _) = take(&mut frontend, dial(RANDOM));
    assert!(matches!(action, Some(FrontendAction::Dial(_))));
    frontend
}

fn open() -> GrpcFrontend {
    let mut frontend = dialing();
    // The client's own number comes back.
    let answer = dial_response(RANDOM, MINE, "");
    assert_eq!(frontend.established(MINE), Some(answer));
    frontend
}

#[test]
fn packets_have_their_answers_in_each_state() {
    let idle = GrpcFrontend::default;
    let closed = || Some(FrontendAction::Close);
    let sent = FrontendAction::Data(Bytes::from_static(b"x"));
    let call_off = |random| Packet::CloseDial { random };
    let mismatched = [OTHER, MINE].map(|id| close_response(id, "mismatched connection IDs"));
    let told = |text| vec![close_response(MINE, text)];
    let long = Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address: "a".repeat(513),
        random: RANDOM,
    };
    let too_long = "address of 513 bytes, more than 512";
    let too_long = vec![dial_response(RANDOM, ConnectId(0), too_long)];
    let going_on = [
        (idle(), close(MINE), None, told("backend uninitialized")),
        (dialing(), data(MINE), None, told("unrecognized connectID")),
        (dialing(), call_off(DialId(1)), None, vec![]),
        (open(), data(MINE), Some(sent), vec![]),
        (open(), data(ConnectId(0)), None, vec![]),
        (open(), call_off(DialId(1)), None, vec![]),
    ];
    let ending = [
        (idle(), data(MINE), None, told("backend not initialized")),
        (idle(), long, None, too_long),
        // Another id ends the stream and touches no other tunnel.
        (open(), data(OTHER), closed(), mismatched.to_vec()),
        (open(), close(MINE), closed(), vec![]),
    ];
    let going_on = going_on.into_iter().map(|case| (case, true));
    let ending = ending.into_iter().map(|case| (case, false));
    for ((mut frontend, packet, action, replies), goes_on) in going_on.chain(ending) {
        let answer = take(&mut frontend, packet.clone());
        assert_eq!(answer, (action, replies), "{packet:?}");
        assert_eq!(is_read(&frontend), goes_on, "{packet:?}");
        if goes_on {
            continue;
        }
        assert_eq!(take(&mut frontend, data(MINE)), (None, Vec::new()));
        // A close of its own tunnel is answered at the end, and once.
        let end = (packet == close(MINE)).then(|| close_response(MINE, ""));
        assert_eq!(frontend.ended(&EndReason::LocalClosed), end);
        assert_eq!(frontend.ended(&EndReason::LocalClosed), None);
    }
}

#[test]
fn second_dial_is_refused() {
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
fn reset_without_text_is_named() {
    for (error, text) in [("", RESET_BY_PEER), ("its own words", "its own words")] {
        let error = error.to_owned();
        let answer = open().ended(&EndReason::PeerReset { error });
        assert_eq!(answer, Some(close_response(MINE, text)));
    }
}

#[test]
fn giving_up_crosses_an_answer() {
    for mut frontend in [dialing(), open()] {
        let mine = Packet::CloseDial { random: RANDOM };
        assert_eq!(take(&mut frontend, mine).0, Some(FrontendAction::Close));
        assert_eq!(frontend.established(MINE), None);
        assert_eq!(frontend.ended(&EndReason::Canceled), None);
    }
}

#[test]
fn failed_dial_is_reported_once_with_text() {
    let mut frontend = dialing();
    let error = "dial tcp 127.0.0.1:1: connect: connection refused".to_owned();
    let answer = dial_response(RANDOM, ConnectId(0), &error);
    let reason = EndReason::DialFailed { error };
    assert_eq!(frontend.ended(&reason), Some(answer));
    assert!(!is_read(&frontend));
    assert_eq!(frontend.ended(&reason), None);
}
