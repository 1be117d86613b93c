//! What a result must carry to mean anything: machine, kernel, how busy it was, versions, commit.

use std::path::Path;
use std::process::Command;

use procfs::{CpuInfo, Current, LoadAverage, Meminfo};
use testkit::command;

/// Facts in the order in which they are shown: name and text.
pub(crate) type Facts = Vec<(&'static str, String)>;

/// Returns what is known of the machine and of ourselves. What cannot be found out says so.
pub(crate) fn facts() -> Facts {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let kernel = format!("{} {}", text(uname.sysname()), text(uname.release()));
    vec![
        ("command", command_line()),
        ("date", date()),
        ("cpu", processors()),
        ("memory", memory()),
        ("kernel", kernel),
        ("load average", load_average()),
        ("bench", env!("CARGO_PKG_VERSION").to_owned()),
        ("commit", commit()),
    ]
}

pub(crate) fn load_average() -> String {
    LoadAverage::current().map_or_else(
        |_| UNKNOWN.to_owned(),
        |load| format!("{:.2} {:.2} {:.2}", load.one, load.five, load.fifteen),
    )
}

/// Returns what a program says about its version, first line only.
pub(crate) fn version(program: &Path) -> String {
    version_by(program, &["--version".to_owned()])
}

/// As [`version`], asked with other arguments. Some programs answer on standard error.
pub(crate) fn version_by(program: &Path, arguments: &[String]) -> String {
    command::output(Command::new(program).args(arguments))
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let mut lines = text.lines().map(str::trim);
            Some(lines.find(|line| !line.is_empty())?.to_owned())
        })
        .unwrap_or_else(|| UNKNOWN.to_owned())
}

/// How we were called, without the way to us.
fn command_line() -> String {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(first) = words.first_mut() {
        let name = Path::new(first.as_str()).file_name();
        let name = name.map(|name| name.to_string_lossy().into_owned());
        *first = name.unwrap_or_default();
    }
    words.join(" ")
}

fn date() -> String {
    let mut date = Command::new("date");
    date.args(["--utc", "+%Y-%m-%d %H:%M UTC"]);
    command::run(&mut date).map_or_else(|_| UNKNOWN.to_owned(), |text| text.trim().to_owned())
}

/// All that are at work, those that we do not use as well: we may be bound to one of them.
fn processors() -> String {
    let Ok(cpus) = CpuInfo::current() else {
        return UNKNOWN.to_owned();
    };
    let model = cpus.model_name(0).unwrap_or(UNKNOWN);
    format!("{} × {model}", cpus.num_cores())
}

fn memory() -> String {
    let memory = Meminfo::current().map(|memory| format!("{} MiB", memory.mem_total >> 20));
    memory.unwrap_or_else(|_| UNKNOWN.to_owned())
}

/// The commit of the directory we run in, if it is a checkout; `-dirty` with changes, but for results
/// and the tables made of them, which an earlier part of the suite may have written.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        command::run(git.args(arguments)).map(|text| text.trim().to_owned())
    };
    let Ok(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return UNKNOWN.to_owned();
    };
    let tracked = ["status", "--porcelain", "--untracked-files=no", "--"];
    let but = [
        ":/",
        ":(top,exclude)bench/results",
        ":(top,exclude)README.md",
    ];
    match git(&[&tracked[..], &but[..]].concat()) {
        Ok(changes) if changes.is_empty() => commit,
        Ok(_) | Err(_) => format!("{commit}-dirty"),
    }
}

const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_and_kernel_are_named() {
        let facts = facts();
        let of = |name: &str| {
            let (_, text) = facts.iter().find(|(fact, _)| *fact == name).unwrap();
            text.as_str()
        };
        assert!(!of("cpu").starts_with('0'), "{}", of("cpu"));
        assert!(of("kernel").starts_with("Linux "));
        assert!(of("memory").ends_with(" MiB"));
        assert_ne!(of("load average"), UNKNOWN);
    }
}
