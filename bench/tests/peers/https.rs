//! `rhizome-bench https` beside Envoy, for a moment: every bound has its peer.

use std::process::Command;

use serde_json::Value;
use testkit::command;

use super::programs;

#[test]
fn https_figures_have_bounds_beside_envoy() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    bench.args(["--json", "https", "--only", "rhizome-https,envoy-https"]);
    bench.args([
        "--rounds",
        "1",
        "--seconds",
        "0.5",
        "--connections",
        "4",
        "--in-flight",
        "4",
    ]);
    bench.args([
        "--lists",
        "2",
        "--watches",
        "20",
        "--events",
        "3",
        "--clients",
        "10",
    ]);
    let gateway = programs::of("sni-proxy");
    bench.args(["--program", &format!("sni-proxy={}", gateway.display())]);
    let output = command::output(&mut bench).unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(!failed.contains("failed:"), "{failed}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = run["rows"].as_array().unwrap();
    for (case, figure) in [
        ("get h2 ×4", "proxy cpu each"),
        ("get http/1.1 ×4", "proxy cpu each"),
        ("handshake ×4", "proxy cpu each"),
        ("list ×2", "proxy cpu"),
        ("watch ×20", "p99"),
        ("watch ×20", "memory each"),
        ("spread ×10", "apart"),
    ] {
        let of = |setup: &str| {
            let same = |row: &&Value| {
                row["setup"] == setup && row["case"] == case && row["figure"] == figure
            };
            rows.iter()
                .find(same)
                .unwrap_or_else(|| panic!("no {figure} of {setup}, {case}"))
        };
        assert!(of("envoy-https")["median"].as_f64().unwrap() > 0.0);
        assert!(of("rhizome-https")["must"]["at_most"].as_f64().unwrap() > 0.0);
    }
}
