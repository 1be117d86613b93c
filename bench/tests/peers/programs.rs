//! Where the programs are that these tests measure.

use std::path::PathBuf;

use testkit::command;

/// Finds a package's program beside our own.
pub(crate) fn of(package: &str) -> PathBuf {
    in_package(package, package)
}

/// As [`of`], for one of several programs of a package.
pub(crate) fn in_package(package: &str, program: &str) -> PathBuf {
    command::sibling(env!("CARGO_BIN_EXE_rhizome-bench"), package, program).unwrap()
}
