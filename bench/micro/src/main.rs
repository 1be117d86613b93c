//! `rhizome-counts`: does every workload once, in a function of its own, for callgrind to count.
//!
//! ```text
//! prepare ──▶ once for nothing ──▶ prepare ──▶ measured ──▶ a line: name, how many pieces of work
//! ```
//!
//! `cargo xtask counts` runs it and reads what callgrind wrote each time `measured` was left.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::io::{Write, stdout};
use std::process::ExitCode;

use rhizome_micro::{Operation, all};

fn main() -> ExitCode {
    let mut out = stdout().lock();
    for workload in all() {
        // What is done once only (tables of the C library, the first growth of the heap) counts for none.
        black_box(workload.prepare()());
        let found = measured(workload.prepare());
        let (name, expected) = (workload.name, workload.expected);
        let written = if found == expected {
            writeln!(out, "{name}\t{}", workload.times)
        } else {
            let _ = writeln!(out, "{name}: found {found} instead of {expected}");
            return ExitCode::FAILURE;
        };
        if written.is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The name by which callgrind knows where to begin and to end.
#[inline(never)]
fn measured(operation: Operation) -> usize {
    // Looked at afterwards, so that this is no jump into the operation but a call.
    black_box(operation())
}
