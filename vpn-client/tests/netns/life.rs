//! From the first connection to the last.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::netns::Place;
use testkit::process::Signal;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;
use tunnel::keys::generate;

use crate::seed::Seed;
use crate::shoot::{LIMIT, POD, SEED, SERVER, SHOOT, Shoot};

fn pod(shoot: &Shoot) -> UdpSocket {
    let bind = || UdpSocket::bind((POD, 0)).unwrap();
    let socket = Place::In(&shoot.seed).run(bind).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// What a client waits for without a flow before it ends.
const SETTLE: Duration = Duration::from_secs(1);

/// Has a datagram go from the server to a pod, and its answer back. Returns whom the pod saw.
fn converse(seed: &mut Seed, pod: &UdpSocket) -> SocketAddr {
    seed.send(pod.local_addr().unwrap(), b"question");
    let mut buf = [0; 64];
    let (len, from) = pod.recv_from(&mut buf).unwrap();
    assert_eq!(&buf[..len], b"question");
    pod.send_to(b"answer", from).unwrap();
    // An answer to a connection may be repeated in between.
    while !seed.receive().ends_with(b"answer") {}
    from
}

#[test]
fn packets_leave_with_pod_address() {
    let shoot = Shoot::new("masquerade");
    for transport in ["tcp", "udp", "auto"] {
        let mut seed = Seed::start(&shoot, vec![shoot.client]);
        let endpoint = json!({ "address": "10.9.0.2", "transport": transport });
        let drain = json!({ "timeout": "0s" });
        let client = shoot.start(&shoot.config(json!({ "endpoint": endpoint, "drain": drain })));
        shoot.wait_ready(true);
        let from = converse(&mut seed, &pod(&shoot));
        assert_eq!(from.ip().to_string(), SHOOT, "{transport}");
        let told: Value = serde_json::from_str(&shoot.admin("/tunnels").text()).unwrap();
        let tunnel = &told["tunnels"][0];
        assert_eq!(tunnel["name"], SERVER);
        assert_eq!(tunnel["healthy"], true);
        if transport != "auto" {
            assert_eq!(tunnel["transport"], transport);
        }
        client.stop(LIMIT).unwrap();
    }
}

#[test]
fn client_is_ready_while_probes_return() {
    let shoot = Shoot::new("ready");
    let client = shoot.start(&shoot.config(json!({})));
    assert!(!shoot.is_ready());
    let answer = shoot.probe("/readyz").unwrap();
    assert!(
        answer.text().contains("no probe came back"),
        "{}",
        answer.text()
    );
    let seed = Seed::start(&shoot, vec![shoot.client]);
    shoot.wait_ready(true);
    drop(seed);
    shoot.wait_ready(false);
    assert_eq!(shoot.probe("/healthz").unwrap().status, 200);
    let _seed = Seed::start(&shoot, vec![shoot.client]);
    shoot.wait_ready(true);
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn servers_behind_two_load_balancers_fail_apart() {
    const OTHER: &str = "10.9.0.3";
    let shoot = Shoot::new("balancers");
    let cidr = format!("{OTHER}/24");
    shoot.seed.add_address("eth0", &cidr).unwrap();
    let (inner, key) = ([192, 168, 123, 2].into(), generate().unwrap());
    let _second = Seed::start_at(&shoot, OTHER, inner, &key, vec![shoot.client]);
    let mut config = shoot.config(json!({}));
    config["servers"].as_array_mut().unwrap().push(json!({
        "name": "vpn-seed-server-1", "publicKeys": [key.public().to_string()],
        "value": "outbound|1194||b", "addresses": ["192.168.123.2"],
        "endpoint": { "address": OTHER },
    }));
    // The first gateway's server does not have the second one's key.
    let up = |wanted: [bool; 2]| {
        let told: Value = serde_json::from_str(&shoot.admin("/tunnels").text()).unwrap();
        [0, 1].map(|index: usize| told["tunnels"][index]["healthy"] == true) == wanted
    };
    for transport in ["tcp", "udp"] {
        let first = Seed::start(&shoot, vec![shoot.client]);
        config["endpoint"]["transport"] = json!(transport);
        let client = shoot.start(&config);
        wait::until("both tunnels", LIMIT, || up([true, true])).unwrap();
        drop(first);
        wait::until("one tunnel", LIMIT, || up([false, true])).unwrap();
        assert!(shoot.is_ready());
        assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
    }
}

#[test]
fn gateway_that_moved_is_looked_up_again() {
    const MOVED: &str = "10.9.0.3";
    let shoot = Shoot::new("moved");
    let cidr = format!("{MOVED}/24");
    shoot.seed.add_address("eth0", &cidr).unwrap();
    let at = |address| format!("{address} gateway.example\n");
    let hosts = shoot.dir.write("hosts", at(SEED)).unwrap();
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    let mount = ["--mount", "--propagation", "private", "sh", "-c", script];
    let wrapper = [&["unshare"][..], &mount, &[hosts.to_str().unwrap()]].concat();
    let seed = Seed::start(&shoot, vec![shoot.client]);
    let endpoint = json!({ "address": "gateway.example", "transport": "udp" });
    let client = shoot.start_as(&wrapper, &shoot.config(json!({ "endpoint": endpoint })));
    shoot.wait_ready(true);
    // In place, since the file is mounted. A name of this file is good for an hour or more.
    shoot.dir.write("hosts", at(MOVED)).unwrap();
    drop(seed);
    shoot.wait_ready(false);
    let (inner, clients) = ([192, 168, 123, 1].into(), vec![shoot.client]);
    let _seed = Seed::start_at(&shoot, MOVED, inner, &shoot.server, clients);
    // An attempt that goes to the old address comes first, at most.
    let back = wait::until("the client to be back", 3 * LIMIT, || shoot.is_ready());
    back.unwrap();
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn refusal_is_counted_by_status() {
    let shoot = Shoot::new("refused");
    let listener = Place::In(&shoot.seed).bind("10.9.0.2:8132".parse().unwrap());
    let redirect = Behavior::EndsWriteFirst {
        greeting: b"HTTP/1.1 308 Permanent Redirect\r\nlocation: https://x/\r\n\r\n".to_vec(),
    };
    let _gateway = Upstream::serve(listener.unwrap(), redirect).unwrap();
    let _client = shoot.start(&shoot.config(json!({})));
    let name = "rhizome_vpn_client_connect_refusals_total";
    shoot.wait_metric(name, &[("server", SERVER), ("status", "308")], 1.0);
}

#[test]
fn client_without_flows_drains_and_exits() {
    let shoot = Shoot::new("leave");
    let seed = Seed::start(&shoot, vec![shoot.client]);
    let mut client = shoot.start(&shoot.config(json!({})));
    shoot.wait_ready(true);
    client.signal(Signal::TERM).unwrap();
    wait::until("the server to be told", LIMIT, || seed.client_drains()).unwrap();
    // Well before the drain's end, which is as long as LIMIT.
    let ended = client.wait_exit(LIMIT / 2).unwrap();
    assert_eq!(ended.code(), Some(0));
    assert!(!shoot.has_device());
}

#[test]
fn drain_waits_for_flow_of_server_that_is_silent() {
    let shoot = Shoot::new("silent");
    let mut seed = Seed::start(&shoot, vec![shoot.client]);
    let mut client = shoot.start(&shoot.config(json!({})));
    shoot.wait_ready(true);
    let pod = pod(&shoot);
    let listen = || TcpListener::bind((POD, 0)).unwrap();
    let listener = Place::In(&shoot.seed).run(listen).unwrap();
    seed.connect(listener.local_addr().unwrap());
    seed.receive();
    let flows = [("peer", SERVER)];
    shoot.wait_metric("rhizome_tunnel_peer_flows", &flows, 1.0);
    client.signal(Signal::TERM).unwrap();
    wait::until("the server to be told", LIMIT, || seed.client_drains()).unwrap();
    // The outage is longer than it takes to notice, and shorter than the server keeps connections.
    shoot.seed.ip(&["link", "set", "eth0", "down"]).unwrap();
    let healthy = |wanted| {
        let told: Value = serde_json::from_str(&shoot.admin("/tunnels").text()).unwrap();
        told["tunnels"][0]["healthy"] == wanted
    };
    wait::until("the outage to be noticed", LIMIT, || healthy(false)).unwrap();
    wait::pause(2 * SETTLE);
    assert!(client.exit_status().unwrap().is_none());
    shoot.seed.ip(&["link", "set", "eth0", "up"]).unwrap();
    wait::until("the tunnel to be back", LIMIT, || healthy(true)).unwrap();
    // The flow still gets through.
    converse(&mut seed, &pod);
    assert!(client.exit_status().unwrap().is_none());
    client.signal(Signal::TERM).unwrap();
    assert_eq!(client.wait_exit(LIMIT / 2).unwrap().code(), Some(0));
}

#[test]
fn second_signal_ends_wait_for_flow() {
    let shoot = Shoot::new("flow");
    let mut seed = Seed::start(&shoot, vec![shoot.client]);
    let mut client = shoot.start(&shoot.config(json!({})));
    shoot.wait_ready(true);
    let pod = pod(&shoot);
    converse(&mut seed, &pod);
    // A drain waits for connections, not for datagram flows, which have no visible end.
    let listen = || TcpListener::bind((POD, 0)).unwrap();
    let listener = Place::In(&shoot.seed).run(listen).unwrap();
    seed.connect(listener.local_addr().unwrap());
    seed.receive();
    let flows = [("peer", SERVER)];
    shoot.wait_metric("rhizome_tunnel_peer_flows", &flows, 1.0);
    client.signal(Signal::TERM).unwrap();
    wait::until("the server to be told", LIMIT, || seed.client_drains()).unwrap();
    assert!(!shoot.is_ready());
    // The flow still gets through.
    converse(&mut seed, &pod);
    assert!(client.exit_status().unwrap().is_none());
    client.signal(Signal::TERM).unwrap();
    assert_eq!(client.wait_exit(LIMIT / 2).unwrap().code(), Some(0));
    assert_eq!(shoot.nft(&["list", "tables"]), "");
}
