//! The files by which an API server finds its way into the shoot: the same words as those with which
//! tests of both tunnels start real API servers, on each transport.

use std::path::{Path, PathBuf};

use deploy::Objects;
use serde_json::Value;
use testkit::certs::IdentityFiles;
use testkit::peers::kube::Egress;
use testkit::tempdir::TempDir;

/// Returns a file as it is shipped.
pub(crate) fn shipped(name: &str) -> Value {
    let objects = Objects::read(&format!("control-plane/egress-selector/{name}")).unwrap();
    objects.into_iter().next().unwrap()
}

fn by_tls(server: &str, directory: &str) -> Egress {
    let file = |name: &str| Path::new(directory).join(name);
    Egress::HttpConnectTls {
        server: server.to_owned(),
        authority: file("ca.crt"),
        identity: IdentityFiles {
            cert: file("tls.crt"),
            key: file("tls.key"),
        },
    }
}

#[test]
fn egress_selector_has_each_transport() {
    let dir = TempDir::new("egress").unwrap();
    let socket = PathBuf::from("/run/konnectivity/server.sock");
    for (name, egress) in [
        (
            "vpn-http-connect.yaml",
            by_tls("vpn-seed-server:9443", "/etc/vpn"),
        ),
        (
            "konnectivity-http-connect.yaml",
            by_tls("konnectivity-server:8090", "/etc/konnectivity"),
        ),
        (
            "konnectivity-grpc-uds.yaml",
            Egress::GrpcUds(socket.clone()),
        ),
        (
            "konnectivity-http-connect-uds.yaml",
            Egress::HttpConnectUds(socket),
        ),
    ] {
        let path = dir.join(name);
        egress.write(&path).unwrap();
        let tried = std::fs::read_to_string(&path).unwrap();
        let tried: Value = serde_json::from_str(&tried).unwrap();
        let shipped = shipped(name);
        let (kind, first) = (&shipped["kind"], &shipped["egressSelections"][0]);
        assert_eq!(
            (kind, first),
            (&tried["kind"], &tried["egressSelections"][0]),
            "{name}"
        );
        assert_eq!(shipped["apiVersion"], tried["apiVersion"], "{name}");
        // What is not named is dialed directly; `controlplane` is `master` to older API servers.
        let all = shipped["egressSelections"].as_array().unwrap();
        assert_eq!(all.len(), 1, "{name}");
    }
}

#[test]
fn services_that_are_asked_have_those_ports() {
    for (directory, service, port) in [
        ("control-plane/vpn-server", "vpn-seed-server", 9443),
        (
            "control-plane/konnectivity-server",
            "konnectivity-server",
            8090,
        ),
    ] {
        let objects = Objects::build(directory).unwrap();
        let service = objects.get("Service", service).unwrap();
        assert_eq!(service["spec"]["ports"][0]["port"], port);
        let published = &service["spec"]["publishNotReadyAddresses"];
        assert!(
            published.is_null(),
            "API servers are led to none that is not ready"
        );
    }
}
