//! Peers that die in the middle of a transfer: the gateway says which side it was, and keeps
//! nothing of the connection.
//!
//! A process that is stopped (SIGSTOP) no longer reads, so its socket has unread bytes when it
//! is killed, and then the kernel sends a reset (RFC 2525 section 2.17); killed with none, it
//! sends a FIN, which is no different from an orderly end.

use std::process::{Command, Stdio};

use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;
use testkit::wait;

use crate::gateway::{self, NAME};
use crate::haproxy::{self, Hop};
use crate::ours::{LIMIT, Ours};
use crate::programs::{announce, free};
use crate::web::{Kind, Web};
use crate::who;

struct Stage {
    dir: TempDir,
    web: Web,
    gateway: Ours,
}

impl Stage {
    fn new() -> Self {
        announce("curl");
        announce("nginx");
        let dir = TempDir::new("unclean").unwrap();
        let web = Web::start(dir.path(), Kind::Tls);
        web.random_file("file", 100_000_000);
        let gateway = gateway::plain(&dir, &gateway::to_one(web.addr));
        Self { dir, web, gateway }
    }

    /// Starts a curl that goes on for long enough.
    fn transfer(&self, name: &str, first: std::net::SocketAddr, arguments: &[&str]) -> ChildGuard {
        let mut curl = who::curl();
        curl.arg("--cacert").arg(&self.web.authority);
        curl.args(["--http1.1", "--connect-to", &format!("{NAME}:443:{first}")]);
        curl.args(arguments);
        // Without the `timeout` in front, which a signal would hit instead.
        let mut bare = Command::new(curl.get_args().nth(1).unwrap());
        bare.args(curl.get_args().skip(2)).stdout(Stdio::null());
        ChildGuard::spawn(name, &bare, &self.dir.join(name)).unwrap()
    }

    fn download(&self, first: std::net::SocketAddr) -> ChildGuard {
        let url = format!("https://{NAME}/slow/file");
        self.transfer("download", first, &["--output", "/dev/null", &url])
    }

    fn upload(&self, first: std::net::SocketAddr) -> ChildGuard {
        let file = self.web.file("file").display().to_string();
        let url = format!("https://{NAME}/stored");
        let slow = ["--limit-rate", "4M", "--upload-file", &file, &url];
        self.transfer("upload", first, &slow)
    }

    fn wait_moved(&self, direction: &str) {
        let moved = || {
            let name = "rhizome_relay_bytes_total";
            self.gateway.metric(name, &[("direction", direction)])
        };
        let before = moved();
        wait::until("a megabyte to move", LIMIT, || moved() > before + 1e6).unwrap();
    }

    /// Waits until the process that is stopped no longer takes anything: what is under way fills
    /// the buffers between, and then nothing moves.
    fn wait_stuck(&self, direction: &str) {
        let name = "rhizome_relay_bytes_total";
        let moved = || self.gateway.metric(name, &[("direction", direction)]);
        let mut last = moved();
        wait::until("the buffers to fill", LIMIT, || {
            wait::pause(std::time::Duration::from_millis(300));
            let now = moved();
            let stuck = now == last;
            last = now;
            stuck
        })
        .unwrap();
    }

    fn wait_reason(&self, reason: &str) {
        self.gateway
            .wait_record(reason, |record| record["reason"] == reason);
    }
}

#[test]
fn killed_downloader_is_downstream_reset() {
    let stage = Stage::new();
    let mut curl = stage.download(stage.gateway.listener("tls"));
    stage.wait_moved("tx");
    curl.signal(Signal::STOP).unwrap();
    stage.wait_stuck("tx");
    curl.kill().unwrap();
    stage.wait_reason("downstream_reset");
    stage.gateway.assert_nothing_left();
}

#[test]
fn server_killed_in_upload_is_upstream_reset() {
    let mut stage = Stage::new();
    let mut curl = stage.upload(stage.gateway.listener("tls"));
    stage.wait_moved("rx");
    stage.web.child.signal(Signal::STOP).unwrap();
    stage.wait_stuck("rx");
    stage.web.child.kill().unwrap();
    stage.wait_reason("upstream_reset");
    let status = curl.wait_exit(LIMIT).unwrap();
    assert!(!status.success(), "{status}");
    stage.gateway.assert_nothing_left();
}

#[test]
fn server_killed_in_download_ends_it() {
    let mut stage = Stage::new();
    let mut curl = stage.download(stage.gateway.listener("tls"));
    stage.wait_moved("tx");
    stage.web.child.kill().unwrap();
    let status = curl.wait_exit(LIMIT).unwrap();
    assert!(!status.success(), "{status}");
    let record = stage.gateway.wait_record("the end", |_| true);
    let reason = record["reason"].as_str().unwrap();
    assert!(["closed", "upstream_reset"].contains(&reason), "{record}");
    stage.gateway.assert_no_connection_left();
}

#[test]
fn killed_node_proxy_leaves_nothing() {
    let stage = Stage::new();
    announce("haproxy");
    let node = free("127.0.9.1");
    let hop = Hop::new(node, stage.gateway.listener("node"), "send-proxy-v2");
    let mut haproxy = haproxy::sender(stage.dir.path(), &[hop]);
    let mut curls = [stage.download(node), stage.upload(node)];
    stage.wait_moved("tx");
    stage.wait_moved("rx");
    haproxy.kill().unwrap();
    for curl in &mut curls {
        let status = curl.wait_exit(LIMIT).unwrap();
        assert!(!status.success(), "{status}");
    }
    wait::until("both records", LIMIT, || stage.gateway.records().len() == 2).unwrap();
    for record in stage.gateway.records() {
        let reason = record["reason"].as_str().unwrap();
        assert!(["closed", "downstream_reset"].contains(&reason), "{record}");
        assert_eq!(record["destination"], node.to_string(), "{record}");
    }
    stage.gateway.assert_nothing_left();
}
