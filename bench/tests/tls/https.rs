//! `rhizome-bench https` through our gateway, for a moment.

use super::{bench, median, programs};

#[test]
fn every_https_case_has_its_figures() {
    let program = format!("sni-proxy={}", programs::of("sni-proxy").display());
    let what = ["https", "--json", "--only", "direct,rhizome-https"];
    let small = [
        "--rounds",
        "1",
        "--seconds",
        "0.5",
        "--warm-up",
        "0.2",
        "--connections",
        "4",
        "--in-flight",
        "4",
        "--lists",
        "2",
        "--watches",
        "20",
        "--events",
        "3",
        "--clients",
        "10",
    ];
    let run = bench(&[&what[..], &small, &["--program", &program]].concat());
    let ours = |case: &str, figure: &str| {
        let value = median(&run, "rhizome-https", case, figure);
        value.unwrap_or_else(|| panic!("{case}: no {figure}: {run}"))
    };
    for case in ["get h2 ×4", "get http/1.1 ×4", "handshake ×4"] {
        let (rate, each, busy) = (
            ours(case, "rate"),
            ours(case, "proxy cpu each"),
            ours(case, "proxy busy"),
        );
        // So many a second, of so many microseconds each, is the share of a processor.
        let share = rate * each / 1e4;
        assert!(
            rate > 0.0 && (share / busy - 1.0).abs() < 0.01,
            "{case}: {share} or {busy} %"
        );
        assert!(median(&run, "direct", case, "rate").unwrap() > 0.0);
    }
    assert!(ours("list ×2", "throughput") > 0.0 && ours("list ×2", "proxy cpu") > 0.0);
    let watch = "watch ×20";
    assert!(ours(watch, "p50") <= ours(watch, "p99"));
    assert!(ours(watch, "memory each") < 1000.0);
    // That requests are spread is a matter of their number: these are few.
    assert!(ours("spread ×10", "apart") < 100.0);
}
