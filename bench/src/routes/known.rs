//! What our tables must hold, and how the best of the others did in the same run.

use super::figure as of;
use crate::report::{Bound, DIRECT, Figure, Known, Run};

/// The setups with targets: the routing file as JSON, and as YAML.
const OURS: &str = "rhizome";
const YAML: &str = "rhizome-yaml";

pub(crate) fn known(run: &Run, setup: &str, case: &str, figure: Figure) -> Known {
    if setup != OURS && setup != YAML {
        return Known::default();
    }
    Known {
        must: must(setup, case, figure),
        peer: run.best(case, figure, |setup| {
            !setup.starts_with(OURS) && setup != DIRECT
        }),
    }
}

fn must(setup: &str, case: &str, figure: Figure) -> Option<Bound> {
    let most = match figure {
        of::LOST => 0.0,
        of::PROCESSES => 1.0,
        of::CPU_MORE | of::IDLE_MORE => 5.0,
        // What waking up takes on a busy guest: others show 4 to 9 with a single name.
        of::STALL if case == LARGE => 10.0,
        of::APPLY if case == LARGE && setup == YAML => 500.0,
        of::START | of::APPLY if case == LARGE && setup == OURS => 60.0,
        // 20 MB.
        of::RESIDENT | of::RESIDENT_AFTER if case == LARGE => 19.07,
        _ => return None,
    };
    Some(Bound::AtMost(most))
}

/// The case that has targets of its own; see [`case`](super::case).
const LARGE: &str = "10000 names";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_depend_on_the_form_of_the_file() {
        let mut run = Run::default();
        for (setup, value) in [("nginx", 21.0), ("haproxy-map", 4.3), (OURS, 3.0)] {
            run.add(setup, LARGE, of::APPLY, value);
        }
        let target = |setup, case| known(&run, setup, case, of::APPLY);
        assert_eq!(target(OURS, LARGE).peer, Some(4.3));
        assert_eq!(target(OURS, LARGE).must, Some(Bound::AtMost(60.0)));
        assert_eq!(target(YAML, LARGE).must, Some(Bound::AtMost(500.0)));
        assert_eq!(target("nginx", LARGE), Known::default());
        assert_eq!(target(OURS, "1 name").must, None);
        assert_eq!(super::super::case(10_000), LARGE);
    }
}
