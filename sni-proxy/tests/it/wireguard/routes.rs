//! By what a datagram finds its server, and that answers find their client.

use super::peers::{
    Peer, Server, base64, config, data, index, initiation, numbered, response, wait_flows,
    with_route,
};
use crate::support::{Child, Gateway};

#[test]
fn a_route_id_leads_to_its_server_and_back() {
    let (one, two) = (Server::start(), Server::start());
    let gateway = Gateway::start(&config(""), &numbered(&[&one, &two]));
    let client = Peer::new(&gateway);
    for (route, server) in [(1, &one), (2, &two)] {
        client.send(&with_route(initiation(7, None), route));
        let seen = server.receive();
        assert_eq!(seen.client, client.addr());
        assert_eq!(
            seen.datagram,
            initiation(7, None),
            "the reserved bytes are zero"
        );
        seen.answer(&response(index(route), 7));
        assert_eq!(client.receive(), response(index(route), 7));
        client.send(&with_route(data(index(route), 1), route));
        let seen = server.receive();
        assert_eq!(seen.datagram, data(index(route), 1));
        seen.answer(&data(7, 2));
        assert_eq!(client.receive(), data(7, 2));
    }
    wait_flows(&gateway, 2);
}

#[test]
fn index_selects_server_without_handshake() {
    let (one, two) = (Server::start(), Server::start());
    let gateway = Gateway::start(&config(""), &numbered(&[&one, &two]));
    let client = Peer::new(&gateway);
    client.exchange(&two, 2, 1);
    client.exchange(&one, 1, 2);
    client.exchange(&two, 2, 3);
    // A client that moved is another flow, and its server is told.
    let moved = Peer::new(&gateway);
    moved.exchange(&one, 1, 4);
    client.exchange(&one, 1, 5);
    wait_flows(&gateway, 3);
}

#[test]
fn handshake_without_route_id_matches_key() {
    let (one, two) = (Server::start(), Server::start());
    let keys = [[1; 32], [2; 32], [3; 32]];
    let [first, old, new] = keys.each_ref().map(base64);
    let routes = format!(
        r#"
clusters:
- {{ name: a, endpoints: [{{ address: "{}" }}] }}
- {{ name: b, endpoints: [{{ address: "{}" }}] }}
routes:
- {{ wireguard: {{ publicKeys: ["{first}"], routeId: 1 }}, cluster: a }}
- {{ wireguard: {{ publicKeys: ["{old}", "{new}"] }}, cluster: b }}
"#,
        one.addr(),
        two.addr()
    );
    let gateway = Gateway::start(&config(""), &routes);
    gateway.wait_value("rhizome_wireguard_keys", &[], 3.0);
    let client = Peer::new(&gateway);
    client.send(&initiation(7, Some(&keys[0])));
    let seen = one.receive();
    assert_eq!(seen.client, client.addr());
    assert_eq!(seen.datagram, initiation(7, Some(&keys[0])));
    seen.answer(&response(index(1), 7));
    assert_eq!(client.receive(), response(index(1), 7));
    client.exchange(&one, 1, 1);

    // Of a route without a number, whichever index its server chooses; two keys are one server.
    for (key, chosen) in [(&keys[1], 0x1234_5678), (&keys[2], index(1))] {
        client.send(&initiation(8, Some(key)));
        let seen = two.receive();
        seen.answer(&response(chosen, 8));
        assert_eq!(client.receive(), response(chosen, 8));
        client.send(&data(chosen, 2));
        assert_eq!(two.receive().datagram, data(chosen, 2));
    }
    wait_flows(&gateway, 2);
    let scans = "rhizome_wireguard_scans_total";
    gateway.wait_value(scans, &[("result", "found")], 2.0);
    // A client that is known is not searched for again.
    client.send(&initiation(9, Some(&keys[0])));
    assert_eq!(one.receive().datagram, initiation(9, Some(&keys[0])));
    assert_eq!(gateway.value(scans, &[]), 2.0);
}

#[test]
fn a_name_is_resolved() {
    let server = Server::start();
    let routes = format!(
        "clusters:\n- {{ name: c, endpoints: [{{ address: \"localhost:{}\" }}] }}\n\
         routes:\n- {{ wireguard: {{ routeId: 1 }}, cluster: c, allowSources: [\"127.0.0.0/8\"] }}\n",
        server.addr().port()
    );
    let gateway = Gateway::start(&config(""), &routes);
    let client = Peer::new(&gateway);
    // `localhost` may be ::1 as well, where no server listens: a handshake is answered in the end.
    let text = routes.replace("name: c,", "name: c, connectTimeout: 10ms,");
    gateway.dir.replace("routes.yaml", text).unwrap();
    gateway.wait_generation(2);
    server
        .socket()
        .set_read_timeout(Some(std::time::Duration::from_millis(100)))
        .unwrap();
    testkit::wait::until("the server to be reached", crate::support::LIMIT, || {
        client.send(&with_route(initiation(7, None), 1));
        server.try_receive().is_some()
    })
    .unwrap();
}

#[test]
fn a_flow_is_told_like_a_connection() {
    let server = Server::start();
    let child = Child::start(
        &(config("drain: { delay: 0s, timeout: 0s }\naccessLog: { format: json }\n")
            + "limits: { connections: 1000 }\n"),
        &numbered(&[&server]),
    );
    let client = Peer::at("127.0.0.1", child.addr("wg"));
    client.exchange(&server, 1, 1);
    let open = child.admin_json("/connections");
    assert_eq!(open["open"], 1);
    let flow = &open["connections"][0];
    assert_eq!(flow["listener"], "wg");
    assert_eq!(flow["client"], client.addr().to_string());
    assert_eq!(flow["cluster"], "c1");
    assert_eq!(flow["endpoint"], server.addr().to_string());
    assert_eq!(
        (&flow["rxBytes"], &flow["txBytes"]),
        (&32.into(), &32.into())
    );
    let page = crate::support::Probe::ask(child.admin, "GET", "/").text();
    assert!(page.contains("wireguard"), "{page}");

    let mut child = child;
    child.signal(testkit::process::Signal::TERM);
    let line = child.access_line(client.addr());
    assert_eq!(line["protocol"], "wireguard");
    assert_eq!(line["reason"], "drained");
    assert_eq!(
        (&line["rx_bytes"], &line["tx_bytes"]),
        (&32.into(), &32.into())
    );
    assert!(child.wait_exit().success());
}
