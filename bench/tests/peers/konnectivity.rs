//! `rhizome-bench konnectivity` for a moment: every load passes through a real pair.

use std::process::Command;

use serde_json::Value;
use testkit::command;

use super::programs;

#[test]
fn every_load_passes_through_each_transport() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    bench.args(["--json", "konnectivity", "--cases", "speed"]);
    bench.args(["--mib", "1", "--millis", "100", "--rounds", "2"]);
    bench.args(["--transport", "http-uds,http-mtls,grpc-uds,grpc-mtls"]);
    for program in ["konnectivity-server", "konnectivity-agent"] {
        let path = programs::in_package("konnectivity", program);
        bench.arg(program.replace("konnectivity-", "--")).arg(path);
    }
    let output = command::output(&mut bench).unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(!failed.contains("failed:"), "{failed}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = run["rows"].as_array().unwrap();
    for setup in ["direct", "http-uds", "http-mtls", "grpc-uds", "grpc-mtls"] {
        for (case, figure) in [
            ("down ×1", "throughput"),
            ("up ×1", "throughput"),
            ("rtt c=16", "rate"),
            ("dials c=64", "rate"),
        ] {
            let same = |row: &&Value| {
                row["setup"] == setup && row["case"] == case && row["figure"] == figure
            };
            let row = rows.iter().find(same);
            let row = row.unwrap_or_else(|| panic!("no {figure} of {setup}, {case}"));
            // On a busy machine none of 64 dials may be over within a tenth of a second.
            let moved = row["median"].as_f64().unwrap() > 0.0;
            assert!(moved || figure != "throughput", "{row}");
            assert_eq!(row["count"], 2, "{row}");
        }
    }
}
