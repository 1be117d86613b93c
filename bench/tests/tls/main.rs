//! `rhizome-bench tls` as a user runs it, for a moment: the figures are there, and they add up.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not see as such"
)]

mod https;
#[path = "../peers/programs.rs"]
mod programs;

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::{command, ports};

fn bench(arguments: &[&str]) -> Value {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    bench.args(arguments);
    let text = command::run(&mut bench).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn median(run: &Value, setup: &str, case: &str, figure: &str) -> Option<f64> {
    let same =
        |line: &&Value| line["setup"] == setup && line["case"] == case && line["figure"] == figure;
    run["rows"].as_array()?.iter().find(same)?["median"].as_f64()
}

/// Runs `rhizome-bench tls` for a moment, with more arguments.
fn short(more: &[&str]) -> Value {
    let program = format!("sni-proxy={}", programs::of("sni-proxy").display());
    let first = [
        "tls",
        "--json",
        "--rounds",
        "1",
        "--in-flight",
        "4",
        "--program",
        &program,
    ];
    bench(&[&first[..], more].concat())
}

/// Checks the rate of operations against what each took.
fn operations(run: &Value, case: &str) {
    let value = |setup: &str, figure: &str| {
        let value = median(run, setup, case, figure);
        value.unwrap_or_else(|| panic!("{setup}, {case}: no {figure}"))
    };
    let ours = |figure: &str| value("rhizome", figure);
    let (rate, each, busy) = (ours("rate"), ours("proxy cpu each"), ours("proxy busy"));
    assert!(
        rate > 0.0 && each > 0.0,
        "{case}: {rate} a second, {each} µs each"
    );
    // So many a second, of so many microseconds each, is the share of a processor.
    let share = rate * each / 1e4;
    assert!(
        (share / busy - 1.0).abs() < 0.01,
        "{case}: {share} % or {busy} %"
    );
    assert!(
        ours("p50") <= ours("p99") && ours("p99") <= ours("max"),
        "{case}"
    );
    assert!(value("direct", "rate") > 0.0, "{case}");
    assert_eq!(median(run, "direct", case, "proxy cpu each"), None);
}

#[test]
fn every_case_has_consistent_figures() {
    let what = [
        "--only",
        "direct,rhizome",
        "--seconds",
        "0.2",
        "--warm-up",
        "0.1",
    ];
    let how_many = ["--connections", "2", "--idle", "50"];
    let run = short(&[&what[..], &how_many[..]].concat());
    let mut facts = run["facts"].as_array().unwrap().iter();
    let versions = facts.find(|fact| fact[0] == "versions").unwrap();
    assert!(versions[1].as_str().unwrap().contains("sni-proxy"));
    for case in ["conns ×4", "rtt"] {
        operations(&run, &format!("sni {case}"));
    }
    let ours = |case: &str, figure: &str| median(&run, "rhizome", case, figure).unwrap();
    for case in ["sni bulk down ×2", "sni bulk up ×2"] {
        let share = ours(case, "throughput") / 8.0 * ours(case, "proxy cpu") * 100.0;
        let busy = ours(case, "proxy busy");
        assert!(
            busy > 0.0 && (share / busy - 1.0).abs() < 0.01,
            "{case}: {share} or {busy} %"
        );
    }
    assert_eq!(ours("sni conns ×4", "failed"), 0.0);
    let idle = "sni idle ×50";
    let (empty, held) = (ours(idle, "resident empty"), ours(idle, "resident held"));
    let each = ours(idle, "memory each");
    assert!(
        empty > 1.0 && (empty + 50.0 * each / 1024.0 - held).abs() < 0.01,
        "{each} KiB"
    );
    // A page of code or of the heap that is first used when they close counts too, shared by 50.
    let kept = ours(idle, "kept of it");
    assert!(kept <= each + 4.0, "{kept} KiB of {each}");
}

#[test]
fn other_listeners_get_their_protocol() {
    let what = [
        "--only",
        "direct,rhizome",
        "--listener",
        "proxy,connect",
        "--cases",
        "conns",
    ];
    let run = short(&[&what[..], &["--seconds", "0.2"]].concat());
    for listener in ["proxy", "connect"] {
        let case = format!("{listener} conns ×4");
        operations(&run, &case);
        assert_eq!(
            median(&run, "rhizome", &case, "failed"),
            Some(0.0),
            "{case}"
        );
    }
}

/// It is no proxy, but what it is given arrives.
#[test]
fn copy_loop_measures_machine_cost() {
    let what = ["--only", "copy-loop,rhizome-copy", "--seconds", "0.2"];
    let run = short(&[&what[..], &["--cases", "bulk,conns,rtt"]].concat());
    let value = |setup: &str, case: &str, figure: &str| {
        let value = median(&run, setup, case, figure);
        value.unwrap_or_else(|| panic!("{setup}, {case}: no {figure}"))
    };
    for setup in ["copy-loop", "rhizome-copy"] {
        for case in ["sni bulk down ×8", "sni bulk up ×8"] {
            assert!(value(setup, case, "throughput") > 0.0);
            assert!(value(setup, case, "proxy cpu") > 0.0);
        }
    }
    assert_eq!(value("copy-loop", "sni conns ×4", "failed"), 0.0);
    assert!(value("copy-loop", "sni rtt", "p50") > 0.0);
}

/// A loop that copies stands for a gateway that runs already.
#[test]
fn running_gateway_is_measured_at_its_address() {
    let ports = ports::free(2).unwrap();
    let [at, backend] = [0, 1].map(|nth: usize| format!("127.0.0.1:{}", ports[nth]));
    let mut copy = Command::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    copy.args(["copy-loop", "--listen", &at, "--to", &backend]);
    let dir = TempDir::new("bench-at").unwrap();
    let mut child = ChildGuard::spawn("copy-loop", &copy, &dir.join("log")).unwrap();
    let limit = Duration::from_secs(20);
    child.wait_listening(at.parse().unwrap(), limit).unwrap();
    let pid = child.pid().to_string();
    let gateway = ["--at", &at, "--backend", &backend, "--pid", &pid];
    let how = ["--server-name", "api.example.com", "--cases", "conns"];
    let run = short(&[&gateway[..], &how, &["--seconds", "0.2"]].concat());
    let value = |setup: &str, figure: &str| median(&run, setup, "sni conns ×4", figure);
    assert_eq!(value("running", "failed"), Some(0.0));
    assert!(value("running", "proxy cpu each").unwrap() > 0.0);
    assert!(value("direct", "rate").unwrap() > 0.0);
}
