//! The filter against a model that keeps everything in plain sight and never tidies up.

use std::collections::HashMap;

use proptest::prelude::*;
use tunnel_proto::allowed::PeerIndex;
use tunnel_proto::filter::{Filter, Params};
use tunnel_proto::ip::Header;
use tunnel_proto::ip::transport::flags::{ACK, FIN, PSH, RST, SYN};

use super::packets::{Segment, icmp, tcp, udp};
use super::{ms, start};

const NEAR: &str = "fd00::1";
const FAR: &str = "fd99::9";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp(u8),
    Udp,
    Echo,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    wait_secs: u64,
    inbound: bool,
    kind: Kind,
    port: u8,
}

/// All that is known of a flow; times in seconds.
#[derive(Clone, Debug, Default)]
struct Known {
    from_the_middle: bool,
    answered: bool,
    confirmed: bool,
    fins: (bool, bool),
    closed: Option<u64>,
    used: u64,
}

impl Known {
    fn lives(&self, now: u64, kind: Kind) -> bool {
        let limit = match (kind, self) {
            (
                _,
                Self {
                    closed: Some(closed),
                    ..
                },
            ) => return now < closed + 20,
            (Kind::Echo, _) => 30,
            (Kind::Udp, Self { answered: true, .. }) => 120,
            (Kind::Udp, _) => 30,
            (
                Kind::Tcp(_),
                Self {
                    fins: (true, _) | (_, true),
                    ..
                },
            ) => 600,
            (
                Kind::Tcp(_),
                Self {
                    confirmed: true, ..
                },
            ) => 7500,
            (Kind::Tcp(_), _) => 30,
        };
        now < self.used + limit
    }

    fn close_if_both_finished(&mut self, now: u64) {
        if self.fins == (true, true) && self.closed.is_none() {
            self.closed = Some(now);
        }
    }
}

#[derive(Default)]
struct Model {
    flows: HashMap<(u8, u8), Known>,
    now: u64,
}

impl Model {
    fn step(&mut self, step: Step) -> bool {
        let protocol = match step.kind {
            Kind::Tcp(_) => 6,
            Kind::Udp => 17,
            Kind::Echo => 58,
        };
        let key = (protocol, step.port);
        let known = self.flows.get(&key);
        let alive = known
            .filter(|known| known.lives(self.now, step.kind))
            .cloned();
        let after = match (step.kind, step.inbound) {
            (Kind::Tcp(flags), true) => self.segment_in(alive, flags),
            (Kind::Tcp(flags), false) => self.segment_out(alive, flags),
            (_, true) => alive.map(|mut known| {
                if matches!(step.kind, Kind::Udp) && !known.answered {
                    known.used = self.now;
                }
                known.answered = true;
                known
            }),
            (_, false) => Some(Known {
                used: self.now,
                ..alive.unwrap_or_default()
            }),
        };
        let passes = after.is_some();
        if let Some(known) = after {
            self.flows.insert(key, known);
        }
        passes
    }

    fn segment_out(&self, alive: Option<Known>, flags: u8) -> Option<Known> {
        let new = Known {
            used: self.now,
            ..Known::default()
        };
        if flags & SYN != 0 {
            // An established connection may have been picked up; one that only was is begun anew.
            let goes_on = alive.filter(|known| {
                let both_open = known.closed.is_none() && known.fins == (false, false);
                both_open && (known.answered || known.confirmed)
            });
            let sent_again = goes_on.map(|known| Known {
                used: self.now,
                ..known
            });
            return (flags == SYN).then(|| sent_again.unwrap_or(new));
        }
        let Some(mut known) = alive else {
            let middle = flags & (RST | FIN) == 0 && flags & ACK != 0;
            return middle.then_some(Known {
                from_the_middle: true,
                ..new
            });
        };
        if known.closed.is_some() {
            return Some(known);
        }
        known.used = self.now;
        let handshake = !known.confirmed && !known.answered && !known.from_the_middle;
        if flags & RST != 0 {
            known.closed = Some(self.now);
        } else if flags & FIN != 0 && !handshake {
            known.fins.0 = true;
        } else if flags & ACK != 0 && known.answered {
            known.confirmed = true;
        }
        known.close_if_both_finished(self.now);
        Some(known)
    }

    fn segment_in(&self, alive: Option<Known>, flags: u8) -> Option<Known> {
        let has = |flag| flags & flag != 0;
        if has(SYN) && (!has(ACK) || has(FIN) || has(RST)) || !has(ACK) && !has(RST) {
            return None;
        }
        let mut known = alive?;
        if known.closed.is_some() {
            return Some(known);
        }
        if has(RST) {
            known.closed = Some(self.now);
            return Some(known);
        }
        let finishing = known.fins.0;
        if known.confirmed || finishing || known.fins.1 {
            known.used = self.now;
            known.fins.1 |= has(FIN);
            known.close_if_both_finished(self.now);
            return Some(known);
        }
        if known.from_the_middle {
            known.used = self.now;
            known.confirmed = true;
            known.fins.1 = has(FIN);
            return Some(known);
        }
        match (known.answered, has(SYN), flags == ACK) {
            (true, ..) => Some(known),
            (false, true, _) => {
                known.answered = true;
                known.used = self.now;
                Some(known)
            }
            (false, false, true) => Some(known),
            _ => None,
        }
    }
}

fn packet(step: Step) -> Vec<u8> {
    let port = u16::from(step.port);
    let (src, dst, ports) = if step.inbound {
        (FAR, NEAR, (443, port))
    } else {
        (NEAR, FAR, (port, 443))
    };
    match step.kind {
        Kind::Tcp(flags) => tcp(
            src,
            dst,
            ports,
            Segment {
                flags,
                ..Segment::default()
            },
        ),
        Kind::Udp => udp(src, dst, ports, b""),
        Kind::Echo => {
            let kind = if step.inbound { 129 } else { 128 };
            icmp(src, dst, kind, 0, [0, step.port, 0, 0], b"")
        }
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let flags = prop::sample::select(vec![
        SYN,
        SYN | ACK,
        ACK,
        ACK,
        ACK | PSH,
        ACK | FIN,
        RST,
        RST | ACK,
        FIN,
        0,
        SYN | FIN,
    ]);
    let kind = prop_oneof![
        6 => flags.prop_map(Kind::Tcp),
        1 => Just(Kind::Udp),
        1 => Just(Kind::Echo),
    ];
    let wait = prop::sample::select(vec![
        0, 0, 0, 0, 1, 19, 20, 29, 30, 119, 599, 600, 7499, 7500,
    ]);
    (wait, any::<bool>(), kind, 0_u8..2).prop_map(|(wait_secs, inbound, kind, port)| Step {
        wait_secs,
        inbound,
        kind,
        port,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_verdict_is_the_models(
        steps in prop::collection::vec(any_step(), 1..60),
        sweep in any::<bool>(),
    ) {
        let begin = start();
        let mut filter = Filter::new(Params::default(), 9, begin);
        let mut model = Model::default();
        for (at, step) in steps.iter().enumerate() {
            model.now += step.wait_secs;
            let now = begin + ms(model.now * 1000);
            let packet = packet(*step);
            let header = Header::parse(&packet).unwrap();
            let passes = if step.inbound {
                filter.inbound(now, &header, &packet).is_ok()
            } else {
                filter.outbound(now, &header, &packet, |_, _| PeerIndex::new(0)).is_ok()
            };
            prop_assert_eq!(passes, model.step(*step), "step {} of {:?}", at, steps);
            if sweep {
                filter.sweep(now, 100);
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn table_keeps_bound_and_established_flows(
        opens in prop::collection::vec((any::<u16>(), any::<bool>()), 1..200),
        bound in 1_usize..40,
    ) {
        let now = start();
        let mut filter = Filter::new(Params { max_flows: bound, ..Params::default() }, 9, now);
        let mut established = Vec::new();
        for (port, confirm) in opens {
            let segment = |from, to, ports, flags| {
                tcp(from, to, ports, Segment { flags, ..Segment::default() })
            };
            let mut out = |flags| {
                let packet = segment(NEAR, FAR, (port, 443), flags);
                let header = Header::parse(&packet).unwrap();
                let choose = |_: &_, _| PeerIndex::new(0);
                let sent = filter.outbound(now, &header, &packet, choose).is_ok();
                assert!(filter.len() <= bound);
                if flags == SYN && sent && confirm {
                    let answer = segment(FAR, NEAR, (443, port), SYN | ACK);
                    filter.inbound(now, &Header::parse(&answer).unwrap(), &answer).unwrap();
                }
                sent
            };
            if established.contains(&port) {
                continue;
            }
            if out(SYN) && confirm && out(ACK) {
                established.push(port);
            }
            for port in &established {
                let data = segment(FAR, NEAR, (443, *port), ACK);
                let header = Header::parse(&data).unwrap();
                prop_assert_eq!(filter.inbound(now, &header, &data), Ok(()));
            }
        }
        prop_assert!(established.len() <= bound);
    }
}
