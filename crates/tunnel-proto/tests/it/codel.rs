//! The queue: bounds, bands, and CoDel against the RFC's words on a simulated link.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tunnel_proto::codel::{Band, DropReason, Params, Queue};

use super::{ms, start};

fn small() -> Params {
    Params {
        max_packets: 4,
        max_bytes: 4000,
        max_urgent: 2,
        ..Params::default()
    }
}

/// Pushes and answers what was dropped for it.
fn push(
    queue: &mut Queue<u32>,
    now: Instant,
    band: Band,
    item: u32,
    bytes: usize,
) -> Vec<(u32, DropReason)> {
    let mut dropped = Vec::new();
    queue.push(now, band, item, bytes, |item, reason| {
        dropped.push((item, reason))
    });
    dropped
}

fn pop(queue: &mut Queue<u32>, now: Instant) -> (Option<u32>, Vec<(u32, DropReason)>) {
    let mut dropped = Vec::new();
    let item = queue.pop(now, |item, reason| dropped.push((item, reason)));
    (item, dropped)
}

#[test]
fn oldest_makes_room_when_a_bound_is_reached() {
    let now = start();
    let mut queue = Queue::new(small());
    for item in 0..4 {
        assert_eq!(push(&mut queue, now, Band::Bulk, item, 100), []);
    }
    let dropped = push(&mut queue, now, Band::Bulk, 4, 100);
    assert_eq!(dropped, [(0, DropReason::FullPackets)]);
    let dropped = push(&mut queue, now, Band::Bulk, 5, 3750);
    let bytes = DropReason::FullBytes;
    assert_eq!(dropped, [(1, DropReason::FullPackets), (2, bytes)]);
    let dropped = push(&mut queue, now, Band::Bulk, 6, 4001);
    assert_eq!(dropped, [(6, DropReason::Oversize)]);
    assert_eq!((queue.len(), queue.bytes()), (3, 3950));
    assert_eq!(pop(&mut queue, now), (Some(3), vec![]));
}

#[test]
fn urgent_packets_go_first_and_expire() {
    let now = start();
    let mut queue = Queue::new(small());
    push(&mut queue, now, Band::Bulk, 0, 100);
    push(&mut queue, now, Band::Urgent, 1, 100);
    push(&mut queue, now + ms(1), Band::Urgent, 2, 100);
    let dropped = push(&mut queue, now + ms(2), Band::Urgent, 3, 100);
    assert_eq!(dropped, [(1, DropReason::FullPackets)]);
    let later = now + ms(5002);
    assert_eq!(
        pop(&mut queue, later),
        (Some(3), vec![(2, DropReason::Stale)])
    );
    assert_eq!(pop(&mut queue, later), (Some(0), vec![]));
    assert!(queue.is_empty());
}

/// The pseudocode of RFC 8289 §5, line by line, in nanoseconds since the start.
#[derive(Default)]
struct Reference {
    queue: std::collections::VecDeque<(u32, u64, usize)>,
    bytes: usize,
    first_above_time: u64,
    drop_next: u64,
    count: u32,
    lastcount: u32,
    dropping: bool,
    drops: Vec<u32>,
}

const TARGET: u64 = 5_000_000;
const INTERVAL: u64 = 100_000_000;
const MAXPACKET: usize = 1514;

impl Reference {
    fn dodequeue(&mut self, now: u64) -> (Option<u32>, bool) {
        let Some((item, tstamp, bytes)) = self.queue.pop_front() else {
            self.first_above_time = 0;
            return (None, false);
        };
        self.bytes -= bytes;
        let sojourn_time = now - tstamp;
        if sojourn_time < TARGET || self.bytes <= MAXPACKET {
            self.first_above_time = 0;
        } else if self.first_above_time == 0 {
            self.first_above_time = now + INTERVAL;
        } else if now >= self.first_above_time {
            return (Some(item), true);
        }
        (Some(item), false)
    }

    fn control_law(t: u64, count: u32) -> u64 {
        let interval = Duration::from_nanos(INTERVAL);
        t + interval.div_f64(f64::from(count).sqrt()).as_nanos() as u64
    }

    fn deque(&mut self, now: u64) -> Option<u32> {
        let (mut item, mut ok_to_drop) = self.dodequeue(now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                self.drops.extend(item);
                self.count += 1;
                (item, ok_to_drop) = self.dodequeue(now);
                if ok_to_drop {
                    self.drop_next = Self::control_law(self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            self.drops.extend(item);
            (item, _) = self.dodequeue(now);
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && now.saturating_sub(self.drop_next) < 16 * INTERVAL {
                self.count = delta;
            }
            self.drop_next = Self::control_law(now, self.count);
            self.lastcount = self.count;
        }
        item
    }
}

/// Feeds both with packets of `load` (gap in µs, bytes) through a link that takes `slot` µs for
/// each packet, and compares every answer.
fn compare(load: &[(u64, usize)], slot: u64) -> (usize, Duration) {
    let begin = start();
    let at = |nanos: u64| begin + Duration::from_nanos(nanos);
    let mut queue = Queue::new(Params {
        max_packets: usize::MAX,
        max_bytes: usize::MAX,
        ..Params::default()
    });
    let mut reference = Reference::default();
    let mut drops = Vec::new();
    let mut waits = Vec::new();
    let mut sent_at = std::collections::HashMap::new();
    // Time zero means "unset" to the pseudocode, so nothing happens then.
    let (mut arrival, mut departure) = (1_000, 1_000);
    let mut pending = load.iter().enumerate().peekable();
    while pending.peek().is_some() || !queue.is_empty() {
        let next = pending.peek().map(|(_, (gap, _))| arrival + gap * 1000);
        if next.is_some_and(|next| next <= departure || queue.is_empty()) {
            let (item, (gap, bytes)) = pending.next().unwrap();
            arrival += gap * 1000;
            departure = departure.max(arrival);
            let item = item as u32;
            push(&mut queue, at(arrival), Band::Bulk, item, *bytes);
            reference.queue.push_back((item, arrival, *bytes));
            reference.bytes += bytes;
            sent_at.insert(item, arrival);
            continue;
        }
        let (item, dropped) = pop(&mut queue, at(departure));
        drops.extend(dropped.into_iter().map(|(item, reason)| {
            assert_eq!(reason, DropReason::Delay);
            item
        }));
        assert_eq!(item, reference.deque(departure), "at {departure} ns");
        assert_eq!(drops, reference.drops);
        waits.extend(item.map(|item| departure - sent_at[&item]));
        departure += slot * 1000;
    }
    let half = &waits[waits.len() / 2..];
    let mean = half.iter().sum::<u64>() / half.len().max(1) as u64;
    (drops.len(), Duration::from_nanos(mean))
}

#[test]
fn standing_queue_is_brought_near_the_target() {
    // 1500 bytes each 1.2 ms is 10 Mb/s. A source a tenth too fast, for 20 s, would leave 2 s of
    // queue; bursts below the rate leave none and lose nothing.
    let (drops, wait) = compare(&vec![(1090, 1500); 18_000], 1200);
    assert!(drops > 1000, "{drops} drops");
    assert!(wait < ms(60), "{wait:?}");
    let burst = [vec![(40_000, 1500)], vec![(0, 1500); 20]].concat();
    let bursts = burst.repeat(200);
    assert_eq!(compare(&bursts, 1200).0, 0);
}

#[test]
fn drop_rate_is_remembered_for_a_while() {
    let overload = || vec![(600, 1500); 4000];
    for pause in [400_000, 20_000_000] {
        let load = [overload(), vec![(pause, 1500)], overload()].concat();
        compare(&load, 1200);
    }
}

#[test]
fn small_packets_survive_slow_link() {
    let (drops, _) = compare(&vec![(400_000, 1400); 100], 390_000);
    assert_eq!(drops, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_load_is_treated_as_the_rfc_says(
        phases in prop::collection::vec((0_u64..3000, 40_usize..1500, 1_usize..400), 1..8),
        slot in 200_u64..3000,
    ) {
        let load: Vec<_> = phases
            .into_iter()
            .flat_map(|(gap, bytes, count)| vec![(gap, bytes); count])
            .collect();
        compare(&load, slot);
    }

    #[test]
    fn bounds_hold_and_every_packet_is_accounted_for(
        steps in prop::collection::vec((0_u8..4, 1_usize..5000, 0_u64..50), 0..300),
    ) {
        let mut queue = Queue::new(small());
        let mut now = start();
        let gone = RefCell::new(0_u64);
        for (item, (kind, bytes, wait)) in (0..).zip(steps) {
            now += ms(wait);
            let lost = |_: u32, _| *gone.borrow_mut() += 1;
            match kind {
                0 => *gone.borrow_mut() += u64::from(queue.pop(now, lost).is_some()),
                1 => queue.push(now, Band::Urgent, item, bytes, lost),
                _ => queue.push(now, Band::Bulk, item, bytes, lost),
            }
            prop_assert!(queue.len() <= 6 && queue.bytes() <= 4000);
            let stats = queue.stats();
            let dropped: u64 = stats.dropped.iter().sum();
            prop_assert_eq!(stats.popped + dropped, *gone.borrow());
            prop_assert_eq!(stats.pushed, *gone.borrow() + queue.len() as u64);
        }
    }
}
