//! What documents say is tested, is: the tests that they name are there, and each key of a configuration is explained.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Names of functions in the tests of all packages.
fn functions() -> BTreeSet<String> {
    let root = deploy::root().parent().unwrap().to_owned();
    let (mut waiting, mut names) = (vec![root], BTreeSet::new());
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                waiting.push(path);
            } else if name.ends_with(".rs") {
                collect(&path, &mut names);
            }
        }
    }
    names
}

fn collect(path: &Path, names: &mut BTreeSet<String>) {
    let text = fs::read_to_string(path).unwrap();
    for line in text.lines() {
        let Some((_, rest)) = line.split_once("fn ") else {
            continue;
        };
        let end = rest.find(['(', '<']).unwrap_or(rest.len());
        names.insert(rest[..end].to_owned());
    }
}

/// Returns what stands between backticks in the last column of a table's rows.
fn named(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let last = rows.filter_map(|row| row.trim_end_matches(['|', ' ']).rsplit('|').next());
    let words = last.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let names = words.map(|word| word.rsplit("::").next().unwrap());
    // Names of tests are sentences; what else stands there are files and kinds.
    names.filter(|name| name.matches('_').count() > 2).collect()
}

#[test]
fn the_tests_that_documents_name_are_there() {
    let functions = functions();
    for document in ["deploy.md", "migration.md"] {
        let path = deploy::root().parent().unwrap().join("docs").join(document);
        let text = fs::read_to_string(path).unwrap();
        let tests = named(&text);
        assert!(!tests.is_empty(), "{document} names none");
        for test in tests {
            assert!(functions.contains(test), "{document}: no test {test}");
        }
    }
}

/// Collects the names of all properties of a schema.
fn properties(schema: &Value, names: &mut BTreeSet<String>) {
    let own = schema["properties"].as_object();
    names.extend(own.into_iter().flat_map(|own| own.keys().cloned()));
    let of_object = schema.as_object().into_iter().flat_map(|own| own.values());
    let of_array = schema.as_array().into_iter().flatten();
    of_object
        .chain(of_array)
        .for_each(|value| properties(value, names));
}

#[test]
fn configuration_keys_are_explained() {
    let docs = deploy::root().parent().unwrap().join("docs");
    let text = fs::read_to_string(docs.join("config.md")).unwrap();
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    for program in [
        "apiserver-proxy",
        "netpol-controller",
        "routes",
        "sni-proxy",
        "vpn-client",
        "vpn-server",
    ] {
        let schema = fs::read(docs.join(format!("schema/{program}.json"))).unwrap();
        let mut names = BTreeSet::new();
        properties(&serde_json::from_slice(&schema).unwrap(), &mut names);
        assert!(names.len() > 10, "{program}: {names:?}");
        // Of Kubernetes' label selectors.
        names.remove("operator");
        names.retain(|name| !words.contains(name.as_str()));
        assert!(names.is_empty(), "{program}: {names:?}");
    }
}
