//! Where the programs are that these tests measure.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::command;

/// Finds a package's program beside our own, and builds it when it is not there: only the package
/// under test gets its programs from Cargo.
pub(crate) fn of(package: &str) -> PathBuf {
    in_package(package, package)
}

/// As [`of`], for one of several programs of a package.
pub(crate) fn in_package(package: &str, program: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    let path = own.with_file_name(program);
    if !path.is_file() {
        let directory = own.parent().unwrap();
        let profile = match directory.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--package", package, "--profile", profile])
            .arg("--target-dir")
            .arg(directory.parent().unwrap());
        command::run(&mut cargo).unwrap();
    }
    path
}
