//! `openssl s_client` through the TLS listener: what it says of the handshake is the server's
//! doing, not the gateway's.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use testkit::tempdir::TempDir;

use crate::gateway::{self, NAME};
use crate::ours::Ours;
use crate::programs::{announce, client, run_with_input, text};
use crate::web::{Kind, Web};

struct Stage {
    dir: TempDir,
    web: Web,
    gateway: Ours,
}

impl Stage {
    fn new() -> Self {
        for peer in ["openssl", "nginx"] {
            announce(peer);
        }
        let dir = TempDir::new("openssl").unwrap();
        let web = Web::start(dir.path(), Kind::Tls);
        std::fs::write(web.file("hello"), "hello\n").unwrap();
        let gateway = gateway::plain(&dir, &gateway::to_one(web.addr));
        Self { dir, web, gateway }
    }

    /// Connects with `arguments`, verifies the certificate, and asks for `/hello`.
    fn s_client(&self, arguments: &[&str]) -> Output {
        s_client(
            self.gateway.listener("tls"),
            &self.web.authority,
            arguments,
            "GET /hello HTTP/1.0\r\n\r\n",
        )
    }

    /// As [`Stage::s_client`], which must succeed; returns what openssl and the server said.
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.s_client(arguments);
        let said = text(&output);
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert!(
            said.contains("Verification: OK") || said.contains("Verify return code: 0"),
            "{said}"
        );
        said
    }

    /// As [`Stage::s_client`], which must fail; returns the record of why.
    fn is_refused(&self, arguments: &[&str], reason: &str) -> Value {
        let output = self.s_client(arguments);
        assert!(!output.status.success(), "{}", text(&output));
        let record = self
            .gateway
            .wait_record(reason, |record| record["reason"] == reason);
        assert_eq!(record["cluster"], Value::Null, "{record}");
        record
    }
}

fn s_client(addr: SocketAddr, authority: &Path, arguments: &[&str], input: &str) -> Output {
    let mut openssl = client("openssl");
    openssl
        .args(["s_client", "-connect", &addr.to_string(), "-CAfile"])
        .arg(authority)
        .args(["-verify_return_error", "-verify_hostname", NAME])
        .args(["-ign_eof"])
        .args(arguments);
    run_with_input(&mut openssl, input)
}

#[test]
fn server_is_reached_by_both_tls_versions() {
    let stage = Stage::new();
    for (version, shown) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let said = stage.succeeds(&["-servername", NAME, version]);
        assert!(said.contains(shown) && said.contains("hello"), "{said}");
    }
    let upper = NAME.to_uppercase();
    let said = stage.succeeds(&["-servername", &upper]);
    assert!(said.contains("hello"), "{said}");
    let record = stage.gateway.wait_record("the last", |record| {
        record["server_name"].as_str() == Some(&upper)
    });
    assert_eq!(record["cluster"], gateway::CLUSTER, "{record}");
    assert_eq!(record["endpoint"], stage.web.addr.to_string(), "{record}");
    assert!(record["tx_bytes"].as_u64().unwrap() > 1000, "{record}");
}

#[test]
fn absent_and_unknown_names_differ_in_reason() {
    let stage = Stage::new();
    let record = stage.is_refused(&["-noservername"], "no_server_name");
    assert_eq!(record["server_name"], Value::Null, "{record}");
    let other = ["-servername", "api.missing.example.com"];
    let record = stage.is_refused(&other, "unknown_server_name");
    assert_eq!(record["server_name"], other[1], "{record}");
}

#[test]
fn without_a_name_the_catch_all_route_is_taken() {
    announce("openssl");
    announce("nginx");
    let dir = TempDir::new("openssl").unwrap();
    let web = Web::start(dir.path(), Kind::Tls);
    std::fs::write(web.file("hello"), "hello\n").unwrap();
    let routes = json!({
        "clusters": [gateway::cluster("all", web.addr)],
        "routes": [{ "serverNames": ["*"], "cluster": "all" }],
    });
    let gateway = gateway::plain(&dir, &routes);
    let stage = Stage { dir, web, gateway };
    assert!(stage.succeeds(&["-noservername"]).contains("hello"));
}

#[test]
fn alpn_is_negotiated_end_to_end_and_logged() {
    let stage = Stage::new();
    // HTTP/1.0 is no HTTP/2, so the server ends the connection; the handshake is what counts.
    let said = text(&stage.s_client(&["-servername", NAME, "-alpn", "h2,http/1.1"]));
    assert!(said.contains("ALPN protocol: h2"), "{said}");
    let said = stage.succeeds(&["-servername", NAME, "-alpn", "http/1.1"]);
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
    for offered in ["h2,http/1.1", "http/1.1"] {
        stage
            .gateway
            .wait_record(offered, |record| record["alpn"] == offered);
    }
}

#[test]
fn a_session_is_resumed_on_the_second_connection() {
    let stage = Stage::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let kept = stage.dir.join(version).display().to_string();
        let first = stage.succeeds(&["-servername", NAME, version, "-sess_out", &kept]);
        assert!(first.contains("New, TLSv1"), "{first}");
        let second = stage.succeeds(&["-servername", NAME, version, "-sess_in", &kept]);
        assert!(second.contains("Reused, TLSv1"), "{second}");
        assert!(second.contains("hello"), "{second}");
    }
}

#[test]
fn a_greeting_cut_into_many_records_is_read() {
    let stage = Stage::new();
    // The extension of ALPN takes at most 64 KiB; this is more than two dozen records of 512.
    let offered: Vec<String> = (0..60)
        .map(|n| format!("{}-{n}", "p".repeat(200)))
        .collect();
    let offered = format!("{},http/1.1", offered.join(","));
    let arguments = [
        "-servername",
        NAME,
        "-max_send_frag",
        "512",
        "-alpn",
        &offered,
    ];
    let said = stage.succeeds(&arguments);
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
    assert!(said.contains("hello"), "{said}");
}
