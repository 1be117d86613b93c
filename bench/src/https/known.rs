//! What our gateway must hold where TLS ends in it: shares of Envoy's figures in the same run.

use super::{GET, GET_HTTP1, HANDSHAKE};
use crate::report::{Bound, DIRECT, Figure, Known, Run};
use crate::tls::figure as of;

/// Requests of the servers, at most so far apart.
pub(super) const APART: Figure = Figure::lower("apart", "%");

pub(super) fn known(run: &Run, setup: &str, case: &str, figure: Figure) -> Known {
    if !is_ours(setup) {
        return Known::default();
    }
    let peer = |own: &str| own != DIRECT && !is_ours(own);
    Known {
        must: must(run, case, figure),
        peer: run
            .best(case, figure, peer)
            .filter(|_| ![of::PROXY_BUSY, of::IDLE_BUSY].contains(&figure)),
    }
}

fn is_ours(setup: &str) -> bool {
    setup.starts_with("rhizome")
}

fn must(run: &Run, case: &str, figure: Figure) -> Option<Bound> {
    let starts = |what: &str| case.starts_with(what);
    let share = match figure {
        APART => return Some(Bound::AtMost(10.0)),
        of::CPU_EACH if starts(GET) => 0.6,
        of::CPU_EACH if starts(GET_HTTP1) => 0.7,
        of::CPU_EACH if starts(HANDSHAKE) => 1.0,
        of::CPU_PER_GB => 0.8,
        of::P99 if starts(super::WATCH) => 1.0,
        of::PER_CONNECTION => 0.5,
        _ => return None,
    };
    let envoy = run.median("envoy-https", case, figure)?;
    Some(Bound::AtMost(share * envoy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_shares_of_envoy_in_the_same_run() {
        let mut run = Run::default();
        let figures = [
            ("get h2 ×50", of::CPU_EACH, 100.0, 60.0),
            ("get http/1.1 ×50", of::CPU_EACH, 100.0, 70.0),
            ("handshake ×32", of::CPU_EACH, 500.0, 500.0),
            ("list ×8", of::CPU_PER_GB, 2.0, 1.6),
            ("watch ×1000", of::P99, 9000.0, 9000.0),
            ("watch ×1000", of::PER_CONNECTION, 80.0, 40.0),
        ];
        for (case, figure, _, _) in figures {
            assert_eq!(known(&run, "rhizome-https", case, figure).must, None);
        }
        for (case, figure, value, _) in figures {
            run.add("envoy-https", case, figure, value);
        }
        for (case, figure, value, most) in figures {
            let ours = known(&run, "rhizome-https", case, figure);
            assert_eq!(ours.must, Some(Bound::AtMost(most)), "{case}");
            assert_eq!(ours.peer, Some(value), "{case}");
            assert_eq!(known(&run, "envoy-https", case, figure), Known::default());
        }
        let apart = known(&run, "rhizome-https", "spread ×200", APART);
        assert_eq!(apart.must, Some(Bound::AtMost(10.0)));
    }
}
