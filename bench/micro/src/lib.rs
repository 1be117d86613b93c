//! What is done for every connection, packet or change of routes, one piece of work at a time.
//!
//! ```text
//!                       ┌─▶ benches/micro.rs     nanoseconds, by criterion
//! preambles, routes, ───┤
//! frames ──▶ Workload   └─▶ rhizome-counts       instructions, under callgrind
//! ```
//!
//! Inputs are those of the fuzz corpora or made from fixed numbers, so that a piece of work is the
//! same in each run. Nothing here opens a socket, reads a clock or needs a runtime.
#![forbid(unsafe_code)]

mod frames;
mod preambles;
mod routes;
mod workload;

pub use workload::{Operation, Workload};

/// Returns all workloads, in the order in which they are shown.
#[must_use]
pub fn all() -> Vec<Workload> {
    let mut all = preambles::workloads();
    all.extend(routes::workloads());
    all.extend(frames::workloads());
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_workload_finds_what_it_should() {
        for workload in all() {
            assert_eq!(workload.prepare()(), workload.expected, "{}", workload.name);
        }
    }

    #[test]
    fn names_are_distinct() {
        let names: BTreeSet<_> = all().iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), all().len());
    }
}
