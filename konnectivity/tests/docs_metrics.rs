//! The tables of metrics, which are generated and committed.

use std::path::Path;

use telemetry::metrics::Description;

#[test]
fn server_metrics_table_is_current() {
    check(
        "konnectivity-server",
        &konnectivity::describe_server_metrics(),
    );
}

#[test]
fn the_table_of_the_agents_metrics_is_up_to_date() {
    check(
        "konnectivity-agent",
        &konnectivity::describe_agent_metrics(),
    );
}

fn check(binary: &str, metrics: &[Description]) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let command = "cargo test -p konnectivity --test docs_metrics";
    telemetry::metrics::check_docs(&docs, binary, command, metrics);
}
