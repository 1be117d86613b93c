//! Documents that are generated and committed.

use std::path::{Path, PathBuf};

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path)
}

#[test]
fn the_schema_of_the_configuration_is_up_to_date() {
    let schema = settings::schema::<apiserver_proxy::Config>();
    settings::check_doc(&document("schema/apiserver-proxy.json"), &schema);
}

#[test]
fn the_table_of_metrics_is_up_to_date() {
    let metrics = apiserver_proxy::describe_metrics();
    let command = "cargo test -p apiserver-proxy --test it docs";
    telemetry::metrics::check_docs(&document(""), "apiserver-proxy", command, &metrics);
}
