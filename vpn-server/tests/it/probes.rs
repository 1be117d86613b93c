//! What probes and operators see.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tunnel::{LinkStatus, PeerStatus, Status, Transport};

use crate::support::{Rig, one_client};

#[test]
fn readiness_follows_client_health() {
    let rig = Rig::start(&json!({}));
    for (healthy, draining, status) in [
        (true, false, 200),
        (true, true, 503),
        (false, false, 503),
        (true, false, 200),
    ] {
        rig.set_status(one_client(healthy, draining));
        assert_eq!(rig.ready(), status, "{healthy} {draining}");
        assert_eq!(Rig::ask(rig.probes, "GET", "/healthz").status, 200);
    }
    rig.set_status(Arc::default());
    assert_eq!(rig.ready(), 503);
}

#[test]
fn tunnels_are_shown_on_admin_address_only() {
    let rig = Rig::start(&json!({}));
    let rtt = Some(Duration::from_millis(250));
    rig.set_status(Arc::new(Status {
        strangers: 0,
        draining: false,
        peers: vec![PeerStatus {
            name: "vpn-shoot-0".to_owned(),
            healthy: true,
            draining: false,
            unsettled: true,
            transport: Some(Transport::Udp),
            remote: Some("192.0.2.1:51820".to_owned()),
            rtt,
            loss: 0.5,
            handshake_age: Some(Duration::from_secs(60)),
            mtu: 1420,
            flows: 7,
            links: vec![LinkStatus {
                transport: Transport::Udp,
                remote: "192.0.2.1:51820".to_owned(),
                active: true,
                proven: true,
                rtt,
            }],
        }],
    }));
    let shown: Value = Rig::ask(rig.admin, "GET", "/tunnels").json().unwrap();
    let link = json!({
        "transport": "udp", "remote": "192.0.2.1:51820", "active": true, "proven": true,
        "rttSeconds": 0.25,
    });
    let peer = json!({
        "name": "vpn-shoot-0", "healthy": true, "draining": false, "unsettled": true,
        "transport": "udp", "remote": "192.0.2.1:51820", "rttSeconds": 0.25, "loss": 0.5,
        "handshakeAgeSeconds": 60.0, "mtu": 1420, "flows": 7, "links": [link],
    });
    assert_eq!(shown, json!({ "draining": false, "peers": [peer] }));
    assert_eq!(Rig::ask(rig.probes, "GET", "/tunnels").status, 404);
    let page = Rig::ask(rig.admin, "GET", "/").text();
    assert!(
        page.contains("vpn-shoot-0") && page.contains("unsettled"),
        "{page}"
    );
    // The other servers have the same clients.
    assert_eq!(rig.ready(), 200);
}

#[test]
fn keys_are_never_shown() {
    let rig = Rig::start(&json!({}));
    let private = std::fs::read_to_string(rig.dir.join("own")).unwrap();
    let public = std::fs::read_to_string(rig.dir.join("peers.yaml")).unwrap();
    let peers: Value = serde_json::from_str(&public).unwrap();
    let public = peers["peers"][0]["publicKeys"][0].as_str().unwrap();
    for path in [
        "/",
        "/config",
        "/tunnels",
        "/snapshot",
        "/status",
        "/metrics",
    ] {
        let text = Rig::ask(rig.admin, "GET", path).text();
        assert!(!text.contains(private.trim()), "{path}");
        assert!(!text.contains(public), "{path}");
    }
}
