//! What a konnectivity pair must hold, and what upstream's pair reached when it was recorded.
//!
//! The recorded values are medians of runs of upstream at `4f8517c` (after v0.36.0, Go 1.27) on a
//! busy virtual machine of two processors (Intel Xeon, Linux 6.18), over loopback. They are **not
//! measured in the run that shows them**: a ratio to them says in which league a figure plays, no
//! more. To compare in one run, start upstream's programs with `--server` and `--agent`.

use super::scenario::figure as of;
use crate::report::Known;
use crate::samples::{Bound, Figure};

/// Whose recorded values these are.
pub(crate) const RECORDED_OF: &str =
    "upstream's pair as recorded elsewhere (not measured in this run)";

/// Returns what is known of a figure.
pub(crate) fn known(setup: &str, case: &str, figure: Figure) -> Known {
    let recorded = recorded(setup, case, figure);
    let must = match setup {
        crate::report::DIRECT => None,
        _ => must(setup, case, figure, recorded),
    };
    Known {
        must,
        peer: recorded,
    }
}

fn must(setup: &str, case: &str, figure: Figure, recorded: Option<f64>) -> Option<Bound> {
    let grpc = setup.starts_with("grpc");
    let uds = setup.ends_with("uds");
    if case.starts_with("stall: none") {
        return None;
    }
    if case.starts_with("stall") {
        return stalled(figure);
    }
    Some(match figure {
        of::THROUGHPUT if setup == "http-uds" && case.ends_with("×1") => {
            Bound::AtLeast(3.0 * recorded?)
        }
        of::CPU_PER_GIB => Bound::AtMost(2.0),
        of::P50 if setup == "http-uds" && case == "rtt c=1" => Bound::AtMost(90.0),
        of::P99 if setup == "http-uds" && case == "rtt c=1" => Bound::AtMost(250.0),
        of::PER_SECOND if case.starts_with("dials") => {
            Bound::AtLeast(if uds { 2.0 } else { 1.5 } * recorded?)
        }
        of::SERVER_EMPTY | of::AGENT_EMPTY => Bound::AtMost(10.0),
        of::SERVER_TUNNEL => Bound::AtMost(if grpc { 10.0 } else { 6.0 }),
        of::AGENT_TUNNEL => Bound::AtMost(6.0),
        of::LEAKED | of::PENDING | of::ESTABLISHED | of::SERVER_FDS | of::AGENT_FDS => {
            Bound::AtMost(0.0)
        }
        // Allocators keep some: room for noise, and a twentieth of what 10,000 leaks of 4 KiB take.
        of::SERVER_GROWTH | of::AGENT_GROWTH if case.starts_with("soak") => Bound::AtMost(2.0),
        _ => return None,
    })
}

fn stalled(figure: Figure) -> Option<Bound> {
    match figure {
        of::OTHERS_P99 => Some(Bound::AtMost(5_000.0)),
        of::DIALS_P99 => Some(Bound::AtMost(20_000.0)),
        of::UNANSWERED | of::LEAKED => Some(Bound::AtMost(0.0)),
        _ => None,
    }
}

fn recorded(setup: &str, case: &str, figure: Figure) -> Option<f64> {
    let same =
        |row: &&(&str, &str, Figure, f64)| row.0 == setup && row.1 == case && row.2 == figure;
    RECORDED.iter().find(same).map(|row| row.3)
}

/// Setup, case, figure, value: medians where several runs were recorded, the middle of a range
/// where only that was.
const RECORDED: &[(&str, &str, Figure, f64)] = &[
    ("http-uds", "down ×1", of::THROUGHPUT, 138.0),
    ("http-uds", "up ×1", of::THROUGHPUT, 158.0),
    ("http-uds", "down ×8", of::THROUGHPUT, 150.0),
    ("http-uds", "up ×8", of::THROUGHPUT, 197.0),
    ("http-mtls", "down ×1", of::THROUGHPUT, 205.0),
    ("http-mtls", "up ×1", of::THROUGHPUT, 232.0),
    ("grpc-uds", "down ×1", of::THROUGHPUT, 119.0),
    ("grpc-uds", "up ×1", of::THROUGHPUT, 158.0),
    ("http-uds", "down ×1", of::CPU_PER_GIB, 6.65),
    ("http-uds", "up ×1", of::CPU_PER_GIB, 6.65),
    ("http-mtls", "down ×1", of::CPU_PER_GIB, 5.1),
    ("http-mtls", "up ×1", of::CPU_PER_GIB, 5.1),
    ("grpc-uds", "down ×1", of::CPU_PER_GIB, 7.15),
    ("grpc-uds", "up ×1", of::CPU_PER_GIB, 7.15),
    ("http-uds", "rtt c=1", of::P50, 177.0),
    ("http-uds", "rtt c=1", of::P99, 410.0),
    ("http-uds", "rtt c=1", of::PER_SECOND, 5_179.0),
    ("http-uds", "rtt c=16", of::P50, 543.0),
    ("http-uds", "rtt c=16", of::P99, 3_000.0),
    ("http-uds", "rtt c=16", of::PER_SECOND, 23_503.0),
    ("grpc-uds", "rtt c=1", of::P50, 252.0),
    ("grpc-uds", "rtt c=1", of::PER_SECOND, 3_564.0),
    ("grpc-uds", "rtt c=16", of::P50, 1_040.0),
    ("grpc-uds", "rtt c=16", of::PER_SECOND, 12_531.0),
    ("http-uds", "dials c=1", of::PER_SECOND, 1_072.0),
    ("http-uds", "dials c=16", of::PER_SECOND, 3_330.0),
    ("http-uds", "dials c=64", of::PER_SECOND, 4_800.0),
    ("http-mtls", "dials c=1", of::PER_SECOND, 358.0),
    ("http-mtls", "dials c=16", of::PER_SECOND, 778.0),
    ("http-mtls", "dials c=64", of::PER_SECOND, 911.0),
    ("grpc-uds", "dials c=1", of::PER_SECOND, 426.0),
    ("grpc-uds", "dials c=16", of::PER_SECOND, 1_295.0),
    ("grpc-uds", "dials c=64", of::PER_SECOND, 1_537.0),
    ("http-uds", "idle ×1000", of::SERVER_EMPTY, 32.0),
    ("http-uds", "idle ×1000", of::AGENT_EMPTY, 33.0),
    ("http-uds", "idle ×1000", of::SERVER_TUNNEL, 23.0),
    ("http-uds", "idle ×1000", of::AGENT_TUNNEL, 26.0),
    ("grpc-uds", "idle ×1000", of::SERVER_EMPTY, 32.0),
    ("grpc-uds", "idle ×1000", of::AGENT_EMPTY, 33.0),
    ("grpc-uds", "idle ×1000", of::SERVER_TUNNEL, 43.0),
    ("grpc-uds", "idle ×1000", of::AGENT_TUNNEL, 26.0),
    ("http-uds", "abandon ×20", of::LEAKED, 20.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_follow_from_what_upstream_reached() {
        let must = |setup, case, figure| known(setup, case, figure).must;
        assert_eq!(
            must("http-uds", "down ×1", of::THROUGHPUT),
            Some(Bound::AtLeast(414.0))
        );
        assert_eq!(
            must("http-mtls", "dials c=16", of::PER_SECOND),
            Some(Bound::AtLeast(1_167.0))
        );
        assert_eq!(
            must("grpc-uds", "idle ×10", of::SERVER_TUNNEL),
            Some(Bound::AtMost(10.0))
        );
        assert_eq!(must("direct", "dials c=16", of::PER_SECOND), None);
        assert_eq!(must("grpc-uds", "rtt c=1", of::P50), None);
    }
}
