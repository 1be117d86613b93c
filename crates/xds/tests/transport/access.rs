//! Who may have what.

use std::time::Duration;

use testkit::certs::Authority;
use tokio::net::TcpSocket;

use crate::raw::{DeltaRequest, Node, Raw};
use crate::support::{
    Client, PATIENCE, Pki, Serving, client_params, rewrite, server_params, shoot, shoots,
};

const REFUSED: &str = "rhizome_xds_refused_streams_total";

#[tokio::test]
async fn a_certificate_of_another_name_gets_nothing() {
    let pki = Pki::new();
    let serving = Serving::start(server_params(Some(pki.server_tls()))).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    let stranger = pki.authority.client("x", &[], &["spiffe://example.com/x"]);
    let files = stranger.unwrap().write(pki.dir.path(), "stranger").unwrap();
    let client = Client::start(client_params(serving.addr, Some(pki.client_tls_of(&files))));
    serving
        .until(&format!(r#"{REFUSED}{{reason="denied"}}"#), 2)
        .await;
    assert_eq!(client.tables(), 0);
    assert!(client.count(r#"rhizome_xds_connects_total{result="refused"}"#) >= 1);
    assert_eq!(client.count("rhizome_xds_connected"), 0);
    assert_eq!(serving.server.clients(), []);
    assert_eq!(serving.pushed(), 0);
}

#[tokio::test]
async fn client_cannot_read_another_gateway() {
    let pki = Pki::new();
    let serving = Serving::start(server_params(Some(pki.server_tls()))).await;
    let other = serving.server.gateway("other").unwrap();
    other.update(shoots(1), vec![]);
    other.complete();
    let mut params = client_params(serving.addr, Some(pki.client_tls()));
    params.cluster = "other".to_owned();
    let client = Client::start(params);
    serving
        .until(&format!(r#"{REFUSED}{{reason="denied"}}"#), 1)
        .await;

    let mut params = client_params(serving.addr, Some(pki.client_tls()));
    params.cluster = "unknown".to_owned();
    let lost = Client::start(params);
    serving
        .until(&format!(r#"{REFUSED}{{reason="unknown_gateway"}}"#), 1)
        .await;
    assert_eq!((client.tables(), lost.tables()), (0, 0));
    assert!(serving.server.gateway("unknown").is_none());
}

#[tokio::test]
async fn without_a_certificate_there_is_no_connection() {
    let pki = Pki::new();
    let serving = Serving::start(server_params(Some(pki.server_tls()))).await;
    let plain = Client::start(client_params(serving.addr, None));
    let stranger = Authority::new("stranger").unwrap();
    let files = stranger.client("gateway", &[], &[crate::support::CLIENT_URI]);
    let files = files.unwrap().write(pki.dir.path(), "stranger").unwrap();
    let forged = Client::start(client_params(serving.addr, Some(pki.client_tls_of(&files))));
    serving
        .until(&format!(r#"{REFUSED}{{reason="handshake"}}"#), 4)
        .await;
    assert_eq!((plain.tables(), forged.tables()), (0, 0));
}

/// Certificates are exchanged under a server and a client that run: the stream that there is
/// stays, and new ones are with the new certificates.
#[tokio::test]
async fn certificates_rotate_without_a_restart() {
    let pki = Pki::new();
    let serving = Serving::start(server_params(Some(pki.server_tls()))).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    let client = Client::start(client_params(serving.addr, Some(pki.client_tls())));
    client.until_routes(1).await;

    let new = Authority::new("two").unwrap();
    let both = format!("{}{}", pki.authority.pem(), new.pem());
    rewrite(&pki.dir.join("ca.crt"), &both);
    let files = new
        .client("new", &[], &[crate::support::CLIENT_URI])
        .unwrap();
    let files = files.write(pki.dir.path(), "new").unwrap();
    let tls = pki.client_tls_of(&files);
    let second = Client::start(client_params(serving.addr, Some(tls)));
    second.until_routes(1).await;

    // The server's own certificate, and then the old authority goes.
    let identity = new.server(&["127.0.0.1"]).unwrap();
    rewrite(&pki.dir.join("server.key"), &identity.key_pem);
    rewrite(&pki.dir.join("server.crt"), &identity.cert_pem);
    rewrite(&pki.dir.join("ca.crt"), new.pem());
    let tls = pki.client_tls_of(&files);
    let third = Client::start(client_params(serving.addr, Some(tls)));
    third.until_routes(1).await;
    let old = Client::start(client_params(serving.addr, Some(pki.client_tls())));
    let handshake = format!(r#"{REFUSED}{{reason="handshake"}}"#);
    let before = serving.count(&handshake);
    serving.until(&handshake, before + 1).await;
    assert_eq!(old.tables(), 0);

    let reloads = r#"rhizome_tls_reloads_total{purpose="xds",result="taken"}"#;
    assert!(serving.count(reloads) >= 2);

    // Existing streams are not affected.
    serving.set(shoot(1));
    for client in [&client, &second, &third] {
        client.until_routes(2).await;
        assert_eq!(
            client.count(r#"rhizome_xds_connects_total{result="ok"}"#),
            1
        );
    }
}

#[tokio::test]
async fn silent_connections_do_not_lock_clients_out() {
    let pki = Pki::new();
    let mut params = server_params(Some(pki.server_tls()));
    params.limits.connections = 8;
    params.limits.handshake = Duration::from_secs(60);
    let serving = Serving::start(params).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    let mut silent = Vec::new();
    for _ in 0..8 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
        silent.push(socket.connect(serving.addr).await.unwrap());
    }
    // Two may be in handshakes, of one source one.
    serving
        .until(&format!(r#"{REFUSED}{{reason="limit"}}"#), 7)
        .await;
    let client = Client::start(client_params(serving.addr, Some(pki.client_tls())));
    client.until_routes(1).await;
    drop(silent);
}

#[tokio::test]
async fn streams_are_bounded() {
    let mut params = server_params(None);
    params.limits.streams = 1;
    let serving = Serving::start(params).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    let first = Client::start(client_params(serving.addr, None));
    first.until_routes(1).await;
    let second = Client::start(client_params(serving.addr, None));
    serving
        .until(&format!(r#"{REFUSED}{{reason="limit"}}"#), 2)
        .await;
    assert_eq!(second.tables(), 0);
    first.stop().await;
    second.until_routes(1).await;
}

#[tokio::test]
async fn no_gateways_clients_lock_out_those_of_another() {
    let pki = Pki::new();
    let mut params = server_params(Some(pki.server_tls()));
    params.limits.streams = 2;
    let serving = Serving::start(params).await;
    let other = serving.server.gateway("other").unwrap();
    for gateway in [&serving.gateway, &other] {
        gateway.update(shoots(1), vec![]);
        gateway.complete();
    }
    let first = Client::start(client_params(serving.addr, Some(pki.client_tls())));
    first.until_routes(1).await;
    let second = Client::start(client_params(serving.addr, Some(pki.client_tls())));
    serving
        .until(&format!(r#"{REFUSED}{{reason="limit"}}"#), 2)
        .await;
    assert_eq!(second.tables(), 0);
    let files = pki.authority.client("o", &[], &["spiffe://other"]);
    let files = files.unwrap().write(pki.dir.path(), "other").unwrap();
    let mut params = client_params(serving.addr, Some(pki.client_tls_of(&files)));
    params.cluster = "other".to_owned();
    Client::start(params).until_routes(1).await;
}

#[tokio::test]
async fn connection_closes_without_admitted_stream() {
    let mut params = server_params(None);
    params.limits.handshake = Duration::from_millis(100);
    let serving = Serving::start(params).await;
    let mut raw = Raw::connect(serving.addr).await;
    let mut stream = raw.delta().await;
    assert_eq!(stream.status().await, "4", "no first request");
    tokio::time::timeout(PATIENCE, raw.closed()).await.unwrap();

    // At once, as the client belongs to no gateway.
    let mut params = server_params(None);
    params.limits.handshake = 100 * PATIENCE;
    let serving = Serving::start(params).await;
    let mut raw = Raw::connect(serving.addr).await;
    let mut stream = raw.delta().await;
    let mut request = DeltaRequest::of(xds::ResourceType::Cluster);
    request.node = Some(Node {
        id: "raw".into(),
        cluster: "nowhere".into(),
        client_features: vec![],
    });
    stream.send(&request);
    assert_eq!(stream.status().await, "5");
    tokio::time::timeout(PATIENCE, raw.closed()).await.unwrap();
}

#[tokio::test]
async fn connected_clients_are_listed() {
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    let client = Client::start(client_params(serving.addr, None));
    client.until_routes(1).await;
    let acks = r#"rhizome_xds_acks_total{gateway="default",type="listener"}"#;
    serving.until(acks, 1).await;
    let json = serde_json::to_value(serving.server.clients()).unwrap();
    assert_eq!(json[0]["node"], "gateway-0");
    assert_eq!(json[0]["audience"], "parts");
    let listener = &json[0]["types"]["listener"];
    assert_eq!(listener["acked"], listener["version"]);
    assert_eq!(
        serving.count(r#"rhizome_xds_clients{gateway="default"}"#),
        1
    );
    client.stop().await;
    crate::support::until("the client to be gone", || {
        serving.server.clients().is_empty()
    })
    .await;
    assert_eq!(
        serving.count(r#"rhizome_xds_clients{gateway="default"}"#),
        0
    );
}

#[tokio::test]
async fn a_stop_ends_streams_at_once() {
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    let client = Client::start(client_params(serving.addr, None));
    client.until_routes(1).await;
    let stopped = tokio::time::timeout(Duration::from_secs(1), serving.stop()).await;
    assert!(stopped.is_ok(), "it takes longer than a second");
    let gone = async {
        while client.count("rhizome_xds_connected") > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(
        client
            .seen
            .lock()
            .unwrap()
            .table
            .as_ref()
            .unwrap()
            .spec
            .routes
            .len(),
        1
    );
}
