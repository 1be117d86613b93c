//! Runs a helper program to its end and turns its failure into an error that shows its words.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `command`, and returns its standard output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        bail!(
            "`{}` ended with {}:\n{}{}",
            line(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` with no input and returns what it printed, whatever its status.
pub fn output(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output();
    output.with_context(|| format!("starting `{}`", line(command)))
}

pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Finds a program by name in `PATH`, or where Debian keeps what only root is expected to run.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

/// Finds a program of the workspace beside `own`, and builds it when it is not there: only the package under test
/// gets its own programs from Cargo. To test one package alone after a change of the other, build that first; a run of
/// the workspace builds all.
pub fn sibling(own: impl AsRef<Path>, package: &str, program: &str) -> Result<PathBuf> {
    let path = own.as_ref().with_file_name(program);
    if path.is_file() {
        return Ok(path);
    }
    let directory = path.parent().context("a program without a directory")?;
    let (target, name) = (directory.parent(), directory.file_name());
    let target = target.context("no target directory")?;
    let profile = match name.and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--package", package, "--profile", profile])
        .arg("--target-dir")
        .arg(target);
    run(&mut cargo)?;
    Ok(path)
}

/// Finds a program that a test cannot do without.
pub fn require(program: &str) -> Result<PathBuf> {
    find(program).with_context(|| {
        format!("`{program}` is not installed; `cargo xtask test` installs it as root on Debian")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_carries_the_line_and_the_words() {
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        let line = text.contains("sh -c") && text.contains('3');
        assert!(line && text.contains("why"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = require("no-such-program-anywhere").unwrap_err();
        assert!(error.to_string().contains("no-such-program-anywhere"));
    }
}
