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
            // Of what it served; what it refused would cost it too.
            let failed = run.median("nginx", case, of::FAILED);
            let nginx = peer("nginx").filter(|_| failed.is_none_or(|count| count == 0.0));
            Bound::AtMost(nginx.unwrap_or(NGINX_CONNECTION))
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

    fn run(measured: &[(&str, &str, Figure, f64)]) -> Run {
        let mut run = Run::default();
        for (setup, case, figure, value) in measured {
            run.add(setup, case, *figure, *value);
        }
        run
    }

    /// Returns the bound of a figure that others have these values of.
    fn most(ours: &str, case: &str, figure: Figure, others: &[(&str, f64)]) -> Option<f64> {
        let others = others
            .iter()
            .map(|(setup, value)| (*setup, case, figure, *value));
        match known(&run(&others.collect::<Vec<_>>()), ours, case, figure).must? {
            Bound::AtMost(most) => Some((most * 1e9).round() / 1e9),
            Bound::AtLeast(_) => None,
        }
    }

    #[test]
    fn peer_of_run_precedes_recorded_figure() {
        let (splice, envoy) = (("haproxy-splice", 0.2), ("envoy", 0.4));
        for (ours, case, others, expected) in [
            ("rhizome", "sni bulk down ×8", &[][..], Some(0.13)),
            ("rhizome", "sni bulk down ×1", &[], None),
            ("rhizome", "sni bulk down ×8", &[splice], Some(0.2)),
            ("rhizome", "sni bulk down ×8", &[splice, envoy], Some(0.16)),
            // Copying has a bound of its own.
            (COPYING, "sni bulk down ×8", &[splice], Some(0.25)),
            (COPYING, "sni bulk up ×64", &[splice], Some(0.25)),
            (COPYING, "sni bulk down ×8", &[(LOOP, 0.2)], Some(0.25)),
            (COPYING, "sni bulk down ×8", &[(LOOP, 0.4)], Some(0.4)),
        ] {
            let found = most(ours, case, of::CPU_PER_GB, others);
            assert_eq!(found, expected, "{ours}, {case}, {others:?}");
        }
        let round_trips = |others| most("rhizome", "sni rtt, one cpu", of::P50, others);
        assert_eq!(round_trips(&[]), Some(16.2));
        assert_eq!(round_trips(&[("nginx", 48.0)]), Some(48.6));
    }

    #[test]
    fn ours_are_compared_with_the_best_of_the_others() {
        let (conns, bulk) = ("sni conns ×32", "sni bulk down ×8");
        let mut run = run(&[
            (DIRECT, conns, of::CPU_EACH, 1.0),
            ("envoy", conns, of::CPU_EACH, 100.0),
            ("nginx", conns, of::CPU_EACH, 38.5),
            ("rhizome", conns, of::CPU_EACH, 36.0),
            (LOOP, bulk, of::CPU_PER_GB, 0.4),
            (COPYING, bulk, of::CPU_PER_GB, 0.3),
        ]);
        let ours = known(&run, "rhizome-2", conns, of::CPU_EACH);
        let expected = Known {
            must: Some(Bound::AtMost(38.5)),
            peer: Some(38.5),
        };
        assert_eq!(ours, expected);
        assert_eq!(known(&run, COPYING, bulk, of::CPU_PER_GB).peer, None);
        run.add("nginx", conns, of::FAILED, 3.0);
        let must = known(&run, "rhizome-2", conns, of::CPU_EACH).must;
        assert_eq!(must, Some(Bound::AtMost(NGINX_CONNECTION)));
        assert_eq!(known(&run, "nginx", conns, of::CPU_EACH), Known::default());
    }
}
