//! Who may open what through the tunnel, case by case.

use std::time::{Duration, Instant};

use tunnel_proto::allowed::PeerIndex;
use tunnel_proto::filter::{Before, Filter, FlowKey, Params, Refusal};
use tunnel_proto::ip::Header;
use tunnel_proto::ip::transport::flags::{ACK, FIN, PSH, RST, SYN};

use super::packets::{self, Segment, fragments, icmp, udp};
use super::start;

const NEAR: [&str; 2] = ["192.168.123.1", "fd00::1"];
const FAR: [&str; 2] = ["10.250.0.9", "fd99::9"];

struct Bench {
    filter: Filter,
    now: Instant,
}

impl Bench {
    fn new(params: Params) -> Self {
        let now = start();
        let filter = Filter::new(params, 0x5eed, now);
        Self { filter, now }
    }

    fn out(&mut self, packet: &[u8]) -> Result<PeerIndex, Refusal> {
        self.send(packet).map(|(peer, _)| peer)
    }

    /// Sends a packet and returns its peer, and whether it began a flow.
    fn send(&mut self, packet: &[u8]) -> Result<(PeerIndex, bool), Refusal> {
        let header = read(packet);
        let mut begins = false;
        let choose = |_: &FlowKey, before: Option<Before>| {
            begins = before.is_none();
            before.map_or_else(|| PeerIndex::new(3), |before| Some(before.peer))
        };
        let peer = self.filter.outbound(self.now, &header, packet, choose)?;
        Ok((peer, begins))
    }

    fn back(&mut self, packet: &[u8]) -> Result<(), Refusal> {
        let header = read(packet);
        self.filter.inbound(self.now, &header, packet)
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Opens a TCP connection and confirms it.
    fn connect(&mut self, port: u16) {
        assert!(self.send(&near(0, port, SYN)).unwrap().1);
        assert_eq!(self.back(&far(0, port, SYN | ACK)), Ok(()));
        assert!(!self.send(&near(0, port, ACK)).unwrap().1);
    }
}

fn read(packet: &[u8]) -> Header {
    Header::parse(packet).unwrap()
}

fn bench() -> Bench {
    Bench::new(Params::default())
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn tcp(from: &str, to: &str, ports: (u16, u16), flags: u8) -> Vec<u8> {
    packets::tcp(
        from,
        to,
        ports,
        Segment {
            flags,
            ..Segment::default()
        },
    )
}

/// A segment of the near side, family 0 or 1, to port 443.
fn near(family: usize, port: u16, flags: u8) -> Vec<u8> {
    tcp(NEAR[family], FAR[family], (port, 443), flags)
}

/// A segment of the far side, from port 443.
fn far(family: usize, port: u16, flags: u8) -> Vec<u8> {
    tcp(FAR[family], NEAR[family], (443, port), flags)
}

#[test]
fn near_side_connects_and_is_answered() {
    for family in [0, 1] {
        let mut bench = bench();
        let opened = bench.send(&near(family, 5000, SYN));
        assert_eq!(opened, Ok((PeerIndex::new(3).unwrap(), true)));
        assert_eq!(bench.back(&far(family, 5000, SYN | ACK)), Ok(()));
        for flags in [ACK, ACK | PSH, ACK | FIN] {
            assert!(bench.out(&near(family, 5000, flags)).is_ok());
            assert_eq!(bench.back(&far(family, 5000, flags)), Ok(()));
        }
    }
}

#[test]
fn far_side_opens_nothing() {
    for family in [0, 1] {
        let mut bench = bench();
        let (from, to) = (FAR[family], NEAR[family]);
        assert_eq!(bench.back(&far(family, 22, SYN)), Err(Refusal::Opening));
        for flags in [ACK, SYN | ACK, RST, RST | ACK, FIN | ACK] {
            assert_eq!(bench.back(&far(family, 22, flags)), Err(Refusal::NoFlow));
        }
        assert_eq!(
            bench.back(&udp(from, to, (53, 53), b"")),
            Err(Refusal::NoFlow)
        );
        let (request, reply) = if family == 0 { (8, 0) } else { (128, 129) };
        let echo = |kind| icmp(from, to, kind, 0, [0; 4], b"");
        assert_eq!(bench.back(&echo(request)), Err(Refusal::IcmpKind));
        assert_eq!(bench.back(&echo(reply)), Err(Refusal::NoFlow));
        let sctp = packets::ip(from, to, 132, &[0; 40]);
        assert_eq!(bench.back(&sctp), Err(Refusal::Protocol));
        assert!(bench.filter.is_empty());
    }
}

#[test]
fn known_flow_is_no_door_for_a_connection() {
    let mut bench = bench();
    bench.connect(5000);
    assert_eq!(bench.back(&far(0, 5000, SYN)), Err(Refusal::Opening));
    assert_eq!(
        bench.back(&far(0, 5000, SYN | 0x40 | 0x80)),
        Err(Refusal::Opening)
    ); // with ECN
    for nonsense in [
        SYN | ACK | FIN,
        SYN | ACK | RST,
        0,
        PSH,
        FIN,
        FIN | PSH | 0x20,
    ] {
        assert_eq!(bench.back(&far(0, 5000, nonsense)), Err(Refusal::Malformed));
    }
    assert_eq!(bench.back(&far(0, 5001, ACK)), Err(Refusal::NoFlow));
    let other_host = tcp("10.250.0.10", NEAR[0], (443, 5000), ACK);
    assert_eq!(bench.back(&other_host), Err(Refusal::NoFlow));
    let as_udp = udp(FAR[0], NEAR[0], (443, 5000), b"");
    assert_eq!(bench.back(&as_udp), Err(Refusal::NoFlow));
    assert_eq!(bench.back(&far(0, 5000, ACK)), Ok(()));
}

#[test]
fn data_before_the_handshake_are_refused() {
    let mut bench = bench();
    bench.out(&near(0, 5000, SYN)).unwrap();
    for flags in [ACK | PSH, ACK | FIN] {
        assert_eq!(bench.back(&far(0, 5000, flags)), Err(Refusal::State));
    }
    assert_eq!(
        bench.back(&far(0, 5000, ACK)),
        Ok(()),
        "a half-open connection may say so"
    );
    assert_eq!(bench.back(&far(0, 5000, RST | ACK)), Ok(()));
}

#[test]
fn syn_overtaken_by_answer_keeps_phase() {
    // Sent again while the answer was on its way: the near side's stack goes on with the first one.
    let mut bench = bench();
    bench.connect(5000);
    bench.out(&near(0, 5000, SYN)).unwrap();
    assert_eq!(bench.back(&far(0, 5000, ACK | PSH)), Ok(()));

    bench.out(&near(0, 5001, SYN)).unwrap();
    assert_eq!(bench.back(&far(0, 5001, SYN | ACK)), Ok(()));
    bench.out(&near(0, 5001, SYN)).unwrap();
    bench.out(&near(0, 5001, ACK)).unwrap();
    assert_eq!(bench.back(&far(0, 5001, ACK | PSH)), Ok(()));
    bench.wait(secs(7499)); // established
    assert_eq!(bench.back(&far(0, 5001, ACK | PSH)), Ok(()));
}

#[test]
fn near_side_cannot_accept_either() {
    let mut bench = bench();
    assert_eq!(bench.out(&near(0, 22, SYN | ACK)), Err(Refusal::State));
    assert_eq!(bench.out(&near(0, 22, RST | ACK)), Err(Refusal::NoFlow));
    assert!(bench.filter.is_empty());
}

#[test]
fn connection_is_picked_up_by_near_side_only() {
    let mut bench = bench();
    assert_eq!(bench.back(&far(0, 5000, ACK)), Err(Refusal::NoFlow));
    assert!(bench.send(&near(0, 5000, ACK | PSH)).unwrap().1);
    assert_eq!(bench.back(&far(0, 5000, ACK)), Ok(()));
    bench.wait(secs(7000)); // established by the answer
    assert_eq!(bench.back(&far(0, 5000, ACK)), Ok(()));
}

#[test]
fn each_phase_has_its_time() {
    let refused = Err(Refusal::NoFlow);
    let mut bench = bench();
    bench.out(&near(0, 1, SYN)).unwrap();
    bench.wait(secs(29));
    bench.out(&near(0, 1, SYN)).unwrap(); // sent again
    bench.wait(secs(29));
    assert_eq!(bench.back(&far(0, 1, ACK)), Ok(())); // which does not prolong it
    bench.wait(secs(1));
    assert_eq!(bench.back(&far(0, 1, SYN | ACK)), refused);

    bench.connect(2);
    bench.wait(secs(7499));
    assert_eq!(bench.back(&far(0, 2, ACK)), Ok(()));
    bench.wait(secs(7499));
    bench.out(&near(0, 2, ACK | FIN)).unwrap();
    bench.wait(secs(599));
    assert_eq!(bench.back(&far(0, 2, ACK)), Ok(()));
    bench.wait(secs(600));
    assert_eq!(bench.back(&far(0, 2, ACK)), refused);

    bench.connect(3);
    bench.out(&near(0, 3, ACK | FIN)).unwrap();
    bench.back(&far(0, 3, ACK | FIN)).unwrap();
    for _ in 0..2 {
        bench.out(&near(0, 3, ACK)).unwrap();
        assert_eq!(bench.back(&far(0, 3, ACK | FIN)), Ok(()));
        bench.wait(secs(10)); // nothing prolongs a closed flow
    }
    assert_eq!(bench.back(&far(0, 3, ACK | FIN)), refused);
}

#[test]
fn closed_flow_reopens_from_near_side() {
    let mut bench = bench();
    bench.connect(1);
    bench.back(&far(0, 1, RST)).unwrap();
    assert_eq!(bench.filter.open_flows(PeerIndex::new(3).unwrap()), 0);
    bench.connect_again(1);
    bench.wait(secs(100));
    assert_eq!(bench.back(&far(0, 1, ACK)), Ok(()));
    assert_eq!(bench.filter.open_flows(PeerIndex::new(3).unwrap()), 1);
}

impl Bench {
    fn connect_again(&mut self, port: u16) {
        assert!(!self.send(&near(0, port, SYN)).unwrap().1);
        assert_eq!(self.back(&far(0, port, SYN | ACK)), Ok(()));
        self.out(&near(0, port, ACK)).unwrap();
    }
}

#[test]
fn udp_is_kept_alive_by_the_near_side_alone() {
    let mut bench = bench();
    let (question, answer) = (
        udp(NEAR[1], FAR[1], (999, 53), b"?"),
        udp(FAR[1], NEAR[1], (53, 999), b"!"),
    );
    bench.out(&question).unwrap();
    bench.wait(secs(29));
    assert_eq!(bench.back(&answer), Ok(()));
    for _ in 0..3 {
        bench.wait(secs(39));
        assert_eq!(bench.back(&answer), Ok(()));
    }
    bench.wait(secs(3));
    assert_eq!(bench.back(&answer), Err(Refusal::NoFlow));
    bench.out(&question).unwrap();
    bench.wait(secs(30)); // not answered this time
    assert_eq!(bench.back(&answer), Err(Refusal::NoFlow));
}

#[test]
fn echo_is_answered_by_identifier() {
    for (family, request, reply) in [(0, 8, 0), (1, 128, 129)] {
        let mut bench = bench();
        let echo = |from: &str, to: &str, kind, id| icmp(from, to, kind, 0, [0, id, 0, 1], b"x");
        bench
            .out(&echo(NEAR[family], FAR[family], request, 7))
            .unwrap();
        let answer = |id| echo(FAR[family], NEAR[family], reply, id);
        assert_eq!(bench.back(&answer(7)), Ok(()));
        assert_eq!(bench.back(&answer(8)), Err(Refusal::NoFlow));
        let unasked = bench.out(&echo(NEAR[family], FAR[family], reply, 7));
        assert_eq!(unasked, Err(Refusal::IcmpKind));
    }
}

#[test]
fn errors_come_in_about_known_flows_only() {
    for (family, kinds, others) in [(0, [3, 11, 12], [4, 5]), (1, [1, 2, 3], [100, 137])] {
        let mut bench = bench();
        let sent = near(family, 5000, SYN);
        bench.out(&sent).unwrap();
        let router = ["203.0.113.1", "2001:db8::1"][family];
        let error = |kind, quoted: &[u8]| icmp(router, NEAR[family], kind, 0, [0; 4], quoted);
        let header = [20, 40][family];
        for kind in kinds {
            assert_eq!(bench.back(&error(kind, &sent)), Ok(()), "{kind}");
            assert_eq!(bench.back(&error(kind, &sent[..header + 8])), Ok(()));
            let cut = bench.back(&error(kind, &sent[..header + 7]));
            assert_eq!(cut, Err(Refusal::Related));
            let unknown = near(family, 5001, SYN);
            assert_eq!(bench.back(&error(kind, &unknown)), Err(Refusal::Related));
            let reverse = far(family, 5000, ACK);
            assert_eq!(bench.back(&error(kind, &reverse)), Err(Refusal::Related));
            let nothing = bench.back(&error(kind, &sent[..header - 1]));
            assert_eq!(nothing, Err(Refusal::Malformed));
        }
        for kind in others {
            assert_eq!(
                bench.back(&error(kind, &sent)),
                Err(Refusal::IcmpKind),
                "{kind}"
            );
        }
        let elsewhere = ["192.168.123.2", "fd00::2"][family];
        let misdirected = icmp(router, elsewhere, kinds[0], 0, [0; 4], &sent);
        assert_eq!(bench.back(&misdirected), Err(Refusal::Related));
    }
}

#[test]
fn errors_go_out_about_known_flows_by_their_peer() {
    let mut bench = bench();
    bench.connect(5000);
    let error = |quoted: &[u8]| icmp(NEAR[0], FAR[0], 3, 4, [0; 4], quoted);
    let sent = bench.send(&error(&far(0, 5000, ACK)));
    assert_eq!(sent, Ok((PeerIndex::new(3).unwrap(), false)));
    assert_eq!(bench.out(&error(&far(0, 5001, ACK))), Err(Refusal::Related));
}

#[test]
fn fragments_follow_their_first() {
    for family in [0, 1] {
        let mut bench = bench();
        let (a, b) = (NEAR[family], FAR[family]);
        let question = fragments(&udp(a, b, (999, 53), &[1; 200]), 104);
        let answer = fragments(&udp(b, a, (53, 999), &[1; 300]), 104);
        assert_eq!(bench.back(&answer[1]), Err(Refusal::Fragment));
        assert_eq!(bench.out(&question[1]), Err(Refusal::Fragment));
        for part in &question {
            assert!(bench.out(part).is_ok());
        }
        for part in &answer {
            assert_eq!(bench.back(part), Ok(()));
        }
        bench.wait(secs(31));
        assert_eq!(bench.back(&answer[1]), Err(Refusal::Fragment));
    }
}

#[test]
fn fragments_reach_into_nothing_that_was_judged() {
    for family in [0, 1] {
        let mut bench = bench();
        let (a, b) = (NEAR[family], FAR[family]);
        bench.connect_family(family);
        let header = Segment {
            flags: ACK,
            payload: &[1; 200],
            ..Segment::default()
        };
        let whole = packets::tcp(b, a, (443, 5000), header);
        let cut_header = fragments(&whole, 16);
        assert_eq!(bench.back(&cut_header[0]), Err(Refusal::Malformed));
        assert_eq!(bench.back(&cut_header[1]), Err(Refusal::Fragment));
        let parts = fragments(&whole, 80);
        assert_eq!(bench.back(&parts[0]), Ok(()));
        let overlapping = &fragments(&whole, 72)[1];
        assert_eq!(bench.back(overlapping), Err(Refusal::Fragment));
        assert_eq!(bench.back(&parts[1]), Ok(()));
        // The first fragment of an attempt to connect lets none follow.
        let attempt = Segment {
            flags: SYN,
            payload: &[1; 200],
            ..Segment::default()
        };
        let mut parts = fragments(&packets::tcp(b, a, (443, 5000), attempt), 80);
        for part in &mut parts {
            let id = if family == 0 { 5 } else { 47 };
            part[id] = 0x77;
        }
        assert_eq!(bench.back(&parts[0]), Err(Refusal::Opening));
        assert_eq!(bench.back(&parts[1]), Err(Refusal::Fragment));
    }
}

impl Bench {
    fn connect_family(&mut self, family: usize) {
        self.out(&near(family, 5000, SYN)).unwrap();
        self.back(&far(family, 5000, SYN | ACK)).unwrap();
        self.out(&near(family, 5000, ACK)).unwrap();
    }
}

#[test]
fn extension_headers_move_no_fragment_boundary() {
    // The fragment header is followed by 24 bytes of options, then TCP: a second fragment that
    // begins within the segment, though behind its length counted from the transport header.
    let mut bench = bench();
    bench.connect_family(1);
    let segment = Segment {
        flags: ACK,
        payload: &[1; 4],
        ..Segment::default()
    };
    let plain = packets::tcp(FAR[1], NEAR[1], (443, 5000), segment);
    let mut options = vec![6, 2, 1, 20];
    options.resize(24, 0);
    let whole = packets::extended(&plain, 60, &options);
    let first = &fragments(&[&whole[..], &[0; 8]].concat(), 48)[0];
    assert_eq!(Header::parse(first).unwrap().protocol, 6);
    assert_eq!(bench.back(first), Ok(()));
    let with_offset = |offset: u16| {
        let mut later = first.clone();
        later[42..44].copy_from_slice(&offset.to_be_bytes());
        later
    };
    for offset in [8, 24, 32, 40] {
        assert_eq!(
            bench.back(&with_offset(offset)),
            Err(Refusal::Fragment),
            "{offset}"
        );
    }
    assert_eq!(bench.back(&with_offset(48)), Ok(()));
    assert_eq!(
        bench.back(&with_offset(0xfff8)),
        Err(Refusal::Fragment),
        "beyond any packet"
    );
}

#[test]
fn extension_headers_hide_nothing() {
    let mut bench = bench();
    let options = [6, 0, 1, 4, 0, 0, 0, 0];
    let syn = packets::extended(&far(1, 22, SYN), 60, &options);
    assert_eq!(bench.back(&syn), Err(Refusal::Opening));
    bench.out(&near(1, 22, SYN)).unwrap();
    let answer = packets::extended(&far(1, 22, SYN | ACK), 60, &options);
    assert_eq!(bench.back(&answer), Ok(()));
    let mut routing = vec![6, 2, 0, 1];
    routing.resize(24, 0);
    let routed = packets::extended(&far(1, 22, SYN | ACK), 43, &routing);
    assert_eq!(bench.back(&routed), Err(Refusal::SourceRoute));
}

#[test]
fn impossible_addresses_are_refused_both_ways() {
    for (from, to) in [
        ("::ffff:10.0.0.1", "fd00::1"),
        ("fd99::9", "::ffff:192.168.123.1"),
        ("fd99::9", "::192.168.123.1"),
        ("fd99::9", "::1"),
        ("::", "fd00::1"),
        ("fd99::9", "ff02::1"),
        ("127.0.0.1", "192.168.123.1"),
        ("10.0.0.1", "127.0.0.1"),
        ("10.0.0.1", "224.0.0.1"),
        ("10.0.0.1", "255.255.255.255"),
        ("0.0.0.0", "10.0.0.1"),
    ] {
        let mut bench = bench();
        let packet = udp(from, to, (1, 2), b"");
        assert_eq!(bench.out(&packet), Err(Refusal::Address), "{from} {to}");
        assert_eq!(bench.back(&packet), Err(Refusal::Address), "{from} {to}");
    }
}

#[test]
fn full_table_evicts_closed_then_unanswered_only() {
    let mut bench = Bench::new(Params {
        max_flows: 3,
        ..Params::default()
    });
    bench.connect(1);
    bench.connect(2);
    bench.back(&far(0, 2, RST)).unwrap();
    bench.out(&near(0, 3, SYN)).unwrap();
    bench.out(&near(0, 4, SYN)).unwrap(); // for 2, which is closed
    assert_eq!(bench.back(&far(0, 2, ACK)), Err(Refusal::NoFlow));
    bench.out(&near(0, 5, SYN)).unwrap(); // for 3, the oldest unanswered
    assert_eq!(bench.back(&far(0, 3, SYN | ACK)), Err(Refusal::NoFlow));
    assert_eq!(bench.filter.evicted(), 2);
    for port in [4, 5] {
        bench.back(&far(0, port, SYN | ACK)).unwrap();
        bench.out(&near(0, port, ACK)).unwrap();
    }
    assert_eq!(bench.out(&near(0, 6, SYN)), Err(Refusal::TableFull));
    for port in [1, 4, 5] {
        assert_eq!(bench.back(&far(0, port, ACK)), Ok(()));
    }
    bench.wait(secs(8000)); // now the established ones are over
    bench.connect(6);
    let refused = |kind| {
        bench
            .filter
            .refused()
            .find(|((refusal, _), _)| *refusal == kind)
            .unwrap()
            .1
    };
    assert_eq!(
        (refused(Refusal::TableFull), refused(Refusal::NoFlow)),
        (1, 2)
    );
}

#[test]
fn flow_keeps_its_peer_until_it_is_moved() {
    let now = start();
    let mut filter = Filter::new(Params::default(), 1, now);
    let (zero, one) = (PeerIndex::new(0), PeerIndex::new(1));
    let syn = near(0, 1, SYN);
    let header = Header::parse(&syn).unwrap();
    let none = filter.outbound(now, &header, &syn, |_, _| None);
    assert_eq!((none, filter.len()), (Err(Refusal::NoPeer), 0));
    let mut send = |choice| {
        let mut seen = None;
        let choose = |_: &FlowKey, before: Option<Before>| {
            seen = before.map(|before| before.peer);
            choice
        };
        let sent = filter.outbound(now, &header, &syn, choose).unwrap();
        (sent, seen)
    };
    assert_eq!(send(zero), (zero.unwrap(), None));
    assert_eq!(send(one), (one.unwrap(), zero));
    assert_eq!(send(one), (one.unwrap(), one));
    assert_eq!(filter.open_flows(zero.unwrap()), 0);
    assert_eq!(filter.open_flows(one.unwrap()), 1);
}

#[test]
fn sweep_forgets_expired_and_keeps_used() {
    let mut bench = bench();
    for port in 0..100 {
        bench.connect(port);
    }
    bench.wait(secs(7000));
    for port in 0..50 {
        bench.out(&near(0, port, ACK)).unwrap();
    }
    bench.wait(secs(600));
    bench.filter.sweep(bench.now, 10);
    assert_eq!(
        bench.filter.len(),
        100,
        "ten were looked at, and all of them were used"
    );
    bench.filter.sweep(bench.now, 100);
    assert_eq!(bench.filter.len(), 50);
    bench.wait(secs(15_000));
    bench.filter.sweep(bench.now, 100);
    assert!(bench.filter.is_empty());
    bench.connect(7);
    assert_eq!(bench.filter.len(), 1);
}
