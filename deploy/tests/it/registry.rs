//! One konnectivity-server for a seed: each shoot puts its own file into the registry, as a field manager of a
//! ConfigMap that all share.
//!
//! No kubelet brings the ConfigMaps here: the test writes the volume.

use std::net::{Ipv4Addr, SocketAddr};

use deploy::{Objects, Pod, Sandbox};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::certs::{Authority, Identity};
use testkit::http::{self, Proxy, RefusedByProxy, Target};
use testkit::netns::{Namespace, Place};
use testkit::tempdir::TempDir;
use testkit::wait;

use crate::api::{Api, LIMIT};
use crate::objects::SHOOT;
use crate::world;

const CLUSTER: &str = "seed/konnectivity-server/cluster.yaml";
const OTHER: &str = "shoot--foo--baz";
const ZONE: &str = "konnectivity.seed.example.com";
const SERVICE: &str = "konnectivity-server.garden";
/// In the shoot's network of pods.
const POD: Ipv4Addr = Ipv4Addr::new(100, 96, 1, 9);

/// Returns what a shoot applies.
fn cluster(shoot: &str, authority: &str) -> Value {
    let shipped = Objects::read(CLUSTER).unwrap().into_iter().next().unwrap();
    let text = shipped.to_string().replace(SHOOT, shoot);
    let mut object: Value = serde_json::from_str(&text).unwrap();
    object["data"][format!("{shoot}.crt")] = json!(authority);
    object
}

#[test]
fn seed_server_takes_shoots_as_they_come() {
    let at = Namespace::new("registry").unwrap();
    let dir = TempDir::new("deploy").unwrap();
    at.add_address("lo", &format!("{POD}/32")).unwrap();
    let server = Authority::new("server").unwrap();
    let [own, other] = [SHOOT, OTHER].map(|shoot| Authority::new(shoot).unwrap());
    let identity = server.server(&[SERVICE, &format!("*.{ZONE}")]).unwrap();
    let secret = |name: &str, authority: &Authority, identity: &Identity| {
        let data = json!({
            "ca.crt": authority.pem(), "tls.crt": identity.cert_pem, "tls.key": identity.key_pem,
        });
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data,
        })
    };
    let sandbox = Sandbox {
        place: Place::In(&at),
        directory: dir.join("pods"),
        hosts: format!("127.0.0.1 localhost\n127.0.0.1 {SHOOT}.{ZONE}\n"),
        account: None,
    };
    let mut built = Objects::build("seed/konnectivity-server").unwrap();
    built.extend([secret("konnectivity-server-tls", &server, &identity)]);
    built.extend([cluster(SHOOT, own.pem())]);
    let pod = Pod::of(&built, "Deployment", "konnectivity-server", "server-0").unwrap();
    let container = pod.container("konnectivity-server").unwrap();
    let mut child = sandbox.start(container, &built).unwrap();
    world::wait_ready(&at, container, &mut child);

    // The shoot's own agent, and what it reaches.
    let uri = format!("spiffe://example.com/{SHOOT}/konnectivity-agent");
    let identity = own.client("agent", &[], &[&uri]).unwrap();
    let mut agents = Objects::default();
    for object in Objects::build("shoot/konnectivity-agent").unwrap() {
        let text = object.to_string();
        let text = text.replace(
            "konnectivity.bar.foo.example.com",
            &format!("{SHOOT}.{ZONE}"),
        );
        let text = text.replace("proxy-server-port: 443", "proxy-server-port: 8091");
        agents.extend([serde_json::from_str(&text).unwrap()]);
    }
    agents.extend([secret("konnectivity-agent-tls", &server, &identity)]);
    let pod = Pod::of(&agents, "Deployment", "konnectivity-agent", "agent-0").unwrap();
    let agent = pod.container("konnectivity-agent").unwrap();
    let mut running = sandbox.start(agent, &agents).unwrap();
    world::wait_ready(&at, agent, &mut running);
    let behind = Authority::new("behind").unwrap();
    let listener = Place::In(&at).bind((POD, 443).into()).unwrap();
    let identity = behind.server(&[POD.to_string()]).unwrap();
    let _pod = ApiServer::start(listener, "a pod", &identity).unwrap();

    let ask = |shoot: &str, authority: &Authority| {
        let uri = format!("spiffe://example.com/{shoot}/kube-apiserver");
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 8090));
        let target = Target::tls(addr, behind.pem()).timeout(LIMIT);
        let target = target.proxy(Proxy::ConnectTls {
            authority: format!("{POD}:443"),
            server_name: SERVICE.to_owned(),
            authority_pem: server.pem().to_owned(),
            identity: authority.client("kube-apiserver", &[], &[&uri]).unwrap(),
        });
        at.run(|| http::get(&target, "/version")).unwrap()
    };
    let answered = || Ok::<_, anyhow::Error>(ask(SHOOT, &own)?.json()?["shoot"].clone());
    assert_eq!(answered().unwrap(), "a pod");
    // Without agents a CONNECT is answered, and refused; a stranger's handshake ends.
    let is_known = |shoot: &str, authority: &Authority| {
        let error = ask(shoot, authority).unwrap_err();
        error.downcast_ref::<RefusedByProxy>().is_some()
    };
    assert!(!is_known(OTHER, &other));
    assert!(!is_known(SHOOT, &other));

    // The other shoot's file arrives.
    let mut shared = cluster(SHOOT, own.pem());
    let more = cluster(OTHER, other.pem())["data"].clone();
    let data = shared["data"].as_object_mut().unwrap();
    data.extend(more.as_object().unwrap().clone());
    let others = built.into_iter().filter(|own| own["kind"] != "ConfigMap");
    let mut built = Objects::default();
    built.extend(others.chain([shared]).collect::<Vec<_>>());
    drop(sandbox.command(container, &built).unwrap());
    let arrived = || is_known(OTHER, &other);
    wait::until("the other shoot", LIMIT, arrived).unwrap();
    assert!(!is_known(SHOOT, &other));
    assert_eq!(answered().unwrap(), "a pod");
}

/// Applies what two shoots put into one ConfigMap, and takes the first one's away again.
pub(crate) fn hold(api: &Api<'_>) {
    let path = "/api/v1/namespaces/garden/configmaps/konnectivity-clusters-1";
    let keys = || {
        let data = api.must("GET", path, None)["data"].clone();
        let keys = data.as_object().into_iter().flatten();
        keys.map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    for shoot in [SHOOT, OTHER] {
        api.apply_as(shoot, &[cluster(shoot, "its authority")]);
    }
    let of = |shoot: &str| [format!("{shoot}.crt"), format!("{shoot}.yaml")];
    assert_eq!(keys(), [of(SHOOT), of(OTHER)].concat());
    let mut nothing = cluster(SHOOT, "");
    nothing["data"] = json!({});
    api.apply_as(SHOOT, &[nothing]);
    assert_eq!(keys(), of(OTHER));
}
