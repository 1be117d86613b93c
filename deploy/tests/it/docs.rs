//! What documents say is tested, is: the tests that they name are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

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
