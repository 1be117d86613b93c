//! What terminating routes count, and that it goes with them.

use super::*;

const CLUSTER: (&str, &str) = ("cluster", "api");

#[tokio::test]
async fn requests_are_counted_by_protocol_and_status() {
    let world = World::new();
    for (protocol, count) in [("h2", 3), ("http/1.1", 2)] {
        let mut client = world.client(None, protocol).await;
        for _ in 0..count {
            client.get(&[]).await;
        }
        let request = client.request_of("/api/v1/pods?watch=1", &[]);
        client.send(request).await.unwrap().collect().await.unwrap();
        let labels = [CLUSTER, ("protocol", protocol), ("code", "200")];
        let counted = f64::from(count) + 1.0;
        world
            .wait_value("rhizome_requests_total", &labels, counted)
            .await;
    }
    let mut client = world.client(None, "h2").await;
    let request = Request::get("https://other.test/").body(Full::default());
    let misdirected = client.send(request.unwrap()).await.unwrap();
    assert_eq!(misdirected.status(), StatusCode::MISDIRECTED_REQUEST);
    let labels = [CLUSTER, ("protocol", "h2"), ("code", "421")];
    world
        .wait_value("rhizome_requests_total", &labels, 1.0)
        .await;
    // Without the two watches.
    let seconds = "rhizome_request_seconds_count";
    world.wait_value(seconds, &[CLUSTER], 6.0).await;
    let all = [CLUSTER, ("le", "+Inf")];
    assert_eq!(
        world.gateway.value("rhizome_request_seconds_bucket", &all),
        6.0
    );
    world
        .wait_value("rhizome_requests_active", &[CLUSTER], 0.0)
        .await;
}

#[tokio::test]
async fn upgraded_request_is_active_until_it_ends() {
    let world = World::new();
    let identity = world.secrets.clients.client("jane", &[], &[]).unwrap();
    let mut client = world.client(Some(&identity), "http/1.1").await;
    let request = client.request(&[("connection", "upgrade"), ("upgrade", "websocket")]);
    let response = client.send(request).await.unwrap();
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    let pool = [CLUSTER, ("pool", "identity")];
    let gauges = [
        ("rhizome_requests_active", &[CLUSTER][..]),
        ("rhizome_upstream_connections_active", &pool),
        ("rhizome_upstream_streams_active", &pool),
    ];
    for (name, labels) in gauges {
        world.wait_value(name, labels, 1.0).await;
    }
    drop(upgraded);
    for (name, labels) in gauges {
        world.wait_value(name, labels, 0.0).await;
    }
    let labels = [CLUSTER, ("protocol", "http/1.1"), ("code", "101")];
    assert_eq!(world.gateway.value("rhizome_requests_total", &labels), 1.0);
    let seconds = world
        .gateway
        .value("rhizome_request_seconds_count", &[CLUSTER]);
    assert_eq!(seconds, 0.0);
    // A pooled connection stays open without a stream.
    world.client(None, "h2").await.get(&[]).await;
    let pool = [CLUSTER, ("pool", "anonymous")];
    let name = "rhizome_upstream_streams_active";
    world.wait_value(name, &pool, 0.0).await;
    let name = "rhizome_upstream_connections_active";
    assert_eq!(world.gateway.value(name, &pool), 1.0);
}

#[tokio::test]
async fn handshakes_are_counted_by_outcome() {
    let world = World::new();
    let connect = async |authority: &str, protocol: &str| {
        let stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
        Client::over(stream, authority, None, protocol)
            .await
            .map(drop)
    };
    let own = world.secrets.serving.pem();
    assert!(connect(own, "h2").await.is_some());
    assert!(connect(world.cluster.pem(), "h2").await.is_none());
    assert!(connect(own, "spdy/9").await.is_none());
    let others = Authority::new("clients").unwrap();
    let stranger = others.client("jane", &[], &[]).unwrap();
    drop(world.connect(Some(&stranger), "h2").await);
    let mut hello = testkit::client_hello::ClientHello::for_name(NAME).encode();
    hello.extend_from_slice(&[0; 64]);
    let mut stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
    stream.write_all(&hello).await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(LIMIT, stream.read_to_end(&mut rest)).await.unwrap();
    for (outcome, count) in [("full", 1.0), ("alert", 1.0), ("certificate", 1.0)] {
        let labels = [("listener", "tls"), ("outcome", outcome)];
        world
            .wait_value("rhizome_tls_handshakes_total", &labels, count)
            .await;
    }
    let all = [("listener", "tls")];
    world
        .wait_value("rhizome_tls_handshakes_total", &all, 5.0)
        .await;
}

#[tokio::test]
async fn resumed_session_is_counted() {
    let world = World::new();
    let pem = world.secrets.serving.pem();
    let config = certs::mutual_client_config(pem, None, &["http/1.1"]).unwrap();
    for _ in 0..2 {
        let stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let connecting = TlsConnector::from(Arc::clone(&config)).connect(name, stream);
        let mut stream = connecting.await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nhost: {NAME}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = timeout(LIMIT, stream.read_to_string(&mut answer)).await;
        read.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    for outcome in ["full", "resumed"] {
        let labels = [("listener", "tls"), ("outcome", outcome)];
        world
            .wait_value("rhizome_tls_handshakes_total", &labels, 1.0)
            .await;
    }
}

#[tokio::test]
async fn series_go_with_their_cluster() {
    let world = World::new();
    world.client(None, "h2").await.get(&[]).await;
    let names = [
        "rhizome_requests_total",
        "rhizome_requests_active",
        "rhizome_request_seconds_count",
        "rhizome_terminate_fallback",
        "rhizome_tls_certificate_not_after_seconds",
        "rhizome_upstream_connections_active",
        "rhizome_upstream_streams_active",
    ];
    let has = |world: &World, name| world.gateway.metrics().value(name, &[CLUSTER]).is_some();
    for name in names {
        assert!(has(&world, name), "{name}");
    }
    world.change("clusters: []\nroutes: []\n");
    for name in names {
        assert!(!has(&world, name), "{name}");
    }
}
