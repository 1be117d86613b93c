//! `rhizome-bench controller --cases churn` in small: what it does with 9,000 connections and 10,000
//! shoots, done with few.

use std::process::Command;

use serde_json::Value;
use testkit::command;

use super::programs;

#[test]
fn routes_change_under_held_connections() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    bench.args(["--json", "--require", "controller", "--cases", "churn"]);
    bench.args(["--routes", "60", "--held", "20", "--seconds", "2"]);
    bench
        .arg("--controller")
        .arg(programs::of("netpol-controller"));
    bench.arg("--gateway").arg(programs::of("sni-proxy"));
    // With --require a connection that is lost, or a change that does not take effect, fails it.
    let text = command::run(&mut bench).unwrap();
    let run: Value = serde_json::from_str(&text).unwrap();
    let median = |case: &str, figure: &str| {
        let mut all = run["rows"].as_array().unwrap().iter();
        let line = all.find(|line| line["case"] == case && line["figure"] == figure);
        line.unwrap_or_else(|| panic!("no {figure} of {case}: {text}"))["median"]
            .as_f64()
            .unwrap()
    };
    assert_eq!(median("churn", "connections held"), 40.0);
    assert_eq!(median("churn", "connections lost"), 0.0);
    assert!(median("churn", "probes of each") >= 1.0);
    assert!(median("churn", "new connections") > 0.0);
    assert!(median("churn, an endpoint moves", "delay p50") > 0.0);
    assert!(median("churn, a name comes", "delay p50") > 0.0);
}
