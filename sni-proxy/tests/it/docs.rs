//! Documents that are generated and committed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::{Client, Gateway, Probe, routes_of};
use crate::wireguard::peers::{Peer, wait_dropped};

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path)
}

#[test]
fn the_schemas_of_both_files_are_up_to_date() {
    let config = settings::schema::<sni_proxy::Config>();
    settings::check_doc(&document("schema/sni-proxy.json"), &config);
    let routes = settings::schema::<sni_proxy::RoutesFile>();
    settings::check_doc(&document("schema/routes.json"), &routes);
}

#[test]
fn the_table_of_metrics_is_up_to_date() {
    let metrics = sni_proxy::describe_metrics();
    let command = "cargo test -p sni-proxy --test it docs";
    telemetry::metrics::check_docs(&document(""), "sni-proxy", command, &metrics);
}

#[test]
fn operations_explain_every_reason() {
    let text = std::fs::read_to_string(document("operations.md")).unwrap();
    let missing = |reason: &&serve::Reason| !text.contains(&format!("`{}`", reason.as_str()));
    let missing: Vec<_> = serve::Reason::ALL.iter().filter(missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn table_lists_exposed_metrics() {
    let refusing = testkit::ports::free(1).unwrap()[0];
    let config = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: wg, address: "127.0.0.1:0", protocol: wireguard }
"#;
    let gateway = Gateway::start(
        config,
        &routes_of(&[("a", ([127, 0, 0, 1], refusing).into())]),
    );
    // A family is exposed once it has a series.
    Client::hello(gateway.addr("tls"), "a.test").end();
    gateway.wait_closed("tls", "connect_refused", 1);
    Peer::new(&gateway).send(b"junk");
    wait_dropped(&gateway, "unknown_kind", 1);
    let text = Probe::ask(gateway.probes, "GET", "/metrics").text();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exposed: BTreeSet<String> = families
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    // Those of a server of routes, and of terminating routes, are exposed where there is one.
    let elsewhere = [
        "rhizome_xds_",
        "rhizome_tls_",
        "rhizome_request",
        "rhizome_terminate_",
        "rhizome_upstream_",
    ];
    let described: BTreeSet<String> = sni_proxy::describe_metrics()
        .into_iter()
        .map(|metric| metric.name)
        .filter(|name| !elsewhere.iter().any(|of| name.starts_with(of)))
        .collect();
    assert_eq!(exposed, described);
}
