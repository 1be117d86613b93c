//! The words of the style guide: what code and documents do not say, and how no test begins.

use super::{Breach, breach};

/// Returns the words in one file that the style guide replaces, each with its line.
pub(super) fn check(path: &str, text: &str) -> Vec<Breach> {
    if NOT_CLEAN.iter().any(|prefix| path.starts_with(prefix)) {
        return Vec::new();
    }
    let mut breaches = Vec::new();
    let mut is_test = false;
    for (number, line) in (1..).zip(text.lines()) {
        let mut add = |what: String| breaches.push(breach(&format!("{path}:{number}"), &what));
        let mut rest = line.to_owned();
        for (allowed, _) in ALLOWED {
            rest = rest.replace(allowed, "");
        }
        let lower = rest.to_lowercase();
        for (word, instead) in WORDS {
            if lower.contains(word) {
                add(format!("{word:?}: write {instead}"));
            }
        }
        for (prefix, instead) in PREFIXES {
            let starts = lower.match_indices(prefix);
            let inside =
                |at: usize| lower[..at].ends_with(|c: char| c == '_' || c.is_alphanumeric());
            if starts.into_iter().any(|(at, _)| !inside(at)) {
                add(format!("{prefix:?}: write {instead}"));
            }
        }
        let code = line.trim_start();
        if code.starts_with("#[") {
            is_test |= code.contains("test]") || code.contains("test(");
            continue;
        }
        let code = code.strip_prefix("async ").unwrap_or(code);
        if let Some(name) = code.strip_prefix("fn ").filter(|_| is_test)
            && OPENINGS.iter().any(|opening| name.starts_with(opening))
        {
            add("a test is named for its subject: `<subject>_<verb>_<condition>`".to_owned());
        }
        is_test = false;
    }
    breaches
}

/// Files that quote what changes removed.
const NOT_CLEAN: &[&str] = &["CHANGELOG.md"];

/// Parts of a line that are names of others.
const ALLOWED: &[(&str, &str)] = &[
    (concat!(".oct", "ets()"), "the standard library's"),
    (concat!("oct", "et-stream"), "a media type"),
    (concat!("LEA", "ST_REQUEST"), "a policy of Envoy's"),
    (concat!("LEA", "ST_CONN"), "a policy of Istio's"),
    (concat!("lea", "st_request_lb_config"), "a field of Envoy's"),
    (
        concat!("mo", "st_specific_header_mutations_wins"),
        "a field of Envoy's",
    ),
];

/// Split, so that this file does not break its own rule.
const WORDS: &[(&str, &str)] = &[
    (concat!("oct", "et"), "byte"),
    (concat!("who", "ever"), "the peer, the caller, the process"),
    (concat!("no", "body"), "no peer, no caller, no process"),
    (concat!("some", "body"), "a peer, another process"),
    (concat!("every", "body"), "all peers, every process"),
    (concat!("to be", " had"), "unavailable, cannot be obtained"),
    (concat!("in", " force"), "active, in effect"),
    (concat!("dial", "led"), "dialed"),
];

const PREFIXES: &[(&str, &str)] = &[
    (concat!("mo", "st_"), "max_"),
    (concat!("lea", "st_"), "min_"),
];

/// How no test begins.
const OPENINGS: &[&str] = &["who_", "what_", concat!("no", "body_"), "of_", "it_"];

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let breaches = check("a/b.rs", text).into_iter();
        breaches.map(|breach| breach.place).collect()
    }

    #[test]
    fn words_are_found_with_their_line() {
        let text = [
            concat!("//! an oct", "et"),
            "fn at_least_one() {}",
            concat!("const MO", "ST_NAMES: u32 = 1;"),
            concat!("ip.oct", "ets() of application/oct", "et-stream"),
            concat!("No", "body knows"),
        ];
        let places = found(&text.join("\n"));
        assert_eq!(places, ["a/b.rs:1", "a/b.rs:3", "a/b.rs:5"]);
    }

    #[test]
    fn test_names_open_with_their_subject() {
        let text = "#[test]\nfn it_works() {}\n#[tokio::test]\n#[expect(x)]\nasync fn what_is() {}\n\
            fn of_role() {}\n#[test]\nfn items_are_kept() {}\n";
        assert_eq!(found(text), ["a/b.rs:2", "a/b.rs:5"]);
    }
}
