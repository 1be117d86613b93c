//! What our tables must hold, and how the best of the others did in the same run.

use super::figure as of;
use crate::report::{DIRECT, Known};
use crate::samples::{Better, Bound, Figure, Samples};

/// The setup that is held to something.
const OURS: &str = "rhizome";

/// Returns what is known of a figure, beside the others of the run.
pub(crate) fn known(samples: &Samples, setup: &str, case: &str, figure: Figure) -> Known {
    if setup != OURS {
        return Known::default();
    }
    Known {
        must: must(samples, case, figure),
        peer: best(samples, case, figure),
    }
}

fn must(samples: &Samples, case: &str, figure: Figure) -> Option<Bound> {
    let most = match figure {
        of::LOST => 0.0,
        of::PROCESSES => 1.0,
        of::CPU_MORE | of::IDLE_MORE => 5.0,
        // What waking up takes on a busy guest: others show 4 to 9 with a single name.
        of::STALL if case == LARGE => 10.0,
        // What nginx takes to load, HAProxy's live map to change, and both to keep; the first two on a
        // machine that is as quick as that on which they were recorded.
        of::START if case == LARGE => STARTED * slowness(samples, case),
        of::APPLY if case == LARGE => APPLIED * slowness(samples, case),
        // 20 MB.
        of::RESIDENT | of::RESIDENT_AFTER if case == LARGE => 19.07,
        _ => return None,
    };
    Some(Bound::AtMost(most))
}

/// How many times as long as recorded nginx takes to start in this run, once at least.
fn slowness(samples: &Samples, case: &str) -> f64 {
    let nginx = samples.median("nginx", case, of::START);
    nginx.map_or(1.0, |nginx| (nginx / NGINX_STARTED).max(1.0))
}

/// The best median of the others.
fn best(samples: &Samples, case: &str, figure: Figure) -> Option<f64> {
    let others = samples.series().iter().filter(|one| {
        let ours = one.setup.starts_with(OURS) || one.setup == DIRECT;
        !ours && one.case == case && one.figure == figure
    });
    others
        .map(|one| one.median())
        .reduce(|one, other| match figure.better {
            Better::Higher => one.max(other),
            Better::Lower => one.min(other),
        })
}

/// Milliseconds.
const STARTED: f64 = 20.0;
const APPLIED: f64 = 4.0;
const NGINX_STARTED: f64 = 17.0;

/// The case that has targets of its own; see [`case`](super::case).
const LARGE: &str = "10000 names";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_compared_with_the_best_of_the_others() {
        let mut samples = Samples::default();
        for (setup, value) in [("nginx", 21.0), ("haproxy-map", 4.3), ("rhizome", 3.0)] {
            samples.add(setup, LARGE, of::APPLY, value);
        }
        let known = known(&samples, OURS, LARGE, of::APPLY);
        assert_eq!(known.peer, Some(4.3));
        assert_eq!(known.must, Some(Bound::AtMost(4.0)));
        assert_eq!(
            super::known(&samples, "nginx", LARGE, of::APPLY),
            Known::default()
        );
        assert_eq!(must(&samples, "1 name", of::APPLY), None);
        let bounds = [
            (of::START, 20.0, (12.0, 20.0)),
            (of::START, 20.0, (34.0, 40.0)),
            (of::APPLY, 4.0, (12.0, 4.0)),
            (of::APPLY, 4.0, (34.0, 8.0)),
        ];
        for (figure, alone, (nginx, most)) in bounds {
            let mut samples = Samples::default();
            assert_eq!(must(&samples, LARGE, figure), Some(Bound::AtMost(alone)));
            samples.add("nginx", LARGE, of::START, nginx);
            assert_eq!(must(&samples, LARGE, figure), Some(Bound::AtMost(most)));
        }
        assert_eq!(super::super::case(10_000), LARGE);
    }
}
