//! Documents that are generated and committed.

use std::path::{Path, PathBuf};

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path)
}

#[test]
fn schemas_are_up_to_date() {
    let config = settings::schema::<vpn_server::Config>();
    settings::check_doc(&document("schema/vpn-server.json"), &config);
    let peers = settings::schema::<vpn_server::PeersFile>();
    settings::check_doc(&document("schema/vpn-peers.json"), &peers);
}

#[test]
fn metrics_table_is_up_to_date() {
    let metrics = vpn_server::describe_metrics();
    let command = "cargo test -p vpn-server --test it docs";
    telemetry::metrics::check_docs(&document(""), "vpn-server", command, &metrics);
}
