//! What our gateway must hold, and by which peer it is judged.
//!
//! ```text
//!   figure of ours ──▶ the peers' in this run, else as recorded ──▶ bound, ratio
//! ```
//!
//! What was recorded comes from a quiet machine of two processors (Intel Xeon, Linux 6.18) and stands
//! in when the peer was not measured in the run. The ratio is to the best peer of the run alone.

use super::figure as of;
use crate::report::{Bound, DIRECT, Figure, Known, Run};

pub(crate) fn known(run: &Run, setup: &str, case: &str, figure: Figure) -> Known {
    if !is_ours(setup) {
        return Known::default();
    }
    Known {
        must: must(run, setup, case, figure),
        // A proxy that has more of its processor is not worse.
        peer: best_peer(run, case, figure).filter(|_| figure != of::PROXY_BUSY),
    }
}

fn is_ours(setup: &str) -> bool {
    setup.starts_with(OURS)
}

fn best_peer(run: &Run, case: &str, figure: Figure) -> Option<f64> {
    run.best(case, figure, |setup| {
        ![DIRECT, LOOP].contains(&setup) && !is_ours(setup)
    })
}

fn must(run: &Run, setup: &str, case: &str, figure: Figure) -> Option<Bound> {
    let peer = |name: &str| run.median(name, case, figure);
    Some(match figure {
        of::FAILED => Bound::AtMost(0.0),
        of::PER_CONNECTION => Bound::AtMost(2.0),
        of::KEPT => Bound::AtMost(0.5),
        of::CPU_EACH if case.contains(CONNS) && !case.starts_with("connect") => {
            Bound::AtMost(peer("nginx").unwrap_or(NGINX_CONNECTION))
        }
        of::CPU_PER_GB if setup == COPYING => {
            // Where even a bare loop costs more, it is the machine.
            let machine = peer(LOOP).unwrap_or(COPIED);
            return streams(case).map(|_| Bound::AtMost(COPIED.max(machine)));
        }
        of::CPU_PER_GB => {
            let recorded = match streams(case)? {
                8 => SPLICE_8,
                64 => SPLICE_64,
                _ => return None,
            };
            let splice = peer("haproxy-splice").unwrap_or(recorded);
            let envoy = peer("envoy").map_or(f64::INFINITY, |envoy| 0.4 * envoy);
            Bound::AtMost(splice.min(envoy))
        }
        of::P50 if case.ends_with(ONE_CPU) => Bound::AtMost(
            peer("nginx").map_or(ROUND_TRIP, |nginx| nginx * ROUND_TRIP / NGINX_ROUND_TRIP),
        ),
        _ => return None,
    })
}

/// How many connections a bulk case has: the number behind `×`.
fn streams(case: &str) -> Option<usize> {
    let (_, rest) = case.split_once('×')?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

pub(super) const CONNS: &str = "conns";
/// At the end of the name of a case where everything runs on one processor.
pub(super) const ONE_CPU: &str = "rtt, one cpu";

const OURS: &str = "rhizome";
/// Ours without splicing, which no peer's splicing is compared with.
const COPYING: &str = "rhizome-copy";
/// No peer but a floor: what copying costs this machine.
const LOOP: &str = "copy-loop";
/// What large reads and writes of everything cost, 0.19 to 0.25.
const COPIED: f64 = 0.25;
const NGINX_CONNECTION: f64 = 38.0;
const NGINX_ROUND_TRIP: f64 = 16.0;
/// As near to that as two measurements are to each other.
const ROUND_TRIP: f64 = 16.2;
const SPLICE_8: f64 = 0.13;
const SPLICE_64: f64 = 0.137;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_the_run_goes_before_what_was_recorded() {
        let mut run = Run::default();
        let must = |run: &Run, case| {
            let known = known(run, "rhizome", case, of::CPU_PER_GB);
            known.must
        };
        assert_eq!(must(&run, "sni bulk down ×8"), Some(Bound::AtMost(0.13)));
        assert_eq!(must(&run, "sni bulk down ×1"), None);
        run.add("haproxy-splice", "sni bulk down ×8", of::CPU_PER_GB, 0.2);
        assert_eq!(must(&run, "sni bulk down ×8"), Some(Bound::AtMost(0.2)));
        run.add("envoy", "sni bulk down ×8", of::CPU_PER_GB, 0.4);
        let Some(Bound::AtMost(bound)) = must(&run, "sni bulk down ×8") else {
            panic!("a bound")
        };
        assert!((bound - 0.16).abs() < 1e-9, "{bound}");
    }

    #[test]
    fn round_trips_are_held_to_what_the_peer_took_on_this_machine() {
        let mut run = Run::default();
        let case = "sni rtt, one cpu";
        let must = |run: &Run| known(run, "rhizome", case, of::P50).must;
        assert_eq!(must(&run), Some(Bound::AtMost(16.2)));
        run.add("nginx", case, of::P50, 48.0);
        let Some(Bound::AtMost(bound)) = must(&run) else {
            panic!("a bound")
        };
        assert!((bound - 48.6).abs() < 1e-9, "{bound}");
    }

    #[test]
    fn copying_has_a_bound_of_its_own() {
        let mut run = Run::default();
        run.add("haproxy-splice", "sni bulk down ×8", of::CPU_PER_GB, 0.1);
        for case in ["sni bulk down ×8", "sni bulk up ×64"] {
            let known = known(&run, "rhizome-copy", case, of::CPU_PER_GB);
            assert_eq!(known.must, Some(Bound::AtMost(0.25)));
        }
        for (machine, bound) in [(0.2, 0.25), (0.4, 0.4)] {
            let (mut run, case) = (Run::default(), "sni bulk down ×8");
            run.add("copy-loop", case, of::CPU_PER_GB, machine);
            run.add("rhizome-copy", case, of::CPU_PER_GB, 0.3);
            let known = known(&run, "rhizome-copy", case, of::CPU_PER_GB);
            assert_eq!((known.must, known.peer), (Some(Bound::AtMost(bound)), None));
        }
    }

    #[test]
    fn ours_are_compared_with_the_best_of_the_others() {
        let mut run = Run::default();
        let (case, figure) = ("sni conns ×32", of::CPU_EACH);
        let setups = [
            (DIRECT, 1.0),
            ("envoy", 100.0),
            ("nginx", 38.5),
            ("rhizome", 36.0),
        ];
        for (setup, value) in setups {
            run.add(setup, case, figure, value);
        }
        let ours = known(&run, "rhizome-2", case, figure);
        assert_eq!(
            (ours.must, ours.peer),
            (Some(Bound::AtMost(38.5)), Some(38.5))
        );
        assert_eq!(known(&run, "nginx", case, figure), Known::default());
    }
}
