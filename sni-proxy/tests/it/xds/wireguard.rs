//! Routes of WireGuard servers that a control plane sends.

use route::{RouteMatch, RouteSpec};
use testkit::tempdir::TempDir;

use super::control::{Control, cluster, wait_ready};
use crate::support::Gateway;
use crate::wireguard::peers::{Peer, Server, initiation, wait_dropped, wait_flows};

fn route(public_key: Option<[u8; 32]>, route_id: Option<u32>, cluster: &str) -> RouteSpec {
    let public_keys = public_key.into_iter().collect();
    let matches = RouteMatch::WireGuard {
        public_keys,
        route_id,
    };
    RouteSpec::new(matches, cluster)
}

#[test]
fn servers_come_and_go_with_their_resources() {
    let (one, two) = (Server::start(), Server::start());
    let control = Control::start();
    control.publish(
        "shoot--a",
        &[cluster("a", &[one.addr()])],
        &[route(None, Some(1), "a")],
    );
    control.complete();
    let listeners = "listeners:\n- { name: wg, address: \"127.0.0.1:0\", protocol: wireguard }\n";
    let routing = format!(
        "routing: {{ xds: {{ server: \"http://{}\", node: gateway-0 }} }}\n",
        control.addr
    );
    let dir = TempDir::new("xds").unwrap();
    let gateway = Gateway::start_with(dir, None, &(listeners.to_owned() + &routing));
    wait_ready(&gateway);
    let client = Peer::new(&gateway);
    client.exchange(&one, 1, 1);

    let key = [9; 32];
    control.publish(
        "shoot--b",
        &[cluster("b", &[two.addr()])],
        &[route(Some(key), Some(2), "b")],
    );
    gateway.wait_value("rhizome_wireguard_keys", &[], 1.0);
    client.send(&initiation(7, Some(&key)));
    assert_eq!(two.receive().datagram, initiation(7, Some(&key)));
    client.exchange(&one, 1, 2);
    wait_flows(&gateway, 2);

    control.withdraw("shoot--a");
    wait_flows(&gateway, 1);
    client.send(&crate::wireguard::peers::data(1 << 12, 3));
    wait_dropped(&gateway, "unknown_route", 1);
    client.exchange(&two, 2, 4);
}
