//! What a line does to packets, with a clock that is an argument.

use std::time::Duration;

use super::line::Line;
use super::*;

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A packet of IPv4 with a protocol, a number and a length.
fn packet(protocol: u8, number: u16, length: usize) -> Vec<u8> {
    let mut packet = vec![0; length.max(20)];
    packet[0] = 0x45;
    packet[4..6].copy_from_slice(&number.to_be_bytes());
    packet[9] = protocol;
    packet
}

/// Sends `count` numbered packets, one each `gap`, and returns the numbers of those that arrive and
/// when.
fn sent(line: &mut Line, count: u16, gap: Duration, how: &Impairment) -> Vec<(u16, Duration)> {
    line.impairment = *how;
    let mut arrived = Vec::new();
    let mut now = Duration::ZERO;
    for number in 0..count {
        collect(line, now, &mut arrived);
        line.offer(now, &packet(17, number, 1000));
        now += gap;
    }
    collect(line, Duration::MAX, &mut arrived);
    arrived
}

fn collect(line: &mut Line, until: Duration, arrived: &mut Vec<(u16, Duration)>) {
    while let Some(due) = line.due().filter(|due| *due <= until) {
        let packet = line.take(due).unwrap();
        arrived.push((u16::from_be_bytes([packet[4], packet[5]]), due));
        line.arrived(packet, true);
    }
}

#[test]
fn a_long_line_delays_every_packet_alike() {
    let how = Impairment::long(millis(25), 0.0);
    let arrived = sent(&mut Line::new(1), 100, millis(1), &how);
    let expected: Vec<_> = (0..100).map(|n| (n, millis(25 + u64::from(n)))).collect();
    assert_eq!(arrived, expected);
}

#[test]
fn the_same_seed_loses_the_same_packets() {
    let how = Impairment::long(Duration::ZERO, 0.01);
    let run = |seed| {
        let mut line = Line::new(seed);
        let arrived = sent(&mut line, 10_000, millis(1), &how);
        assert_eq!(line.counts().lost + arrived.len() as u64, 10_000);
        arrived
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
    let lost = 10_000 - first.len();
    assert!((70..130).contains(&lost), "{lost} of 10000 at 1 %");
}

#[test]
fn jitter_changes_delays_and_keeps_the_order() {
    let how = Impairment {
        jitter: millis(10),
        ..Impairment::long(millis(20), 0.0)
    };
    let arrived = sent(&mut Line::new(3), 1000, millis(20), &how);
    let delays: Vec<Duration> = arrived
        .iter()
        .map(|(number, due)| *due - millis(20 * u64::from(*number)))
        .collect();
    assert!(delays.iter().all(|d| (millis(10)..=millis(30)).contains(d)));
    assert!(delays.iter().any(|d| *d < millis(12)) && delays.iter().any(|d| *d > millis(28)));
    let close = sent(&mut Line::new(3), 1000, millis(1), &how);
    assert!(close.is_sorted_by_key(|(number, _)| *number));
}

#[test]
fn reordered_packets_are_overtaken() {
    let how = Impairment {
        reorder: 0.1,
        ..Impairment::long(millis(20), 0.0)
    };
    let arrived = sent(&mut Line::new(5), 1000, millis(1), &how);
    assert_eq!(arrived.len(), 1000);
    let late = arrived.windows(2).filter(|w| w[0].0 > w[1].0).count();
    assert!((50..150).contains(&late), "{late}");
}

#[test]
fn duplicates_come_twice() {
    let how = Impairment {
        duplicate: 0.5,
        ..Impairment::default()
    };
    let mut line = Line::new(5);
    let arrived = sent(&mut line, 1000, millis(1), &how);
    assert!((1400..1600).contains(&arrived.len()), "{}", arrived.len());
    let counts = line.counts();
    assert_eq!(counts.bytes, arrived.len() as u64 * 1000);
    assert_eq!((counts.tcp_bytes, counts.udp_bytes), (0, counts.bytes));
}

#[test]
fn rate_spaces_packets_with_bounded_queue() {
    let how = Impairment {
        rate: Some(8_000_000),
        queue: 10,
        ..Impairment::long(millis(5), 0.0)
    };
    // One of 1000 bytes takes a millisecond.
    let mut line = Line::new(1);
    let burst = sent(&mut line, 15, Duration::ZERO, &how);
    let expected: Vec<_> = (0..10).map(|n| (n, millis(6 + u64::from(n)))).collect();
    assert_eq!(burst, expected);
    assert_eq!(line.counts().overflowed, 5);
    let paced = sent(&mut Line::new(1), 100, millis(2), &how);
    let mut paced = paced.iter();
    assert!(paced.all(|(n, due)| *due == millis(6 + 2 * u64::from(*n))));
}

#[test]
fn line_without_rate_bounds_packets() {
    let how = Impairment::long(millis(1), 0.0);
    let mut line = Line::new(1);
    assert_eq!(sent(&mut line, 5000, Duration::ZERO, &how).len(), 4096);
    assert_eq!(line.counts().overflowed, 5000 - 4096);
}

#[test]
fn a_black_hole_swallows_what_it_is_for() {
    let passes = |what, packet: &[u8]| {
        let mut line = Line::new(1);
        line.impairment = Impairment::swallowing(what);
        line.offer(Duration::ZERO, packet);
        line.take(Duration::ZERO).is_some()
    };
    let (tcp, udp) = (packet(6, 0, 40), packet(17, 0, 40));
    let mut fragment = vec![0; 60];
    (fragment[0], fragment[6], fragment[40]) = (0x60, 44, 17);
    for (what, expected) in [
        (BlackHole::Nothing, [true, true, true]),
        (BlackHole::Tcp, [false, true, true]),
        (BlackHole::Udp, [true, false, false]),
        (BlackHole::Everything, [false, false, false]),
    ] {
        let passed = [&tcp, &udp, &fragment].map(|packet| passes(what, packet));
        assert_eq!(passed, expected, "{what:?}");
    }
}

#[test]
fn large_packets_vanish_in_a_hole() {
    let mut line = Line::new(1);
    line.impairment.largest = Some(1280);
    line.offer(Duration::ZERO, &packet(17, 0, 1280));
    line.offer(Duration::ZERO, &packet(17, 1, 1281));
    assert_eq!(line.take(Duration::ZERO).unwrap().len(), 1280);
    assert_eq!((line.due(), line.counts().too_large), (None, 1));
}
