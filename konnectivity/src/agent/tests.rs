//! Tests of a whole agent against a server that behaves as upstream's does.

use std::ffi::OsString;
use std::sync::mpsc;
use std::time::Duration;

use testkit::certs::{Authority, Identity};
use testkit::http::Target;
use testkit::konnectivity::{AgentLink, End, FakeServer, Packet, ServerOptions};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};

use super::*;
use crate::endpoints;
use crate::flags::{self, Environment};
use crate::process::Parsed;

const LIMIT: Duration = Duration::from_secs(20);
const CUT: &str = "ended by a second signal";

/// A running agent and its files.
struct Running {
    agent: Option<Agent>,
    runtime: tokio::runtime::Runtime,
    _dir: TempDir,
}

struct Pki {
    authority: Authority,
    server: Identity,
}

impl Pki {
    fn new() -> Self {
        let authority = Authority::new("servers").unwrap();
        let server = authority.server(&["127.0.0.1", "localhost"]).unwrap();
        Self { authority, server }
    }

    fn options(&self, id: &str) -> ServerOptions {
        ServerOptions::new(id, &self.server)
    }
}

/// Returns what the flags say of an agent whose server is at `port`; its files are in `dir`.
fn configured(dir: &TempDir, pki: &Pki, port: u16, more: &[&str]) -> AgentConfig {
    let ca = dir.write("ca.crt", pki.authority.pem()).unwrap();
    let token = dir.write("token", "a.b.c\n").unwrap();
    let (ca, token) = (ca.display(), token.display());
    let own = format!(
        "konnectivity-agent --ca-cert={ca} --service-account-token-path={token} \
         --proxy-server-port={port} --agent-id=agent-1 --health-server-host=127.0.0.1 \
         --agent-identifiers=host=node-1&ipv4=10.0.0.1 --health-server-port=0 \
         --admin-server-port=0"
    );
    let args = own
        .split(' ')
        .chain(more.iter().copied())
        .map(OsString::from);
    let parsed = flags::agent(args, &Environment::default()).unwrap();
    let Parsed::Configured(setup) = parsed else {
        panic!("no configuration");
    };
    setup.config
}

impl Running {
    fn start(pki: &Pki, port: u16, more: &[&str]) -> Self {
        let dir = TempDir::new("agent").unwrap();
        let config = configured(&dir, pki, port, more);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let agent = runtime.block_on(async { Agent::start(config, LogControl::detached()) });
        Self {
            agent: Some(agent.unwrap()),
            runtime,
            _dir: dir,
        }
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    /// Lets it run with signals from `next`; what is returned hears how it ended.
    fn run(
        &mut self,
        next: impl AsyncFnMut() -> Signal + Send + 'static,
    ) -> mpsc::Receiver<Result<(), String>> {
        let (told, ended) = mpsc::channel();
        let agent = self.agent.take().unwrap();
        let runtime = self.runtime.handle().clone();
        std::thread::spawn(move || {
            let ended = runtime.block_on(agent.run(next));
            let _ = told.send(ended.map_err(|failure| failure.error().to_string()));
        });
        ended
    }

    fn drain(&self) {
        let _runtime = self.runtime.enter();
        self.agent().drain.begin();
    }

    fn get(&self, path: &str) -> (u16, String) {
        answer(&self.agent().endpoints.probes, path)
    }

    fn admin(&self, path: &str) -> (u16, String) {
        answer(&self.agent().endpoints.admin, path)
    }

    /// Waits until `/metrics` has `line`.
    fn wait_counted(&self, line: &str) {
        let counted = || self.get("/metrics").1.lines().any(|told| told == line);
        testkit::wait::until(line, LIMIT, counted).unwrap();
    }
}

fn answer(address: &EndpointAddr, path: &str) -> (u16, String) {
    let EndpointAddr::Tcp(address) = address else {
        panic!("no address");
    };
    let answer = testkit::http::get(&Target::plain(*address), path).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

fn connected(more: &[&str]) -> (Running, FakeServer, AgentLink) {
    let pki = Pki::new();
    let server = FakeServer::start(&pki.options("s1")).unwrap();
    let running = Running::start(&pki, server.addr().port(), more);
    let link = server.accept(LIMIT).unwrap();
    (running, server, link)
}

#[test]
fn agent_is_ready_while_server_is_connected() {
    let pki = Pki::new();
    let server = FakeServer::start(&pki.options("s1")).unwrap();
    server.refuse(true);
    let running = Running::start(&pki, server.addr().port(), &[]);
    let expected = "[+]ping ok\n[-]server-connected failed: no servers connected\n";
    assert_eq!(running.get("/readyz"), (503, expected.to_owned()));
    assert_eq!(running.get("/healthz"), (200, "ok".to_owned()));
    server.refuse(false);
    let link = server.accept(LIMIT).unwrap();
    assert_eq!(link.said("agentid"), ["agent-1"]);
    assert_eq!(link.said("agentidentifiers"), ["host=node-1&ipv4=10.0.0.1"]);
    assert_eq!(link.said("authorization"), ["Bearer a.b.c"]);
    assert_eq!(link.said("knp-ext"), ["window=1,fin=1"]);
    let ready = || running.get("/ready") == (200, "ok".to_owned());
    testkit::wait::until("the agent to be ready", LIMIT, ready).unwrap();
    let (status, text) = running.get("/readyz?verbose");
    assert_eq!(status, 200);
    assert!(text.contains("[+]server-connected ok\n"), "{text}");
    drop(link);
    drop(server);
    let lost = || running.get("/readyz").0 == 503;
    testkit::wait::until("the loss to be noticed", LIMIT, lost).unwrap();
}

#[test]
fn links_and_error_statuses_are_counted() {
    for (status, text, failed) in [(8, "too many agents", true), (0, "", false)] {
        let (running, server, link) = connected(&[]);
        running.wait_counted("rhizome_konnectivity_links 1");
        server.refuse(true);
        link.wire.finish_with(status, text).unwrap();
        running.wait_counted("rhizome_konnectivity_links 0");
        if failed {
            running.wait_counted(
                "konnectivity_network_proxy_agent_stream_errors_total{segment=\"to_agent\",\
                 code=\"ResourceExhausted\",packet_type=\"Unknown\"} 1",
            );
            running.wait_counted(
                "konnectivity_network_proxy_agent_server_connection_failure_count\
                 {direction=\"from_server\"} 1",
            );
        }
        let (_, metrics) = running.get("/metrics");
        for family in ["stream_errors_total{", "failure_count{"] {
            assert_eq!(metrics.contains(family), failed, "{metrics}");
        }
    }
}

#[test]
fn admin_shows_links_and_no_profiles() {
    let (running, _server, _link) = connected(&[]);
    running.wait_counted("rhizome_konnectivity_links 1");
    let (_, snapshot) = running.admin("/snapshot");
    let snapshot: serde_json::Value = serde_json::from_str(&snapshot).unwrap();
    assert_eq!(snapshot["links"][0]["server"], "s1");
    let (status, text) = running.admin("/debug/pprof/heap");
    assert_eq!((status, text.as_str()), (404, endpoints::NO_PROFILES));
    let (status, text) = running.admin("/debug/pprofile");
    assert_eq!((status, text.as_str()), (404, "no such endpoint\n"));
    let (_, metrics) = running.admin("/metrics");
    assert!(metrics.contains("rhizome_konnectivity_links 1"));
}

#[test]
fn drained_agent_serves_until_idle() {
    let (mut running, _server, mut link) = connected(&["--grace-period=100s"]);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let id = link.dial(&echo.addr().to_string()).unwrap();
    running.drain();
    let drain = |packet: &Packet| matches!(packet, Packet::Drain);
    link.wire.find("DRAIN", LIMIT, drain).unwrap();
    let ended = running.run(std::future::pending);
    let late = link.dial(&echo.addr().to_string()).unwrap();
    link.write(late, b"late").unwrap();
    assert_eq!(link.read(late, 4).unwrap(), b"late");
    link.close(late).unwrap();
    link.read_to_end(late).unwrap();
    assert!(ended.try_recv().is_err());
    link.close(id).unwrap();
    assert_eq!(ended.recv_timeout(LIMIT).unwrap(), Ok(()));
    // As a client does that goes away: it has no status to give.
    assert!(matches!(link.wire.end(LIMIT).unwrap(), End::Failed(_)));
}

#[test]
fn drain_timeout_ends_tunnels() {
    let (mut running, _server, mut link) = connected(&["--grace-period=100ms"]);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    link.dial(&echo.addr().to_string()).unwrap();
    running.drain();
    let ended = running.run(std::future::pending);
    assert_eq!(ended.recv_timeout(LIMIT).unwrap(), Ok(()));
    echo.wait_closed(LIMIT).unwrap();
}

#[test]
fn an_operators_drain_is_no_signal() {
    let (mut running, _server, mut link) = connected(&["--grace-period=100s"]);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let id = link.dial(&echo.addr().to_string()).unwrap();
    running.drain();
    let (signal, mut signals) = tokio::sync::mpsc::channel(1);
    let (asked, asks) = mpsc::channel();
    let ended = running.run(async move || {
        let _ = asked.send(());
        match signals.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    });
    asks.recv_timeout(LIMIT).unwrap();
    signal.blocking_send(Signal::Stop).unwrap();
    // It has acted on the first once it waits for another.
    asks.recv_timeout(LIMIT).unwrap();
    link.write(id, b"still there").unwrap();
    assert_eq!(link.read(id, 11).unwrap(), b"still there");
    assert!(ended.try_recv().is_err());
    signal.blocking_send(Signal::Stop).unwrap();
    assert_eq!(ended.recv_timeout(LIMIT).unwrap(), Err(CUT.to_owned()));
}

#[test]
fn second_signal_ends_timed_out_agent() {
    let (mut running, _server, _link) = connected(&["--grace-period=1ms"]);
    let drain = running.agent().drain.clone();
    let mut signals = 0;
    let ended = running.run(async move || {
        if signals > 0 {
            drain.reached(Phase::Cut).await;
        }
        signals += 1;
        Signal::Stop
    });
    assert_eq!(ended.recv_timeout(LIMIT).unwrap(), Err(CUT.to_owned()));
}

#[tokio::test]
async fn exit_code_is_64_only_for_config_errors() {
    let pki = Pki::new();
    let dir = TempDir::new("agent").unwrap();
    let config = configured(&dir, &pki, 1, &[]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let wrong = dir.write("wrong.crt", "no certificate").unwrap();
    let bad_file = AgentConfig {
        ca: Some(wrong),
        ..config.clone()
    };
    let taken_port = AgentConfig {
        health: taken,
        ..config
    };
    for (config, code) in [(bad_file, 64), (taken_port, 1)] {
        let failure = Agent::start(config, LogControl::detached()).err().unwrap();
        assert_eq!(failure.code(), code, "{failure:?}");
    }
}

#[test]
fn servers_behind_one_name_are_found() {
    let pki = Pki::new();
    let v4 = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = v4.local_addr().unwrap().port();
    let Ok(v6) = std::net::TcpListener::bind(("::1", port)) else {
        return;
    };
    let options = |id| ServerOptions {
        count: 2,
        ..pki.options(id)
    };
    let _servers = [("a", v4), ("b", v6)]
        .map(|(id, listener)| FakeServer::serve(listener, &options(id)).unwrap());
    let running = Running::start(&pki, port, &["--proxy-server-host=localhost"]);
    running.wait_counted("konnectivity_network_proxy_agent_open_server_connections 2");
}
