//! How long, how large and how many: heads, bodies, requests and connections on either side.

use serde_json::json;

use super::frames::{Frames, HEADERS, block, head};
use super::recorder::Recorder;
use super::*;

use testkit::wait;

/// A client of HTTP/1.1 that writes bytes.
async fn raw(world: &World) -> tokio_rustls::client::TlsStream<TcpStream> {
    let pem = world.secrets.serving.pem();
    let config = certs::mutual_client_config(pem, None, &["http/1.1"]).unwrap();
    let stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let connecting = TlsConnector::from(config).connect(name, stream);
    timeout(LIMIT, connecting).await.unwrap().unwrap()
}

fn requests(world: &World, protocol: &str, code: &str) -> f64 {
    let labels = [("cluster", "api"), ("protocol", protocol), ("code", code)];
    world.gateway.value("rhizome_requests_total", &labels)
}

async fn text_of(response: Response<Incoming>) -> Value {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn kept_connection_outlives_the_limit_of_heads() {
    let world = World::configured("limits: { preambleTimeout: 1s }\n", |_| {});
    let mut client = world.client(None, "http/1.1").await;
    for _ in 0..2 {
        assert_eq!(client.get(&[]).await.0, StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(2500)).await;
    }
    assert_eq!(client.get(&[]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn head_that_stops_is_answered_408() {
    let world = World::configured("limits: { preambleTimeout: 1s }\n", |_| {});
    let mut client = raw(&world).await;
    client.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    let mut answer = String::new();
    let read = timeout(LIMIT, client.read_to_string(&mut answer)).await;
    read.unwrap().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
        "{head}"
    );
    assert!(head.contains("strict-transport-security: max-age=31536000"));
    let status: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&status["kind"], &status["code"]),
        (&json!("Status"), &json!(408))
    );
    world.gateway.wait_closed("tls", "preamble_timeout", 1);
    assert_eq!(requests(&world, "http/1.1", "408"), 1.0);
}

/// By HTTP/1.1, as one of HTTP/2 is; one that has had a request may be idle.
#[tokio::test]
async fn client_that_never_begins_is_closed() {
    let world = World::configured("limits: { preambleTimeout: 1s }\n", |_| {});
    let mut client = raw(&world).await;
    let mut answer = Vec::new();
    let read = timeout(LIMIT, client.read_to_end(&mut answer)).await;
    read.expect("an end").unwrap();
    assert!(answer.is_empty(), "{answer:?}");
    world.gateway.wait_closed("tls", "preamble_timeout", 1);
}

/// As many as groups with which a user is impersonated.
#[tokio::test]
async fn head_of_many_lines_is_served() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let groups: Vec<String> = (0..200).map(|number| format!("group-{number}")).collect();
    let lines: Vec<_> = { groups.iter() }
        .map(|group| ("impersonate-group", &**group))
        .collect();
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(None, protocol).await;
        let request = client.request(&lines);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{protocol}");
        let seen = recorder.take();
        let [own] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(own.headers.len(), lines.len(), "{protocol}");
    }
}

#[tokio::test]
async fn head_of_http2_that_stops_ends_the_connection() {
    let world = World::configured("limits: { preambleTimeout: 1s }\n", |_| {});
    // A connection that waits between heads goes on.
    let mut idle = Frames::open(&world, None).await;
    assert!(idle.serves().await);
    let mut frames = Frames::open(&world, None).await;
    let stream = frames.stream_id();
    let began = block(&head("GET", "/a"));
    frames.frame(HEADERS, 0, stream, &began).await;
    // Answers nothing, which would come between the parts of a head.
    while frames.next().await.is_some() {}
    world.gateway.wait_closed("tls", "preamble_timeout", 1);
    assert!(idle.serves().await);
}

#[tokio::test]
async fn head_that_is_too_large_is_answered_431() {
    let world = World::new();
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(None, protocol).await;
        let value = "a".repeat(10_000);
        let names: Vec<String> = (0..7).map(|number| format!("x-{number}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (&**name, &*value)).collect();
        let request = client.request(&headers);
        let response = client.send(request).await.unwrap();
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        assert_eq!(response.status(), status, "{protocol}");
        assert!(response.headers().contains_key("date"), "{protocol}");
        assert_eq!(text_of(response).await["kind"], "Status", "{protocol}");
        world
            .wait_value(
                "rhizome_requests_total",
                &[("cluster", "api"), ("protocol", protocol), ("code", "431")],
                1.0,
            )
            .await;
    }
}

#[tokio::test]
async fn idle_connection_ends_after_its_limit() {
    let world = World::configured("limits: { idleTimeout: 1s }\n", |_| {});
    for (protocol, ended) in [("h2", 1_u8), ("http/1.1", 2)] {
        let mut client = world.client(None, protocol).await;
        assert_eq!(client.get(&[]).await.0, StatusCode::OK);
        let mut busy = world.client(None, protocol).await;
        let request = busy.request_of("/never", &[]);
        let never = tokio::spawn(async move { busy.send(request).await.map(drop) });
        let labels = [("listener", "tls"), ("reason", "idle_timeout")];
        let closed = "rhizome_connections_closed_total";
        world.wait_value(closed, &labels, f64::from(ended)).await;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert!(!never.is_finished(), "it has a request");
        never.abort();
    }
}

#[tokio::test]
async fn request_without_answer_is_answered_504() {
    let world = World::with(|dir| add_to_terminate(dir, "streamTimeout: 1s"));
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(None, protocol).await;
        let request = client.request_of("/never", &[]);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT, "{protocol}");
        assert_eq!(text_of(response).await["reason"], "Timeout", "{protocol}");
        assert_eq!(client.get(&[]).await.0, StatusCode::OK, "{protocol}");
    }
}

#[tokio::test]
async fn stalled_reader_is_cut_and_stalls_no_other() {
    let world = World::with(|dir| add_to_terminate(dir, "streamTimeout: 2s"));
    let active = [("cluster", "api")];
    let name = "rhizome_requests_active";
    for protocol in ["http/1.1", "h2"] {
        let mut client = world.client(None, protocol).await;
        let request = client.request_of("/large", &[]);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        // Not read; meanwhile others of the upstream's connection, and of its own, go on.
        for _ in 0..10 {
            let mut other = world.client(None, protocol).await;
            assert_eq!(other.get(&[]).await.0, StatusCode::OK);
        }
        if protocol == "h2" {
            assert_eq!(client.get(&[]).await.0, StatusCode::OK);
            let sent = world
                .gateway
                .value("rhizome_relay_bytes_total", &[("direction", "tx")]);
            assert_eq!(world.gateway.value(name, &active), 1.0);
            assert!(sent < f64::from(32 << 20), "{sent} bytes");
        }
        world.wait_value(name, &active, 0.0).await;
        assert!(response.into_body().collect().await.is_err(), "{protocol}");
    }
    world.gateway.wait_closed("tls", "max_age", 1);
}

#[tokio::test]
async fn connections_to_an_endpoint_are_bounded() {
    let world = World::with(|dir| {
        let routes = std::fs::read_to_string(dir.join("routes.yaml")).unwrap();
        let name = "serverName: kubernetes.test\n";
        let bounded = routes.replace(name, &format!("{name}      maxConnections: 1\n"));
        dir.write("routes.yaml", bounded).unwrap();
    });
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut client = world.client(None, "http/1.1").await;
        let request = client.request(&upgrade);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        open.push(hyper::upgrade::on(response).await.unwrap());
    }
    let mut client = world.client(None, "h2").await;
    let (status, answer) = client.get(&[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.0["reason"], "ServiceUnavailable");
    // Those with the identity are counted apart.
    let identity = world.secrets.clients.client("jane", &[], &[]).unwrap();
    let mut known = world.client(Some(&identity), "h2").await;
    assert_eq!(known.get(&[]).await.0, StatusCode::OK);
    open.pop();
    let freed = async {
        while client.get(&[]).await.0 != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, freed).await.unwrap();
}

#[tokio::test]
async fn expired_secrets_lead_to_passthrough() {
    let world = World::with(|dir| {
        let serving = Authority::new("serving").unwrap();
        serving.write(&dir.join("serving.crt")).unwrap();
        let own = serving.ending_server(NAME, Duration::from_secs(6)).unwrap();
        own.write(dir.path(), "own").unwrap();
    });
    let serving = std::fs::read_to_string(world.gateway.dir.join("serving.crt")).unwrap();
    let gateway = &world.gateway;
    let connect = |authority: String| async move {
        let stream = TcpStream::connect(gateway.addr("tls")).await.unwrap();
        Client::over(stream, &authority, None, "h2").await
    };
    let before = connect(serving).await;
    assert!(before.is_some(), "the gateway's certificate");
    let fallback = [("cluster", "api")];
    let passed = wait::until("passthrough", LIMIT, || {
        world.gateway.value("rhizome_terminate_fallback", &fallback) == 1.0
    });
    passed.unwrap();
    let after = connect(world.cluster.pem().to_owned()).await;
    let mut after = after.expect("the server's own certificate");
    assert_eq!(after.get(&[]).await.0, StatusCode::OK);
}

/// API servers verify it for each request.
#[tokio::test]
async fn ended_identity_is_shown_for_no_request() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let dir = world.gateway.dir.path();
    let after = Duration::from_secs(5);
    let front = world.secrets.front.ending_client("front", after).unwrap();
    front.write(dir, "front").unwrap();
    // Another route, which has read it.
    let anchor = "terminate: &terminate\n";
    let changed = format!("{anchor}    hsts: 1s\n");
    world.change(&world.routes().replace(anchor, &changed));
    let jane = world.secrets.clients.client("jane", &[], &[]).unwrap();
    let mut known = world.client(Some(&jane), "h2").await;
    let mut anonymous = world.client(None, "h2").await;
    for client in [&mut known, &mut anonymous] {
        let request = client.request(&[]);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert!(recorder.take()[0].mutual);
    let fallback = "rhizome_terminate_fallback";
    world.wait_value(fallback, &[("cluster", "api")], 1.0).await;
    let request = known.request(&[]);
    let response = known.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text_of(response).await["kind"], "Status");
    assert!(recorder.take().is_empty());
    let request = anonymous.request(&[]);
    let response = anonymous.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    // Both connect anew, and find the server itself.
    let labels = [("listener", "tls"), ("reason", "closed")];
    let closed = "rhizome_connections_closed_total";
    world.wait_value(closed, &labels, 2.0).await;
    let stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
    let servers = std::fs::read_to_string(dir.join("cluster.crt")).unwrap();
    let passed = Client::over(stream, &servers, None, "h2").await;
    passed.expect("the server's own certificate");
}
