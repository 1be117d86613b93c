//! The rules, as functions of a path and a text.

mod language;

use std::collections::BTreeSet;

use super::Breach;

/// Returns what is wrong with one file. `hosts` are those of package registries.
pub(super) fn check(path: &str, text: &str, hosts: &BTreeSet<String>) -> Vec<Breach> {
    let registries = hosts.iter().map(|host| (host.as_str(), REGISTRY));
    let mut breaches = words(path, text, FORBIDDEN.iter().copied().chain(registries));
    if path.ends_with(".rs") || path.ends_with(".md") {
        breaches.extend(language::check(path, text));
    }
    if path.ends_with(".rs") {
        breaches.extend(header(path, text));
        breaches.extend(length(path, text));
        breaches.extend(safety(path, text));
    }
    if path.ends_with("Cargo.toml") && path != "Cargo.toml" {
        breaches.extend(dependencies(path, text));
    }
    breaches
}

/// Every file says what it is for.
fn header(path: &str, text: &str) -> Option<Breach> {
    (!text.starts_with("//!"))
        .then(|| breach(path, "does not open with `//!` that says what it is for"))
}

/// Files stay small enough to be read in one go, inline tests included.
fn length(path: &str, text: &str) -> Option<Breach> {
    let lines = text.lines().count();
    (lines > MAX_LINES).then(|| {
        let what = format!("has {lines} lines, more than {MAX_LINES}: it holds two concerns");
        breach(path, &what)
    })
}

/// There is no unsafe code.
fn safety(path: &str, text: &str) -> Option<Breach> {
    let is_root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    // A fuzz target's macro expands to unsafe code of its own.
    let exempt = path.starts_with("fuzz/");
    (is_root && !exempt && !text.contains("#![forbid(unsafe_code)]"))
        .then(|| breach(path, "a crate's root without `#![forbid(unsafe_code)]`"))
}

/// Versions are named once, at the workspace's root; and what must know no sockets has none.
fn dependencies(path: &str, text: &str) -> Vec<Breach> {
    let mut cores = CORES.split(' ');
    let core = cores.any(|name| path == format!("crates/{name}/Cargo.toml"));
    let mut section = "";
    let mut breaches = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let (true, Some(name)) = (section.contains("dependencies]"), dependency(line)) else {
            continue;
        };
        // The fuzz crate is outside the workspace, so it cannot take its versions from there.
        if !line.contains("workspace = true") && !path.starts_with("fuzz/") {
            let what = format!("{name}: its version belongs into the root");
            breaches.push(breach(path, &what));
        }
        if core && section == "[dependencies]" && IMPURE.split(' ').any(|own| own == name) {
            let what =
                format!("{name}: a protocol core takes bytes and `now`, no sockets or clocks");
            breaches.push(breach(path, &what));
        }
    }
    breaches
}

fn dependency(line: &str) -> Option<&str> {
    let end = line.find(['.', ' ', '='])?;
    let name = &line[..end];
    (!name.is_empty() && !name.starts_with(['#', '['])).then_some(name)
}

/// Returns the hosts of the URLs in `text`, which is a list of apt's sources.
pub(super) fn hosts(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim().starts_with('#'));
    let urls = lines.flat_map(|line| line.split("://").skip(1));
    let hosts = urls.filter_map(|rest| rest.split(['/', ':', ' ', '\t']).next());
    hosts.map(str::to_owned).collect()
}

/// Marks of unfinished work, and of places that are not part of the project.
fn words<'a>(
    path: &str,
    text: &str,
    forbidden: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<Breach> {
    // Changes quote what they removed; licenses are other people's words.
    if path == "Cargo.lock" || path == "LICENSE" {
        return Vec::new();
    }
    let mut breaches = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (word, why) in forbidden.clone() {
            if line.contains(word) {
                breaches.push(Breach {
                    place: format!("{path}:{}", number + 1),
                    what: format!("{word:?}: {why}"),
                });
            }
        }
    }
    breaches
}

fn breach(path: &str, what: &str) -> Breach {
    Breach {
        place: path.to_owned(),
        what: what.to_owned(),
    }
}

const MAX_LINES: usize = 600;

const CORES: &str = "preamble route http2-proto knp-proto tunnel-proto";

const IMPURE: &str = "hickory-resolver hickory-server hyper hyper-util libc netlink-sys nix rand \
    relay rtnetlink rustix serve socket2 telemetry tokio tokio-rustls";

/// Why the host of a package registry stands in no file.
const REGISTRY: &str = "a package registry: take its address from the machine's settings";

/// Split, so that this file does not break its own rule.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "finish it, or open an issue"),
    (concat!("FIX", "ME"), "finish it, or open an issue"),
    (concat!("to", "do!("), "finish it"),
    (concat!("unimpl", "emented!("), "finish it"),
    (
        concat!("#[ign", "ore"),
        "a test that never runs tests nothing",
    ),
    (concat!("../sha", "red"), "no part of the project"),
    (concat!("/wo", "rk/"), "no part of the project"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn all(path: &str, text: &str) -> Vec<String> {
        check(path, text, &BTreeSet::from(["registry.example".to_owned()]))
            .into_iter()
            .map(|breach| format!("{}: {}", breach.place, breach.what))
            .collect()
    }

    #[test]
    fn a_tidy_file_breaks_nothing() {
        let text = "//! Says what it is for.\n#![forbid(unsafe_code)]\n";
        assert_eq!(all("crates/route/src/lib.rs", text), Vec::<String>::new());
        let manifest = "[dependencies]\ntokio.workspace = true\nrustix = { workspace = true }\n";
        let found = all("crates/serve/Cargo.toml", manifest);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn each_rule_finds_its_breach() {
        assert!(all("a/src/b.rs", "fn f() {}\n")[0].contains("`//!`"));
        assert!(all("a/src/b.rs", &format!("//! x\n{}", "\n".repeat(600)))[0].contains("601"));
        assert!(all("a/src/lib.rs", "//! x\n")[0].contains("unsafe"));
        let word = concat!("//! x\n\n// TO", "DO\n");
        assert!(all("a/src/b.rs", word)[0].starts_with("a/src/b.rs:3:"));
    }

    #[test]
    fn registry_hosts_are_found_in_files() {
        let sources = "# deb http://old.example/debian x main\n\
            deb [signed-by=/k.gpg] http://mirror.example:3142/debian x main\n\
            URIs: https://other.example/debian\n";
        assert_eq!(hosts(sources), ["mirror.example", "other.example"]);
        let found = all("a/b.sh", "x\ncurl http://registry.example/debian\n");
        assert!(found[0].starts_with("a/b.sh:2:"), "{found:?}");
    }

    #[test]
    fn versions_and_sockets_are_found_in_manifests() {
        let manifest = "[dev-dependencies]\nrcgen = \"0.14\"\n";
        let versioned = all("sni-proxy/Cargo.toml", manifest);
        assert!(versioned.len() == 1 && versioned[0].contains("rcgen"));
        let impure =
            "[dependencies]\ntokio.workspace = true\n[dev-dependencies]\ntokio.workspace = true\n";
        let impure = all("crates/route/Cargo.toml", impure);
        let one = impure.len() == 1 && impure[0].contains("tokio");
        assert!(one, "{impure:?}");
    }
}
