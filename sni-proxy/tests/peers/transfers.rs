//! curl moves 100 MB each way, over HTTP/1.1 and HTTP/2, by name and by CONNECT; every byte is
//! compared by its SHA-256.

use std::process::Command;

use serde_json::{Value, json};
use testkit::command;
use testkit::tempdir::TempDir;

use crate::gateway::{self, HEADER, NAME};
use crate::ours::Ours;
use crate::programs::{announce, sha256, text};
use crate::web::{Kind, Web};
use crate::who;

const BYTES: u64 = 100_000_000;

/// What today's VPN client asks for, and with which header.
const VPN: &str = "outbound|1194||vpn-seed-server.shoot--foo--bar.svc.cluster.local";
const VPN_HEADER: &str = "Reversed-VPN";

struct Stage {
    dir: TempDir,
    web: Web,
    gateway: Ours,
}

impl Stage {
    fn new() -> Self {
        for peer in ["curl", "nginx"] {
            announce(peer);
        }
        let dir = TempDir::new("transfers").unwrap();
        let web = Web::start(dir.path(), Kind::Tls);
        let mut routes = gateway::to_one(web.addr);
        let vpn = json!({ "connectDestinations": [VPN], "cluster": gateway::CLUSTER });
        routes["routes"].as_array_mut().unwrap().push(vpn);
        let gateway = gateway::plain(&dir, &routes);
        Self { dir, web, gateway }
    }

    /// Prepares curl to trust the server's certificate authority, and no other.
    fn curl(&self, arguments: &[&str]) -> Command {
        let mut curl = who::curl();
        curl.arg("--cacert").arg(&self.web.authority);
        curl.args(arguments);
        curl
    }

    /// Prepares curl to reach the server's name at the TLS listener.
    fn curl_by_name(&self, arguments: &[&str]) -> Command {
        let mut curl = self.curl(arguments);
        let tls = self.gateway.listener("tls");
        curl.args(["--connect-to", &format!("{NAME}:443:{tls}")]);
        curl
    }

    /// Prepares curl to reach the server by the CONNECT listener `listener`.
    fn curl_by_connect(&self, listener: &str, header: &str, value: &str) -> Command {
        let proxy = format!("http://{}", self.gateway.listener(listener));
        let header = format!("{header}: {value}");
        self.curl(&["--proxy", &proxy, "--proxy-header", &header])
    }

    /// Downloads and uploads [`BYTES`] with what `prepare` prepares, and compares.
    fn moves_files(&self, version: &str, prepare: impl Fn() -> Command) {
        let served = self.web.random_file("down", BYTES);
        let (got, url) = (self.dir.join("got"), format!("https://{NAME}/down"));
        run(prepare().arg(version).arg("--output").arg(&got).arg(&url));
        assert_eq!(sha256(&got), sha256(&served));

        let url = format!("https://{NAME}/up-{version}");
        run(prepare()
            .arg(version)
            .arg("--upload-file")
            .arg(&got)
            .arg(&url));
        let stored = self.web.file(&format!("up-{version}"));
        assert_eq!(sha256(&stored), sha256(&served));
        let (rx, tx) = ("rx", "tx");
        for direction in [rx, tx] {
            let name = "rhizome_relay_bytes_total";
            let bytes = self.gateway.metric(name, &[("direction", direction)]);
            assert!(bytes > 1e8, "{direction}: {bytes}");
        }
    }
}

fn run(curl: &mut Command) {
    command::run(curl).unwrap_or_else(|error| panic!("{error:#}"));
}

fn refused(curl: &mut Command) -> String {
    let output = command::output(curl.arg(format!("https://{NAME}/who"))).unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    text(&output)
}

#[test]
fn files_arrive_as_they_were_over_http_1() {
    let stage = Stage::new();
    stage.moves_files("--http1.1", || stage.curl_by_name(&[]));
}

#[test]
fn files_arrive_as_they_were_over_http_2() {
    let stage = Stage::new();
    stage.moves_files("--http2", || stage.curl_by_name(&[]));
    let record = stage.gateway.wait_record("a closed connection", |record| {
        record["alpn"] == "h2,http/1.1"
    });
    assert_eq!(record["reason"], "closed", "{record}");
}

#[test]
fn files_arrive_as_they_were_through_connect() {
    let stage = Stage::new();
    stage.moves_files("--http1.1", || {
        stage.curl_by_connect("vpn", VPN_HEADER, VPN)
    });
    let record = stage
        .gateway
        .wait_record("a tunnel's end", |record| record["connect"] == VPN);
    assert_eq!(record["listener"], "vpn", "{record}");
}

#[test]
fn curl_accepts_connect_answer() {
    let stage = Stage::new();
    let cluster = gateway::CLUSTER;
    for (listener, header, value) in [
        ("vpn", VPN_HEADER, VPN),
        ("vpn", HEADER, cluster),
        ("node", VPN_HEADER, VPN),
        ("node", &HEADER.to_lowercase(), cluster),
    ] {
        let said = who::ask(
            stage
                .curl_by_connect(listener, header, value)
                .arg(format!("https://{NAME}/who")),
        );
        let record = stage.gateway.next_record("peer", said.local());
        assert_eq!(
            (&record["connect"], &record["listener"]),
            (&json!(value), &json!(listener))
        );
    }
    // CONNECT by HTTP/1.0 is answered in kind.
    let mut old = stage.curl_by_connect("vpn", VPN_HEADER, VPN);
    let url = format!("https://{NAME}/who");
    who::ask(old.args([
        "--proxy1.0",
        &stage.gateway.listener("vpn").to_string(),
        &url,
    ]));

    let unknown = refused(&mut stage.curl_by_connect("vpn", VPN_HEADER, "outbound|1||missing"));
    assert!(unknown.contains("404"), "{unknown}");
    let mut two = stage.curl_by_connect("vpn", VPN_HEADER, VPN);
    let different = refused(two.args(["--proxy-header", &format!("{HEADER}: {cluster}")]));
    assert!(different.contains("400"), "{different}");
    let mut twice = stage.curl_by_connect("vpn", VPN_HEADER, VPN);
    let same = format!("{HEADER}: {VPN}");
    who::ask(twice.args(["--proxy-header", &same, &format!("https://{NAME}/who")]));
    let none = refused(&mut stage.curl_by_connect("vpn", "X-Other", VPN));
    assert!(none.contains("308"), "{none}");
    let redirected = |record: &Value| record["reason"] == "redirected";
    stage.gateway.wait_record("the redirect", redirected);
}

#[test]
fn curl_follows_redirect() {
    let stage = Stage::new();
    let vpn = stage.gateway.listener("vpn");
    let mut curl = stage.curl(&["--output", "/dev/null"]);
    curl.args(["--write-out", "%{http_code} %{redirect_url}"]);
    curl.args(["--connect-to", &format!("{NAME}:80:{vpn}")]);
    let output = command::output(curl.arg(format!("http://{NAME}/down?x=1"))).unwrap();
    assert_eq!(text(&output), format!("308 https://{NAME}/down?x=1"));
    let mut follow = stage.curl_by_name(&["--location"]);
    follow.args(["--connect-to", &format!("{NAME}:80:{vpn}")]);
    std::fs::write(stage.web.file("down"), "followed").unwrap();
    let said = who::ask(follow.arg(format!("http://{NAME}/down")));
    assert_eq!(said.body, "followed");
}

#[test]
fn an_endpoint_that_refuses_is_told_to_curl() {
    announce("curl");
    let dir = TempDir::new("transfers").unwrap();
    let web = Web::start(dir.path(), Kind::Tls);
    let routes = gateway::to_one(crate::programs::free("127.0.0.1"));
    let gateway = gateway::plain(&dir, &routes);
    let stage = Stage { dir, web, gateway };
    let said = refused(&mut stage.curl_by_connect("node", HEADER, gateway::CLUSTER));
    assert!(said.contains("503"), "{said}");
    let record: Value = stage
        .gateway
        .wait_record("a refusal", |record| record["connect"] == gateway::CLUSTER);
    assert_eq!(record["reason"], "connect_refused", "{record}");
}
