//! Certificates toward the server of routes: whose are taken, and how they are exchanged.

use std::net::SocketAddr;

use testkit::certs::{Authority, Identity};
use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;
use tls::{ClientAuth, ServerTls, ServerTlsParams};

use super::control::{CLIENT, Control, LISTENERS};
use crate::support::{Child, Client, Gateway, LIMIT};

const CONNECTS: &str = "rhizome_xds_connects_total";
const RELOADS: &str = "rhizome_tls_reloads_total";

/// The certificates of both sides, in one directory.
pub(super) struct Pki {
    dir: TempDir,
    pub(super) authority: Authority,
}

impl Pki {
    pub(super) fn new() -> Self {
        let dir = TempDir::new("xds-pki").unwrap();
        let authority = Authority::new("one").unwrap();
        let pki = Self { dir, authority };
        pki.trust(pki.authority.pem());
        pki.exchange("server", &pki.authority.server(&["127.0.0.1"]).unwrap());
        pki.exchange(
            "gateway",
            &pki.authority.client("gateway", &[], &[CLIENT]).unwrap(),
        );
        pki
    }

    /// Both sides trust these authorities from now on.
    fn trust(&self, authorities: &str) {
        self.dir.replace("ca.crt", authorities).unwrap();
    }

    fn exchange(&self, name: &str, identity: &Identity) {
        self.dir
            .replace(format!("{name}.key"), &identity.key_pem)
            .unwrap();
        self.dir
            .replace(format!("{name}.crt"), &identity.cert_pem)
            .unwrap();
    }

    pub(super) fn serve(&self, addr: SocketAddr) -> Control {
        let params = ServerTlsParams {
            cert: self.dir.join("server.crt"),
            key: self.dir.join("server.key"),
            client_ca: Some(self.dir.join("ca.crt")),
            client_auth: ClientAuth::Required,
            alpn: vec![xds::ALPN_H2.to_vec()],
        };
        Control::start_at(addr, Some(ServerTls::load(params).unwrap()))
    }

    pub(super) fn start(&self) -> Control {
        self.serve(([127, 0, 0, 1], 0).into())
    }

    pub(super) fn asking(&self, addr: SocketAddr) -> String {
        let dir = self.dir.path().display();
        format!(
            "{LISTENERS}routing: {{ xds: {{ server: \"https://{addr}\", node: gateway-0, \
             ca: {dir}/ca.crt, cert: {dir}/gateway.crt, key: {dir}/gateway.key }} }}\n"
        )
    }

    fn gateway(&self, addr: SocketAddr) -> Gateway {
        Gateway::start_with(TempDir::new("xds").unwrap(), None, &self.asking(addr))
    }
}

fn echo() -> Upstream {
    Upstream::start(Behavior::Echo).unwrap()
}

#[test]
fn gateway_with_other_name_is_refused() {
    let upstream = echo();
    let pki = Pki::new();
    let stranger = pki
        .authority
        .client("x", &[], &["spiffe://example.com/other"]);
    pki.exchange("gateway", &stranger.unwrap());
    let control = pki.start();
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    let gateway = pki.gateway(control.addr);
    wait::until("two refusals", LIMIT, || {
        gateway.value(CONNECTS, &[("result", "refused")]) >= 2.0
    })
    .unwrap();
    let denied = [("reason", "denied")];
    assert!(control.value("rhizome_xds_refused_streams_total", &denied) >= 2.0);
    assert_eq!(control.value("rhizome_xds_push_bytes_total", &[]), 0.0);
    assert_eq!(gateway.readiness(), 503);

    pki.exchange(
        "gateway",
        &pki.authority.client("gateway", &[], &[CLIENT]).unwrap(),
    );
    wait::until("the gateway to be ready", LIMIT, || {
        gateway.readiness() == 200
    })
    .unwrap();
    Client::established(gateway.addr("tls"), "a.test");
}

#[test]
fn server_without_its_name_is_not_asked() {
    let pki = Pki::new();
    pki.exchange(
        "server",
        &pki.authority.server(&["controller.test"]).unwrap(),
    );
    let control = pki.start();
    control.complete();
    let gateway = pki.gateway(control.addr);
    wait::until("two refusals", LIMIT, || {
        gateway.value(CONNECTS, &[("result", "tls")]) >= 2.0
    })
    .unwrap();
    assert_eq!(gateway.readiness(), 503);
    assert_eq!(control.server.clients(), []);

    // Nor one whose authority is not trusted.
    let other = Authority::new("other").unwrap();
    pki.exchange("server", &other.server(&["127.0.0.1"]).unwrap());
    let control = pki.start();
    control.complete();
    let gateway = pki.gateway(control.addr);
    wait::until("two refusals", LIMIT, || {
        gateway.value(CONNECTS, &[("result", "tls")]) >= 2.0
    })
    .unwrap();
    assert_eq!(gateway.readiness(), 503);
}

#[test]
fn pair_rotates_and_broken_one_is_refused() {
    let upstream = echo();
    let pki = Pki::new();
    let control = pki.start();
    let addr = control.addr;
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    let mut child = Child::start(&pki.asking(addr), "");
    wait::until("the gateway to be ready", LIMIT, || {
        child.readiness() == 200
    })
    .unwrap();
    let tls = child.addr("tls");
    let mut stream = Client::established(tls, "a.test");
    let mut load = || {
        for _ in 0..20 {
            stream.expect_echo(b"an event");
            Client::established(tls, "a.test");
        }
    };
    load();

    // A half-written pair is refused, and the last good one stays in use.
    let new = Authority::new("two").unwrap();
    pki.trust(&format!("{}{}", pki.authority.pem(), new.pem()));
    let next = new.client("gateway", &[], &[CLIENT]).unwrap();
    pki.dir.replace("gateway.key", "no key").unwrap();
    child.signal(Signal::HUP);
    wait::until("the broken pair to be refused", LIMIT, || {
        child.value(RELOADS, &[("purpose", "xds"), ("result", "refused")]) >= 1.0
    })
    .unwrap();
    drop(control);
    let control = pki.serve(addr);
    control.publish_one("a", &[upstream.addr()]);
    control.publish_one("b", &[upstream.addr()]);
    control.complete();
    wait_served(&child, "b");
    load();

    // Then both sides move to the new authority, and the old one goes.
    pki.exchange("gateway", &next);
    pki.exchange("server", &new.server(&["127.0.0.1"]).unwrap());
    child.signal(Signal::HUP);
    load();
    pki.trust(new.pem());
    child.signal(Signal::HUP);
    load();
    drop(control);
    let control = pki.serve(addr);
    control.publish_one("a", &[upstream.addr()]);
    control.publish_one("c", &[upstream.addr()]);
    control.complete();
    wait_served(&child, "c");
    load();
    let refused = [("reason", "handshake")];
    control.wait_clients(1);
    // At most the attempt that began before the signal was heard.
    assert!(control.value("rhizome_xds_refused_streams_total", &refused) <= 1.0);
    assert!(child.guard.exit_status().unwrap().is_none());
}

fn wait_served(child: &Child, name: &str) {
    wait::until(&format!("{name} to be served"), LIMIT, || {
        let mut client = Client::hello(child.addr("tls"), &format!("{name}.test"));
        let mut buf = [0; 1];
        let served = client.stream().peek(&mut buf).is_ok_and(|read| read == 1);
        served || {
            client.end();
            false
        }
    })
    .unwrap();
}
