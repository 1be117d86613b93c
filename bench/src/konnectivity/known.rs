//! The targets of a konnectivity pair.
//!
//! Those of throughput and dials are multiples of what upstream's pair reached at `4f8517c` (after
//! v0.36.0, Go 1.27) on a busy virtual machine of two processors (Intel Xeon, Linux 6.18), over
//! loopback. To compare in one run, start upstream's programs with `--server` and `--agent`.

use super::scenario::figure as of;
use crate::report::{Bound, DIRECT, Figure, Known, Run};

pub(crate) fn known(_: &Run, setup: &str, case: &str, figure: Figure) -> Known {
    let must = match setup {
        DIRECT => None,
        _ => must(setup, case, figure),
    };
    Known { must, peer: None }
}

fn must(setup: &str, case: &str, figure: Figure) -> Option<Bound> {
    if case.starts_with("stall: none") {
        return None;
    }
    let grpc = setup.starts_with("grpc");
    let stalled = case.starts_with("stall");
    Some(match figure {
        of::OTHERS_P99 if stalled => Bound::AtMost(5_000.0),
        of::DIALS_P99 if stalled => Bound::AtMost(20_000.0),
        of::UNANSWERED => Bound::AtMost(0.0),
        of::THROUGHPUT | of::PER_SECOND => Bound::AtLeast(rate(setup, case)?),
        of::CPU_PER_GIB => Bound::AtMost(2.0),
        of::P50 if setup == "http-uds" && case == "rtt c=1" => Bound::AtMost(90.0),
        of::P99 if setup == "http-uds" && case == "rtt c=1" => Bound::AtMost(250.0),
        of::SERVER_EMPTY | of::AGENT_EMPTY => Bound::AtMost(10.0),
        of::SERVER_TUNNEL => Bound::AtMost(if grpc { 10.0 } else { 6.0 }),
        of::AGENT_TUNNEL => Bound::AtMost(6.0),
        of::LEAKED => Bound::AtMost(0.0),
        of::PENDING | of::ESTABLISHED | of::SERVER_FDS | of::AGENT_FDS if !stalled => {
            Bound::AtMost(0.0)
        }
        // Allocators keep some: tolerance for noise, and a twentieth of 10,000 leaks of 4 KiB.
        of::SERVER_GROWTH | of::AGENT_GROWTH if case.starts_with("soak") => Bound::AtMost(2.0),
        _ => return None,
    })
}

/// Three times upstream's throughput, and twice its dials, by mutual TLS one and a half times.
fn rate(setup: &str, case: &str) -> Option<f64> {
    Some(match (setup, case) {
        ("http-uds", "down ×1") => 3.0 * 138.0,
        ("http-uds", "up ×1") => 3.0 * 158.0,
        ("http-uds", "dials c=1") => 2.0 * 1_072.0,
        ("http-uds", "dials c=16") => 2.0 * 3_330.0,
        ("http-uds", "dials c=64") => 2.0 * 4_800.0,
        ("http-mtls", "dials c=1") => 1.5 * 358.0,
        ("http-mtls", "dials c=16") => 1.5 * 778.0,
        ("http-mtls", "dials c=64") => 1.5 * 911.0,
        ("grpc-uds", "dials c=1") => 2.0 * 426.0,
        ("grpc-uds", "dials c=16") => 2.0 * 1_295.0,
        ("grpc-uds", "dials c=64") => 2.0 * 1_537.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_depend_on_setup_and_case() {
        let must = |setup, case, figure| known(&Run::default(), setup, case, figure).must;
        let least = |bound| Some(Bound::AtLeast(bound));
        let most = |bound| Some(Bound::AtMost(bound));
        let cases = [
            ("http-uds", "down ×1", of::THROUGHPUT, least(414.0)),
            ("http-mtls", "dials c=16", of::PER_SECOND, least(1_167.0)),
            ("grpc-uds", "idle ×10", of::SERVER_TUNNEL, most(10.0)),
            ("http-uds", "stall: reader ×1", of::LEAKED, most(0.0)),
            ("http-uds", "stall: none, to compare", of::LEAKED, None),
            ("direct", "dials c=16", of::PER_SECOND, None),
            ("grpc-uds", "rtt c=1", of::P50, None),
        ];
        for (setup, case, figure, expected) in cases {
            assert_eq!(must(setup, case, figure), expected, "{setup}, {case}");
        }
    }
}
