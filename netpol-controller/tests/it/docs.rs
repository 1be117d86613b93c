//! Documents that are generated and committed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use testkit::tempdir::TempDir;
use testkit::wait;

use crate::child::{Child, LIMIT};
use crate::offline::{Mute, config};

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path)
}

#[test]
fn the_schema_is_up_to_date() {
    let config = settings::schema::<netpol_controller::Config>();
    settings::check_doc(&document("schema/netpol-controller.json"), &config);
}

#[test]
fn the_table_of_metrics_is_up_to_date() {
    let metrics = netpol_controller::describe_metrics();
    let command = "cargo test -p netpol-controller --test it docs";
    telemetry::metrics::check_docs(&document(""), "netpol-controller", command, &metrics);
}

#[test]
fn running_controller_exposes_only_the_table() {
    let (dir, mute) = (TempDir::new("docs").unwrap(), Mute::start());
    let child = Child::start(dir.path(), "controller", &config(&dir, mute.addr, true));
    // Who answers probes is there before who makes policies.
    let mut exposed = BTreeSet::new();
    wait::until("the metrics of all that runs", LIMIT, || {
        exposed = families(&Child::ask(child.probes, "GET", "/metrics").text());
        exposed.contains("rhizome_netpol_leader")
    })
    .unwrap();
    let described: BTreeSet<String> = netpol_controller::describe_metrics()
        .into_iter()
        .map(|metric| metric.name)
        .collect();
    let unknown: Vec<_> = exposed.difference(&described).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(exposed.contains("rhizome_build_info"), "{exposed:?}");
}

/// Returns the names of an exposition's metrics.
fn families(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

#[test]
fn the_readme_names_exit_codes_kinds_and_reasons() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    for kind in netpol_controller::state::Kind::ALL {
        let plural = kind.plural();
        assert!(readme.contains(&format!("\"{plural}\"")), "{plural}");
    }
    for code in ["| 0 |", "| 64 |", "| 1 |"] {
        assert!(readme.contains(code), "{code}");
    }
}
