//! What operators see of a terminated connection: `/connections`, the access log and `trace`.

use serde_json::json;

use super::*;

use crate::support::Child;

#[tokio::test]
async fn open_requests_are_listed_without_headers() {
    let world = World::new();
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(None, protocol).await;
        let secret = [("authorization", "Bearer secret")];
        let request = client.request_of("/never?token=secret", &secret);
        let never = tokio::spawn(async move { client.send(request).await.map(drop) });
        let active = [("cluster", "api")];
        world
            .wait_value("rhizome_upstream_streams_active", &active, 1.0)
            .await;
        let all = world.gateway.connections();
        assert!(!json!(all).to_string().contains("secret"), "{all:?}");
        let [own] = &*all else { panic!("{all:?}") };
        let terminated = &own["terminated"];
        assert_eq!(terminated["protocol"], protocol);
        assert_eq!(terminated["requests"], 1);
        let open = &terminated["open"][0];
        assert_eq!(
            (&open["method"], &open["path"]),
            (&json!("GET"), &json!("/never"))
        );
        let endpoint = open["endpoint"].as_str().unwrap();
        assert!(world.routes().contains(endpoint), "{open}");
        assert_eq!(open["status"], Value::Null);
        assert!(open["ageSeconds"].as_f64().unwrap() < 20.0);
        never.abort();
        world
            .wait_value("rhizome_listener_connections_active", &[], 0.0)
            .await;
    }
}

#[tokio::test]
async fn list_of_requests_is_bounded() {
    let world = World::new();
    let client = world.client(None, "h2").await;
    let Client::Http2(sender) = &client else {
        panic!("another protocol")
    };
    for _ in 0..15 {
        let (mut sender, request) = (sender.clone(), client.request_of("/never", &[]));
        tokio::spawn(async move { sender.send_request(request).await.map(drop) });
    }
    world.wait_value("rhizome_requests_active", &[], 15.0).await;
    let all = world.gateway.connections();
    assert_eq!(all[0]["terminated"]["requests"], 15);
    assert_eq!(all[0]["terminated"]["open"].as_array().unwrap().len(), 10);
}

#[tokio::test]
async fn requests_are_logged_when_asked_for() {
    for logged in [true, false] {
        let world = World::new();
        let routes = world.gateway.dir.join("routes.yaml").display().to_string();
        let config = format!(
            "{LISTENER}routing: {{ file: \"{routes}\" }}\naccessLog: {{ format: json, requests: {logged} }}\n"
        );
        let child = Child::start(&config, "");
        let stream = TcpStream::connect(child.addr("tls")).await.unwrap();
        let pem = world.secrets.serving.pem();
        let mut client = Client::over(stream, pem, None, "h2").await.unwrap();
        let mut request = client.request_of("/api?token=secret", &[]);
        *request.method_mut() = http::Method::POST;
        *request.body_mut() = Full::from("hello");
        let response = client.send(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        drop(client);
        let mut text = String::new();
        until("the connection's line", || {
            text = child.stdout();
            text.contains("\"reason\":\"closed\"")
        })
        .await;
        assert!(!text.contains("secret"), "{text}");
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        assert_eq!(lines.len(), 1 + usize::from(logged), "{text}");
        if !logged {
            continue;
        }
        let request = &lines[0];
        for (name, value) in [
            ("listener", json!("tls")),
            ("protocol", json!("h2")),
            ("server_name", json!(NAME)),
            ("cluster", json!("api")),
            ("method", json!("POST")),
            ("path", json!("/api")),
            ("status", json!(200)),
            ("rx_bytes", json!(5)),
            ("tx_bytes", json!(body.len())),
        ] {
            assert_eq!(request[name], value, "{name}: {text}");
        }
        assert!(
            request["endpoint"]
                .as_str()
                .unwrap()
                .starts_with("127.0.0.1:")
        );
    }
}

#[test]
fn trace_tells_what_becomes_of_a_certificate() {
    let world = World::new();
    let ask = |query: &str| {
        let answer = world
            .gateway
            .admin_json(&format!("/trace?sni={NAME}{query}"));
        assert_eq!(answer["routed"], true, "{answer}");
        answer["terminated"].clone()
    };
    let anonymous = ask("");
    assert_eq!(anonymous["pool"], "anonymous");
    assert_eq!(anonymous["user"], Value::Null);
    let known = ask("&certificate=cn=first,cn=jane,o=devs,o=,o=ops");
    assert_eq!(known["pool"], "identity");
    assert_eq!(known["user"], "jane");
    assert_eq!(known["groups"], json!(["devs", "ops"]));
    for bad in ["cn=jane%20", "o=devs", "cn=jane,o=%00"] {
        let refused = ask(&format!("&certificate={bad}"));
        assert_eq!(refused["pool"], Value::Null, "{bad}");
        assert!(refused["note"].is_string(), "{bad}");
    }
    let world = World::with(|dir| std::fs::remove_file(dir.join("front.key")).unwrap());
    let admin = world.gateway.admin.to_string();
    let asked = ["--sni", NAME, "--certificate", "cn=jane", "--admin", &admin];
    let asked = crate::support::run(world.gateway.dir.path(), &[&["trace"], &asked[..]].concat());
    let text = String::from_utf8(asked.stdout).unwrap();
    assert!(asked.status.success(), "{text}");
    let line = text.lines().find(|line| line.starts_with("TLS ")).unwrap();
    assert!(
        line.contains("passed through") && line.contains("front.key"),
        "{line}"
    );
}
