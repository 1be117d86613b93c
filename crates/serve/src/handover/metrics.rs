//! What is counted of handovers.

use telemetry::Registry;

/// Seconds of a handover: from a few connections to many on a busy machine.
const BUCKETS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Seconds of a pause that no peer notices, up to those that one does.
const GAPS: [f64; 8] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.25, 1.0];

telemetry::labels! {
    /// Which way a connection went.
    #[repr(u8)]
    pub(super) enum Direction {
        /// From another process.
        In = "in",
        /// To another process.
        Out = "out",
    }
}

telemetry::labels! {
    /// What became of a connection in a handover.
    #[repr(u8)]
    pub(super) enum Outcome {
        /// It stayed: the handover was given up.
        Kept = "kept",
        /// It is of neither process any more.
        Lost = "lost",
        /// It goes on in the other process.
        Moved = "moved",
    }
}

telemetry::families! {
    /// The families of a process that may be replaced.
    #[derive(Clone, Debug)]
    pub struct HandoverMetrics {
        /// Established connections of a handover between processes, by direction and outcome.
        connections: counter["direction", "outcome"] = "rhizome_handover_connections_total",
        /// Handovers between processes, by outcome.
        handovers: counter["direction", "outcome"] = "rhizome_handovers_total",
        /// Seconds from the first word to the last connection that was established then.
        pub(super) seconds: histogram(BUCKETS) = "rhizome_handover_seconds",
        /// Seconds for which the connections of a batch were served by neither process.
        pub(super) gap: histogram(GAPS) = "rhizome_handover_gap_seconds",
    }
}

impl HandoverMetrics {
    /// Registers the families, with every series that there can be.
    pub fn new(registry: &Registry) -> Self {
        let all = Self::register(registry);
        for way in Direction::ALL {
            for outcome in Outcome::ALL {
                all.count(way, outcome, 0);
            }
            for well in [true, false] {
                let _ = all.handovers.with(&[way.as_str(), outcome(well)]);
            }
        }
        all
    }

    pub(super) fn count(&self, way: Direction, outcome: Outcome, connections: usize) {
        let labels = [way.as_str(), outcome.as_str()];
        self.connections.with(&labels).add(connections as u64);
    }

    /// Counts a handover that went well, or was given up.
    pub(super) fn ended(&self, way: Direction, well: bool) {
        self.handovers.with(&[way.as_str(), outcome(well)]).inc();
    }
}

fn outcome(well: bool) -> &'static str {
    if well { "done" } else { "given_up" }
}
