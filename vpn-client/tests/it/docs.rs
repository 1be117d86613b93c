//! Documents that are generated and committed.

use std::path::{Path, PathBuf};

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path)
}

#[test]
fn configuration_schema_is_up_to_date() {
    let schema = settings::schema::<vpn_client::File>();
    settings::check_doc(&document("schema/vpn-client.json"), &schema);
}

#[test]
fn metrics_table_is_up_to_date() {
    let metrics = vpn_client::describe_metrics();
    let command = "cargo test -p vpn-client --test it docs";
    telemetry::metrics::check_docs(&document(""), "vpn-client", command, &metrics);
}
