//! What `promtool` says of the rules, of their tests, and of the scrape configurations that ship.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use testkit::peers::prometheus::promtool;
use testkit::tempdir::TempDir;

fn names(directory: &str, ending: &str) -> Vec<String> {
    let files = monitoring::files(directory, ending).unwrap();
    files
        .iter()
        .map(|path| path.display().to_string())
        .collect()
}

fn run(arguments: &[&str], files: &[String]) -> String {
    let all: Vec<&str> = { arguments.iter().copied() }
        .chain(files.iter().map(String::as_str))
        .collect();
    promtool(monitoring::root(), &all).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn the_rules_are_rules() {
    let said = run(&["check", "rules"], &names("rules", "yaml"));
    let found = said.matches("rules found").count();
    assert_eq!(found, names("rules", "yaml").len(), "{said}");
}

#[test]
fn alerts_fire_and_stay_silent_as_tested() {
    let tests = names("rules/tests", "yaml");
    let said = run(&["test", "rules"], &tests);
    assert_eq!(said.matches("SUCCESS").count(), tests.len(), "{said}");
}

/// Files that they name are somewhere else here, so that only what is in them is checked.
#[test]
fn the_scrape_configurations_are_configurations() {
    let dir = TempDir::new("promtool").unwrap();
    for path in monitoring::files("prometheus", "yaml").unwrap() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let config = monitoring::scrape_config(name, &[], dir.path(), &[]).unwrap();
        let written = dir.replace(name, config.to_string()).unwrap();
        let said = run(
            &["check", "config", "--syntax-only"],
            &[written.display().to_string()],
        );
        assert!(said.contains("SUCCESS"), "{name}: {said}");
    }
}
