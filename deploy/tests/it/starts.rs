//! What is started apart from the others: overlays, the address keeper, and the server beside an API
//! server.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use deploy::{Objects, Pod, Sandbox};
use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::netns::{Namespace, Place};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::api::LIMIT;
use crate::world::{has_started, wait_ready};
use crate::{objects, sidecars};

/// Overlays whose containers are not those of their base.
pub(crate) const OVERLAYS: &[&str] = &["ipv6", "node-cache"];

/// Containers that tests here start and no others do.
pub(crate) const STARTED: &[&str] = &[
    "apiserver-proxy-keeper/keeper",
    "ipv6: vpn-shoot/setup",
    "ipv6: vpn-shoot/vpn-client",
    "sni-proxy/sni-proxy",
];

fn sandbox<'n>(at: &'n Namespace, dir: &TempDir) -> Sandbox<'n> {
    Sandbox {
        place: Place::In(at),
        directory: dir.join("pods"),
        hosts: "127.0.0.1 localhost\n".to_owned(),
        account: None,
    }
}

fn secret(name: &str, data: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data,
    })
}

#[test]
fn client_starts_once_ipv6_is_enabled() {
    let (at, dir) = (
        Namespace::new("ipv6").unwrap(),
        TempDir::new("deploy").unwrap(),
    );
    at.ip(&["link", "add", "eth0", "type", "veth"]).unwrap();
    at.add_address("eth0", "fd00:96::9/64").unwrap();
    at.add_address("eth0", "100.96.1.9/11").unwrap();
    at.add_route("default", "100.96.0.1").unwrap();
    // As clusters without IPv6 leave it.
    at.run(|| fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "0"))
        .unwrap()
        .unwrap();
    let mut built = Objects::build("shoot/vpn-client/overlays/ipv6").unwrap();
    let with_ipv6 = |wanted: &mut Value| {
        let pods = wanted["networks"]["pods"].as_array_mut();
        pods.unwrap().push(json!("fd00:96::/56"));
    };
    built.extend(objects::provision(&dir, with_ipv6));
    let pod = Pod::of(&built, "StatefulSet", "vpn-shoot", "vpn-shoot-0").unwrap();
    let (sandbox, main) = (sandbox(&at, &dir), pod.container("vpn-client").unwrap());
    let refused = sandbox.run(main, &built).unwrap_err();
    assert!(format!("{refused:#}").contains("setup"), "{refused:#}");
    sandbox
        .run(pod.container("setup").unwrap(), &built)
        .unwrap();
    let mut child = sandbox.start(main, &built).unwrap();
    // No server answers here: that the file exists must do.
    let device = || {
        at.ip(&["addr", "show", "dev", "rhizome0"])
            .is_ok_and(|text| text.contains("fd8f:"))
    };
    child.wait_ready(LIMIT, device).unwrap();
}

#[test]
fn gateway_waits_for_routes_with_node_cache() {
    let (at, dir) = (
        Namespace::new("cache").unwrap(),
        TempDir::new("deploy").unwrap(),
    );
    let data = gateway_identity();
    let built = |directory: &str| {
        let mut built = Objects::build(directory).unwrap();
        built.extend([secret("sni-proxy-xds-tls", data.clone())]);
        let pod = Pod::of(&built, "Deployment", "sni-proxy", "sni-proxy-0").unwrap();
        (built, pod)
    };
    let sandbox = sandbox(&at, &dir);
    let (overlay, pod) = built("seed/gateway/overlays/node-cache");
    let refused = sandbox.command(pod.container("sni-proxy").unwrap(), &overlay);
    let refused = format!("{:#}", refused.unwrap_err());
    assert!(refused.contains("/var/lib/rhizome/gateway"), "{refused}");
    // Without a controller it is alive, and not ready.
    let (base, pod) = built("seed/gateway/base");
    let container = pod.container("sni-proxy").unwrap();
    let mut child = sandbox.start(container, &base).unwrap();
    let alive = || crate::world::ask(&at, 15021, "/healthz").is_some();
    child.wait_ready(LIMIT, alive).unwrap();
    assert!(crate::world::ask(&at, 15021, "/readyz").is_none());
}

#[test]
fn gateways_of_a_node_follow_each_other() {
    let (at, dir) = (
        Namespace::new("handover").unwrap(),
        TempDir::new("deploy").unwrap(),
    );
    let mut built = Objects::build("seed/gateway/overlays/node-handover").unwrap();
    assert!(built.get("Deployment", "sni-proxy").is_err());
    built.extend([secret("sni-proxy-xds-tls", gateway_identity())]);
    let sandbox = sandbox(&at, &dir);
    let pod = |name| Pod::of(&built, "DaemonSet", "sni-proxy", name).unwrap();
    let first = pod("sni-proxy-0");
    let container = first.container("sni-proxy").unwrap();
    let refused = format!("{:#}", sandbox.command(container, &built).unwrap_err());
    assert!(refused.contains("/var/lib/rhizome/gateway"), "{refused}");
    let own = "seed/gateway/overlays/node-handover/rhizome-gateway-handover.conf";
    prepare_for(&sandbox.host(), own);
    let mut older = sandbox.start(container, &built).unwrap();
    let alive = || crate::world::ask(&at, 15021, "/healthz").is_some();
    older.wait_ready(LIMIT, alive).unwrap();
    assert!(has_started(container, older.pid()));
    let second = pod("sni-proxy-1");
    let container = second.container("sni-proxy").unwrap();
    let mut newer = sandbox.start(container, &built).unwrap();
    newer.wait_log("took over", LIMIT).unwrap();
    assert!(has_started(container, newer.pid()));
    older.signal(testkit::process::Signal::TERM).unwrap();
    assert!(older.wait_exit(LIMIT).unwrap().success());
    assert!(alive());
}

/// Returns what the Secret of a gateway's identity has.
fn gateway_identity() -> Value {
    let authority = Authority::new("xds").unwrap();
    let uri = "spiffe://example.com/gateway/default";
    let identity = authority.client("", &[], &[uri]).unwrap();
    json!({
        "ca.crt": authority.pem(), "tls.crt": identity.cert_pem, "tls.key": identity.key_pem,
    })
}

/// Prepares a node as the fragment for tmpfiles.d says; `host` is its file system.
pub(crate) fn prepare_node(host: &Path) {
    prepare_for(
        host,
        "seed/gateway/overlays/node-cache/rhizome-gateway.conf",
    );
}

fn prepare_for(host: &Path, fragment: &str) {
    let text = fs::read_to_string(deploy::root().join(fragment)).unwrap();
    for line in text.lines().filter(|line| line.starts_with("d ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let path = host.join(words[1].trim_start_matches('/'));
        fs::create_dir_all(&path).unwrap();
        // In a user namespace of an unprivileged user there is no such group.
        let _ = chown(
            &path,
            words[3].parse().ok(),
            Some(words[4].parse().unwrap()),
        );
        let mode = u32::from_str_radix(words[2], 8).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn keeper_holds_address_for_any_node_proxy() {
    for more in ["", "interface: { cleanup: true }\n"] {
        let at = Namespace::new("keeper").unwrap();
        let dir = TempDir::new("deploy").unwrap();
        let mut built = Objects::default();
        for mut object in Objects::build("shoot/apiserver-proxy-keeper").unwrap() {
            for text in object["data"].as_object_mut().into_iter().flatten() {
                *text.1 = json!(format!("{}{more}", text.1.as_str().unwrap()));
            }
            built.extend([object]);
        }
        let keeper = "apiserver-proxy-keeper";
        let pod = Pod::of(&built, "DaemonSet", keeper, keeper).unwrap();
        let (sandbox, container) = (sandbox(&at, &dir), pod.container("keeper").unwrap());
        let mut child = sandbox.start(container, &built).unwrap();
        wait_ready(&at, container, &mut child);
        // A proxy of any kind, in a pod of its own.
        let address: SocketAddr = format!("{}:443", objects::ADVERTISED).parse().unwrap();
        let proxy = Place::In(&at).bind(address).unwrap();
        let _proxy = Upstream::serve(proxy, Behavior::Echo).unwrap();
        let is_reached = || at.run(|| TcpStream::connect(address).is_ok()).unwrap();
        assert!(is_reached());
        at.ip(&["addr", "flush", "to", objects::ADVERTISED])
            .unwrap();
        wait::until("the address to be back", LIMIT, is_reached).unwrap();
        // The next pod of a roll starts once this one has ended.
        assert!(child.stop(LIMIT).unwrap().success());
        assert!(is_reached(), "{more}");
    }
}

#[test]
fn sidecar_serves_socket_in_both_modes() {
    for mode in ["grpc", "http-connect"] {
        let (at, dir) = (
            Namespace::new(mode).unwrap(),
            TempDir::new("deploy").unwrap(),
        );
        let mut built = Objects::read(sidecars::PATCH).unwrap();
        let authority = Authority::new("konnectivity").unwrap();
        let identity = authority
            .server(&["konnectivity.bar.foo.example.com"])
            .unwrap();
        let data = json!({
            "ca.crt": authority.pem(), "tls.crt": identity.cert_pem, "tls.key": identity.key_pem,
        });
        built.extend([secret("konnectivity-server-tls", data)]);
        // No API server answers there, and none is waited for.
        let nowhere = ([127, 0, 0, 1], 1).into();
        built.extend(sidecars::shoot_access(nowhere, authority.pem(), "token"));
        // A patch has no namespace; what it is applied to has.
        let mut patch = built.get("Deployment", "kube-apiserver").unwrap().clone();
        patch["metadata"]["namespace"] = json!(objects::SHOOT);
        let text = patch
            .to_string()
            .replace("--mode=grpc", &format!("--mode={mode}"));
        let secrets = built.of_kind("Secret").cloned().collect::<Vec<_>>();
        let mut built = Objects::parse(&text, Path::new("kube-apiserver.yaml")).unwrap();
        built.extend(secrets);
        let pod = Pod::of(&built, "Deployment", "kube-apiserver", "kube-apiserver-0").unwrap();
        let sandbox = sandbox(&at, &dir);
        let container = pod.container("konnectivity-server").unwrap();
        let mut child = sandbox.start(container, &built).unwrap();
        wait_ready(&at, container, &mut child);
        let socket = format!("/proc/{}/root/run/konnectivity/server.sock", child.pid());
        assert!(fs::metadata(socket).is_ok(), "{mode}");
    }
}
