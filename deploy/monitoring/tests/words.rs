//! Names that must agree: of metrics and labels in expressions and tables, of alerts in rules, their
//! tests and the runbook.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use monitoring::{Documented, Selector, documented, panels, rules, selectors};
use serde_json::Value;

/// What Prometheus itself adds: by the scrape configurations that ship, or of its own.
const ADDED: [&str; 5] = ["job", "namespace", "instance", "le", "alertstate"];

fn repository() -> PathBuf {
    monitoring::root().join("../..")
}

/// Returns every expression with what it belongs to.
fn expressions() -> Vec<(String, String)> {
    let of_rules = rules().unwrap().into_iter().map(|rule| {
        let name = rule.alert.or(rule.record).unwrap();
        (name, rule.expr)
    });
    let of_panels = panels().unwrap().into_iter();
    let of_panels = of_panels.map(|own| (format!("{}: {}", own.dashboard, own.title), own.expr));
    of_rules.chain(of_panels).collect()
}

/// Returns the family that a sample's name belongs to.
fn family<'a>(all: &'a BTreeMap<String, Documented>, name: &str) -> Option<&'a Documented> {
    let base = ["_bucket", "_count", "_sum"].into_iter();
    let histogram = base.filter_map(|end| all.get(name.strip_suffix(end)?));
    all.get(name)
        .or_else(|| histogram.into_iter().find(|own| own.kind == "histogram"))
}

#[test]
fn expressions_use_documented_metrics() {
    let all = documented().unwrap();
    let recorded: BTreeSet<String> = { rules().unwrap().into_iter() }
        .filter_map(|rule| rule.record)
        .collect();
    for (place, expression) in expressions() {
        let found = selectors(&expression);
        assert!(!found.is_empty(), "{place} selects nothing");
        for Selector { name, matchers } in found {
            if name == "up" || name.contains(':') {
                assert!(
                    name == "up" || recorded.contains(&name),
                    "{place}: {name} is not recorded"
                );
                continue;
            }
            let own = family(&all, &name).unwrap_or_else(|| panic!("{place}: no metric {name}"));
            for matcher in &matchers {
                let label = &matcher.label;
                let known = ADDED.contains(&label.as_str()) || own.labels.contains(label);
                assert!(known, "{place}: {name} has no label {label}");
                if label == "job" {
                    let whose = |word: &&str| !own.programs.iter().any(|own| own == word);
                    let strangers: Vec<&str> = matcher.words().into_iter().filter(whose).collect();
                    let several = matcher.words().len() > 1;
                    assert!(
                        several || strangers.is_empty(),
                        "{place}: {strangers:?} have no {name}"
                    );
                }
            }
        }
    }
}

/// A label value that no program writes is one that no series has.
#[test]
fn values_of_labels_are_words_that_programs_know() {
    let mut sources = String::new();
    let mut directories = vec![repository()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let skipped = [
                    "target", "tests", "deploy", "bench", "fuzz", "testkit", "xtask",
                ];
                if !name.starts_with('.') && !skipped.contains(&name.as_str()) {
                    directories.push(path);
                }
            } else if name.ends_with(".rs") {
                sources += &fs::read_to_string(&path).unwrap();
            }
        }
    }
    let programs: BTreeSet<String> = documented()
        .unwrap()
        .into_values()
        .flat_map(|own| own.programs)
        .collect();
    for (place, expression) in expressions() {
        for matcher in selectors(&expression).iter().flat_map(|own| &own.matchers) {
            if matcher.label == "status" || matcher.label == "code" {
                continue; // numbers of HTTP
            }
            for word in matcher.words() {
                let known = match matcher.label.as_str() {
                    "job" => programs.contains(word),
                    _ => sources.contains(&format!("\"{word}\"")),
                };
                assert!(known, "{place}: no program says {}={word:?}", matcher.label);
            }
        }
    }
}

#[test]
fn alert_has_texts_and_runbook_section() {
    let runbook = fs::read_to_string(repository().join("deploy/monitoring/runbook.md")).unwrap();
    let anchors: BTreeSet<String> = { runbook.lines() }
        .filter_map(|line| line.strip_prefix("### "))
        .map(str::to_lowercase)
        .collect();
    let mut alerts = BTreeSet::new();
    for rule in rules().unwrap() {
        let Some(name) = rule.alert else { continue };
        assert!(alerts.insert(name.to_lowercase()), "two alerts {name}");
        assert!(name.starts_with("Rhizome"), "{name}");
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(
            matches!(severity, Some("critical" | "warning")),
            "{name}: {severity:?}"
        );
        assert_eq!(rule.labels.len(), 1, "{name}");
        for key in ["summary", "description"] {
            assert!(
                rule.annotations.get(key).is_some_and(|own| own.len() > 10),
                "{name}: {key}"
            );
        }
        let link = format!("deploy/monitoring/runbook.md#{}", name.to_lowercase());
        assert_eq!(rule.annotations.get("runbook_url"), Some(&link), "{name}");
        assert!(
            anchors.contains(&name.to_lowercase()),
            "{name} has no section in the runbook"
        );
        let (_, section) = runbook.split_once(&format!("### {name}\n\n")).unwrap();
        let hold = rule
            .hold
            .map_or_else(|| "at once".to_owned(), |hold| format!("after {hold}"));
        let begins = section.split_once(".*").unwrap().0.to_lowercase();
        assert_eq!(begins, format!("*{}, {hold}", severity.unwrap()), "{name}");
    }
    let gone: Vec<&String> = anchors
        .iter()
        .filter(|own| own.starts_with("rhizome") && !alerts.contains(*own))
        .collect();
    assert!(
        gone.is_empty(),
        "the runbook has sections of alerts that do not exist: {gone:?}"
    );
}

#[test]
fn every_alert_is_fired_and_silenced_by_a_test() {
    let mut seen: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for path in monitoring::files("rules/tests", "yaml").unwrap() {
        let file: Value = settings::yaml::load(&path).unwrap();
        for test in file["tests"].as_array().unwrap() {
            for own in test["promql_expr_test"].as_array().unwrap() {
                let expression = own["expr"].as_str().unwrap();
                let (_, rest) = expression.split_once("alertname=\"").unwrap();
                let name = rest.split_once('"').unwrap().0;
                let fires = !own["exp_samples"].as_array().unwrap().is_empty();
                seen.entry(name.to_owned()).or_default().insert(fires);
            }
        }
    }
    for rule in rules().unwrap() {
        let Some(name) = rule.alert else { continue };
        let tests = seen.remove(&name).unwrap_or_default();
        assert_eq!(
            tests,
            BTreeSet::from([false, true]),
            "{name}: fired and silent"
        );
    }
    assert!(
        seen.is_empty(),
        "tests of alerts that there are not: {seen:?}"
    );
}

/// The manifests are another package's, so they are looked at here by their words alone.
#[test]
fn scrape_configurations_find_shipped_pods() {
    let programs: BTreeSet<String> = { documented().unwrap().into_values() }
        .flat_map(|own| own.programs)
        .collect();
    let scraped = monitoring::root().join("prometheus/shoot-by-apiserver.yaml");
    let scraped = fs::read_to_string(scraped).unwrap();
    // A port without a name is named by its number, for that program.
    let numbered = |program: &str, line: &str| {
        let port = line
            .split_once("httpGet: ")
            .and_then(|(_, asked)| asked.split_once("port: "));
        let number = port.map(|(_, rest)| rest.trim_end_matches([' ', '}']));
        number.is_some_and(|number| {
            scraped.contains(&format!("$2:{number}/proxy/metrics\n"))
                && scraped.contains(&format!("regex: (.+);(.+);{program}\n"))
        })
    };
    let watched = rules().unwrap().into_iter();
    let mut watched = watched.filter(|rule| rule.alert.as_deref() == Some("RhizomeTargetDown"));
    let watched = selectors(&watched.next().unwrap().expr);
    let watched = format!("^({})$", watched[0].matchers[0].value);
    let watched = regex_lite::Regex::new(&watched).unwrap();
    let (mut found, mut sidecars) = (BTreeSet::new(), Vec::new());
    let mut directories = ["seed", "control-plane", "shoot"]
        .map(|own| repository().join("deploy").join(own))
        .to_vec();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let named =
                |program: &&String| text.contains(&format!("app.kubernetes.io/name: {program}\n"));
            let port = |line: &str| {
                let names = ["probes", "metrics", "health"].into_iter();
                { names }.any(|name| line.contains(&format!("name: {name}, containerPort: ")))
            };
            let part = text.contains("app.kubernetes.io/part-of: rhizome\n");
            // What becomes `job` is one that the rules look at.
            for job in text.lines().filter_map(|line| {
                let name = line.trim().strip_prefix("app.kubernetes.io/name: ");
                name.filter(|_| part && text.lines().any(port))
            }) {
                assert!(watched.is_match(job), "{}: {job}", path.display());
            }
            if text
                .lines()
                .any(|line| line.contains("/konnectivity-server: sidecar"))
            {
                sidecars.extend(text.lines().filter(|line| port(line)).map(str::to_owned));
            }
            if let Some(program) = programs.iter().find(named)
                && part
                && text
                    .lines()
                    .any(|line| port(line) || numbered(program, line))
            {
                found.insert(program.clone());
            }
        }
    }
    assert_eq!(
        found, programs,
        "programs whose pods have the labels and a port for probes"
    );
    assert_eq!(sidecars.len(), 1, "{sidecars:?}");
    assert!(sidecars[0].contains("name: health"), "{sidecars:?}");
}

#[test]
fn dashboards_have_names_of_their_own_and_titles() {
    let mut uids = BTreeSet::new();
    for path in monitoring::files("dashboards", "json").unwrap() {
        let text = fs::read_to_string(&path).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        let uid = dashboard["uid"].as_str().unwrap().to_owned();
        assert_eq!(path.file_stem().unwrap().to_string_lossy(), uid);
        assert!(uids.insert(uid));
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<u64> = panels
            .iter()
            .map(|own| own["id"].as_u64().unwrap())
            .collect();
        assert_eq!(ids.len(), panels.len(), "{}", path.display());
        for panel in panels {
            let title = panel["title"].as_str().unwrap();
            let place = &panel["gridPos"];
            let right = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
            assert!(right <= 24 && !title.is_empty(), "{title}");
            let source = panel["type"] == "row" || panel["datasource"]["uid"] == "${datasource}";
            assert!(source, "{title} asks a data source that others do not have");
        }
    }
    assert_eq!(uids.len(), 4);
}

#[test]
fn metrics_are_described_once_and_linked() {
    let all = documented().unwrap();
    assert!(all["rhizome_ready"].programs.len() > 1);
    let shared = fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    for program in all.into_values().flat_map(|own| own.programs) {
        let link = format!("[{program}](metrics/{program}.md)");
        assert!(shared.contains(&link), "{link}");
    }
}
