//! One server for several tenants, which know nothing of each other.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use testkit::certs::{Authority, Identity};
use testkit::konnectivity::{
    AgentMetadata, AgentTarget, DialRule, End, FakeAgent, GrpcFrontend, HttpFrontend, Packet,
    Refusal, Tunnel, Wire, connect,
};
use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Held, LIMIT, Mode, Pki, SERVER, SERVICE, Server, ServerFlags, noise};

/// A server with the tenants `a` and `b`.
struct Shared {
    server: Server,
    dir: TempDir,
    a: Tenant,
    b: Tenant,
}

struct Tenant {
    id: &'static str,
    authority: Authority,
    agent: Identity,
    frontend: Identity,
}

impl Tenant {
    fn new(id: &'static str, dir: &TempDir) -> Self {
        let authority = Authority::new(id).unwrap();
        authority.write(&dir.join(format!("{id}-ca.crt"))).unwrap();
        let uri = format!("spiffe://example.com/cluster/{id}");
        let frontend = format!("{uri}/kube-apiserver");
        Self {
            id,
            agent: authority.client("agent", &[], &[&uri]).unwrap(),
            frontend: authority.client("frontend", &[], &[&frontend]).unwrap(),
            authority,
        }
    }

    fn file(&self, more: &str) -> String {
        let id = self.id;
        format!(
            "serverNames: [\"{id}.kn.example.com\"]\n\
             agents:\n  certificates: {{ ca: {id}-ca.crt, \
             identities: [\"spiffe://example.com/cluster/{id}\"] }}\n\
             frontends:\n  certificates: {{ ca: {id}-ca.crt, \
             identities: [\"spiffe://example.com/cluster/{id}/kube-apiserver\"] }}\n\
             {more}"
        )
    }
}

impl Shared {
    fn start() -> Self {
        Self::limited("")
    }

    /// `limits` are those of tenant `a`.
    fn limited(limits: &str) -> Self {
        Self::of(limits, |flags| flags)
    }

    fn of(limits: &str, flags: impl FnOnce(ServerFlags) -> ServerFlags) -> Self {
        let dir = TempDir::new("registry").unwrap();
        let (a, b) = (Tenant::new("a", &dir), Tenant::new("b", &dir));
        dir.write("a.yaml", a.file(limits)).unwrap();
        dir.write("b.yaml", b.file("")).unwrap();
        let pki = Arc::new(Pki::new());
        let own = ServerFlags::of(&pki, "shared", Mode::Http).registry(dir.path());
        Self {
            server: flags(own).start(),
            dir,
            a,
            b,
        }
    }

    fn target(&self, name: &str, identity: &Identity) -> AgentTarget {
        AgentTarget {
            server_name: name.to_owned(),
            identity: Some(identity.clone()),
            ..self.server.target()
        }
    }

    fn target_of(&self, tenant: &Tenant) -> AgentTarget {
        self.target(&format!("{}.kn.example.com", tenant.id), &tenant.agent)
    }

    fn agent(&self, tenant: &Tenant) -> FakeAgent {
        let target = self.target_of(tenant);
        let agent = FakeAgent::start(&target, &AgentMetadata::new("same")).unwrap();
        let ready = format!("/readyz/{}", tenant.id);
        self.server.wait_status(&ready, 200);
        agent
    }

    /// An agent's stream in the test's hands, with the windows of one that is known.
    fn wire(&self, tenant: &Tenant) -> Wire {
        let wire = connect(&self.target_of(tenant), &AgentMetadata::new("wire")).unwrap();
        wire.wait_room(256 << 10).unwrap();
        wire
    }

    fn frontend_of(&self, name: &str, identity: &Identity) -> HttpFrontend {
        let pem = self.server.pki().authority.pem();
        HttpFrontend::tls(self.server.frontends(), name, pem, Some(identity)).unwrap()
    }

    /// An API server of a tenant, which asks for the Service's name like all others.
    fn frontend(&self, tenant: &Tenant) -> HttpFrontend {
        self.frontend_of(SERVICE, &tenant.frontend)
    }

    /// Returns how many peers a port has let in, and how many it has refused.
    fn peers(&self, port: &str) -> (f64, f64) {
        let count = |name: &str| {
            let name = format!("rhizome_konnectivity_{name}_peers_total");
            self.server.value(&name, &[("port", port)])
        };
        (count("accepted"), count("refused"))
    }

    fn dial(&self, tenant: &Tenant, target: &str) -> Result<Tunnel, Refusal> {
        self.frontend(tenant).connect(target).unwrap()
    }
}

#[test]
fn a_tenant_reaches_its_own_agents_and_no_others() {
    let shared = Shared::of("", |flags| flags.flag("--backend-dial-timeout=2s"));
    assert_eq!(shared.server.readiness(), 200);
    let of_b = shared.agent(&shared.b);
    // No agent is connected to `a`, whatever serves `b`, nor comes in time.
    let refused = shared.dial(&shared.a, "10.0.0.1:80").unwrap_err();
    assert_eq!(refused.status, 500);
    assert!(refused.body.ends_with("No agent available"), "{refused:?}");
    assert_ne!(shared.server.get("/readyz/a").status, 200);
    let of_a = shared.agent(&shared.a);
    of_a.rule(DialRule::Refuse("it is a".to_owned()));
    of_b.rule(DialRule::Refuse("it is b".to_owned()));
    for _ in 0..20 {
        for (tenant, text) in [(&shared.a, "it is a"), (&shared.b, "it is b")] {
            let refused = shared.dial(tenant, "10.0.0.1:80").unwrap_err();
            assert_eq!(refused.body, text);
        }
    }
}

/// Dials a tenant without agents, and starts one.
fn dial_waits_for_agent(shared: &Shared) {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let (frontend, target) = (shared.frontend(&shared.a), echo.addr().to_string());
    let dialing = std::thread::spawn(move || frontend.connect(&target).unwrap());
    let pending = format!("{SERVER}pending_backend_dials");
    shared.server.wait_value(&pending, &[], 1.0);
    let _agent = shared.agent(&shared.a);
    let mut tunnel = dialing.join().unwrap().unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
}

/// Agents look for a server that has taken the place of another.
#[test]
fn dial_waits_for_first_agent_of_new_server() {
    let shared = Shared::start();
    dial_waits_for_agent(&shared);
}

#[test]
fn api_servers_of_all_tenants_use_one_name() {
    let shared = Shared::start();
    let (of_a, of_b) = (shared.agent(&shared.a), shared.agent(&shared.b));
    of_a.rule(DialRule::Refuse("it is a".to_owned()));
    of_b.rule(DialRule::Refuse("it is b".to_owned()));
    // The name of another tenant misleads no API server either.
    for name in [SERVICE, "a.kn.example.com", "b.kn.example.com"] {
        for (tenant, text) in [(&shared.a, "it is a"), (&shared.b, "it is b")] {
            let frontend = shared.frontend_of(name, &tenant.frontend);
            let refused = frontend.connect("10.0.0.1:80").unwrap().unwrap_err();
            assert_eq!(refused.body, text, "by {name}");
        }
    }
}

#[test]
fn operators_see_whether_frontends_get_in() {
    let shared = Shared::start();
    let _agents = (shared.agent(&shared.a), shared.agent(&shared.b));
    assert_eq!(shared.peers("frontends"), (0.0, 0.0));
    assert_eq!(shared.peers("agents"), (2.0, 0.0));
    let probe = |tenant: &str| {
        let answer = shared.server.get(&format!("/readyz/{tenant}?verbose"));
        (answer.status, answer.text())
    };
    let none = "[+]agents ok\n[-]frontends none was accepted since the start\nok\n";
    assert_eq!(probe("a"), (200, none.to_owned()));

    let stranger = Authority::new("stranger").unwrap();
    let uri = "spiffe://example.com/cluster/a/kube-apiserver";
    let stranger = stranger.client("frontend", &[], &[uri]).unwrap();
    let refused = shared.frontend_of(SERVICE, &stranger);
    assert!(refused.connect("10.0.0.1:1").is_err());
    // Counted by the server behind the alert that the client saw.
    let counted = || shared.peers("frontends") == (0.0, 1.0);
    wait::until("the refusal", Duration::from_secs(5), counted).unwrap();
    assert_eq!(probe("a"), (200, none.to_owned()));

    let echo = Upstream::start(Behavior::Echo).unwrap();
    let addr = echo.addr().to_string();
    shared.dial(&shared.a, &addr).unwrap().echo(b"x").unwrap();
    assert_eq!(shared.peers("frontends"), (1.0, 1.0));
    let one = "[+]agents ok\n[+]frontends 1 accepted since the start\nok\n";
    assert_eq!(probe("a"), (200, one.to_owned()));
    assert_eq!(probe("b"), (200, none.to_owned()));
}

/// Both agents have the same id, and both connections are number 1.
#[test]
fn tunnels_of_two_tenants_are_not_mixed_up() {
    let shared = Shared::start();
    let _agents = (shared.agent(&shared.a), shared.agent(&shared.b));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnels: Vec<_> = [&shared.a, &shared.b]
        .map(|tenant| shared.dial(tenant, &echo.addr().to_string()).unwrap())
        .into();
    for round in 0..10 {
        for (seed, tunnel) in (round..).zip(&mut tunnels) {
            let bytes = noise(seed, 20_000);
            assert!(tunnel.echo(&bytes).unwrap() == bytes);
        }
    }
}

#[test]
fn certificate_serves_one_tenant_and_purpose() {
    let shared = Shared::start();
    let (a, b) = (&shared.a, &shared.b);
    let uri_of_b = "spiffe://example.com/cluster/b";
    // The authority of `a` cannot vouch for `b`.
    let forged = a.authority.client("agent", &[], &[uri_of_b]).unwrap();
    let uri = format!("{uri_of_b}/kube-apiserver");
    let forged_frontend = a.authority.client("frontend", &[], &[&uri]).unwrap();
    let nameless = a.authority.client("agent", &[], &[]).unwrap();
    let metadata = AgentMetadata::new("x");
    for (name, identity) in [
        ("b.kn.example.com", &a.agent),
        ("a.kn.example.com", &a.frontend),
        ("a.kn.example.com", &forged),
        ("b.kn.example.com", &forged),
        ("a.kn.example.com", &nameless),
    ] {
        let target = shared.target(name, identity);
        assert!(FakeAgent::start(&target, &metadata).is_err(), "{name}");
    }
    let mut none = shared.target("a.kn.example.com", &a.agent);
    none.identity = None;
    assert!(FakeAgent::start(&none, &metadata).is_err());
    for identity in [&a.agent, &b.agent, &forged_frontend, &nameless] {
        for name in [SERVICE, "a.kn.example.com", "b.kn.example.com"] {
            let frontend = shared.frontend_of(name, identity);
            assert!(frontend.connect("10.0.0.1:1").is_err(), "{name}");
        }
    }
    assert_ne!(shared.server.get("/readyz/a").status, 200);
    // An unknown name is no contradiction.
    let target = shared.target("127.0.0.1", &a.agent);
    let _agent = FakeAgent::start(&target, &metadata).unwrap();
    shared.server.wait_status("/readyz/a", 200);
    assert_ne!(shared.server.get("/readyz/b").status, 200);
}

#[test]
fn removed_tenant_is_cut_alone() {
    let shared = Shared::start();
    let _agents = (shared.agent(&shared.a), shared.agent(&shared.b));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let addr = echo.addr().to_string();
    let mut of_a = shared.dial(&shared.a, &addr).unwrap();
    let mut of_b = shared.dial(&shared.b, &addr).unwrap();
    of_a.echo(b"x").unwrap();
    of_b.echo(b"x").unwrap();
    std::fs::remove_file(shared.dir.join("a.yaml")).unwrap();
    let clock = Stopwatch::start();
    // An end or a reset.
    let _ = of_a.reader.read(&mut [0]);
    // In 5 s, says the contract.
    assert!(
        clock.elapsed() < Duration::from_secs(8),
        "{:?}",
        clock.elapsed()
    );
    assert_eq!(of_b.echo(b"still").unwrap(), b"still");
    shared.server.wait_status("/readyz/a", 404);
    let target = shared.target("a.kn.example.com", &shared.a.agent);
    assert!(FakeAgent::start(&target, &AgentMetadata::new("x")).is_err());
    // And back again.
    shared.dir.write("a.yaml", shared.a.file("")).unwrap();
    wait::until("the tenant", LIMIT, || {
        FakeAgent::start(&target, &AgentMetadata::new("x")).is_ok()
    })
    .unwrap();
    assert_eq!(of_b.echo(b"still").unwrap(), b"still");
}

/// At the end of a rotation agents that have the new one come back within seconds.
#[test]
fn dials_wait_for_agents_after_identity_is_removed() {
    let shared = Shared::start();
    let with_old = shared.a.file("").replace(
        "cluster/a\"]",
        "cluster/a\", \"spiffe://example.com/cluster/a-old\"]",
    );
    shared.dir.replace("a.yaml", with_old).unwrap();
    let generation = "rhizome_konnectivity_registry_generation";
    shared.server.wait_value(generation, &[], 2.0);
    let agent = shared.agent(&shared.a);

    shared.dir.replace("a.yaml", shared.a.file("")).unwrap();

    wait::until("the link's end", LIMIT, || agent.ended().is_some()).unwrap();
    dial_waits_for_agent(&shared);
}

#[test]
fn a_broken_file_keeps_what_was_good() {
    let shared = Shared::start();
    let _agent = shared.agent(&shared.a);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let addr = echo.addr().to_string();
    let mut tunnel = shared.dial(&shared.a, &addr).unwrap();
    shared.dir.replace("a.yaml", "agents: [").unwrap();
    let refused = "rhizome_konnectivity_registry_refused_files";
    shared.server.wait_value(refused, &[], 1.0);
    assert_eq!(tunnel.echo(b"still").unwrap(), b"still");
    shared.dial(&shared.a, &addr).unwrap().echo(b"new").unwrap();
}

/// Agents name no host unless they are told to.
#[test]
fn tenant_is_ready_by_any_strategy() {
    let shared = Shared::limited("strategies: [destHost, default]\n");
    let _agent = shared.agent(&shared.a);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = shared.dial(&shared.a, &echo.addr().to_string()).unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
}

#[test]
fn idle_frontends_of_a_tenant_are_bounded() {
    let shared = Shared::limited("limits: { tunnels: 4, pendingDials: 2 }\n");
    let _agents = (shared.agent(&shared.a), shared.agent(&shared.b));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let addr = echo.addr().to_string();
    let frontend = shared.frontend(&shared.a);
    let mut idle: Vec<_> = (0..6).map(|_| frontend.open().unwrap()).collect();
    let accepted = "rhizome_konnectivity_accepted_peers_total";
    let port = ("port", "frontends");
    shared.server.wait_value(accepted, &[port], 6.0);

    assert!(frontend.connect(&addr).is_err());

    let refused = "rhizome_konnectivity_refused_peers_total";
    let limit = ("reason", "cluster_limit");
    shared.server.wait_value(refused, &[port, limit], 1.0);
    shared.dial(&shared.b, &addr).unwrap().echo(b"x").unwrap();
    idle.pop();
    wait::until("a place", LIMIT, || frontend.connect(&addr).is_ok()).unwrap();
}

#[test]
fn a_flood_in_one_tenant_leaves_another_alone() {
    let limits = "limits: { tunnels: 20, pendingDials: 10, dialsPerSecond: 1000, \
                  bufferedBytes: 8MiB }\n";
    let shared = Shared::limited(limits);
    let (of_a, _of_b) = (shared.agent(&shared.a), shared.agent(&shared.b));
    let source = Upstream::start(Behavior::Source { bytes: u64::MAX }).unwrap();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    of_a.rule(DialRule::Dial);
    let flood: Vec<_> = (0..40)
        .map(|_| shared.dial(&shared.a, &source.addr().to_string()))
        .collect();
    let refused = flood.iter().filter_map(|dial| dial.as_ref().err());
    assert!(refused.clone().count() > 0);
    refused.for_each(|refusal| assert_eq!(refusal.status, 503, "{refusal:?}"));
    let mut of_b = shared.dial(&shared.b, &echo.addr().to_string()).unwrap();
    for _ in 0..50 {
        let exchange = Stopwatch::start();
        assert_eq!(of_b.echo(b"x").unwrap(), b"x");
        let dialed = shared.dial(&shared.b, &echo.addr().to_string());
        assert_eq!(dialed.unwrap().echo(b"y").unwrap(), b"y");
        assert!(
            exchange.elapsed() < Duration::from_secs(2),
            "{:?}",
            exchange.elapsed()
        );
    }
}

/// The agent of `b` has sent twice as much as each of the 16 of `a` when the server begins to read.
/// Read by tenants, it is done when two or three of `a` may be; read by agents, all would be.
#[test]
fn server_reads_tenants_equally_not_agents() {
    // Tenants share a thread, so there is one.
    let mut shared = Shared::of("", |flags| flags.flag("--workers=1"));
    let mut of_a: Vec<_> = (0..16).map(|_| shared.wire(&shared.a)).collect();
    let mut of_b = shared.wire(&shared.b);
    shared.server.signal(Signal::STOP);
    of_a.iter().for_each(|wire| send_strays(wire, 15));
    send_strays(&of_b, 30);

    shared.server.signal(Signal::CONT);

    assert!(is_read(&mut of_b, LIMIT));
    let read: Vec<_> = (of_a.iter_mut())
        .map(|wire| is_read(wire, Duration::ZERO))
        .collect();
    let before = read.iter().filter(|read| **read).count();
    assert!(before < 8, "{before} of 16 agents of `a` came first");
    for (mut wire, read) in of_a.into_iter().zip(read) {
        assert!(read || is_read(&mut wire, LIMIT));
    }
}

/// Sends so many frames of small packets for no tunnel: reading them costs the server more than
/// sending them costs here, and a link ends only at 65,536. What follows them is answered.
fn send_strays(wire: &Wire, frames: usize) {
    let strays = vec![Packet::data(1, [0; 32]); 1400];
    for _ in 0..frames {
        wire.send_together(&strays).unwrap();
    }
    wire.send(&Packet::data(LAST, *b"x")).unwrap();
}

/// Returns whether the server has read everything that was sent.
fn is_read(wire: &mut Wire, limit: Duration) -> bool {
    let close = Packet::CloseReq { connect_id: LAST };
    let answer = wire.find("the last answer", limit, |packet| *packet == close);
    answer.is_ok()
}

/// A tunnel that is not there either.
const LAST: i64 = 2;

/// The file of a tenant with a socket at `path`.
fn with_socket(tenant: &Tenant, path: &Path) -> String {
    let path = path.display();
    let uds = format!("frontends:\n  uds: {{ path: \"{path}\", mode: grpc }}\n");
    tenant.file("").replace("frontends:\n", &uds)
}

#[test]
fn missing_socket_directory_stops_no_other_tenant() {
    let dir = TempDir::new("registry").unwrap();
    let (a, b) = (Tenant::new("a", &dir), Tenant::new("b", &dir));
    let missing = dir.join("later");
    let path = missing.join("a.sock");
    dir.write("a.yaml", with_socket(&a, &path)).unwrap();
    dir.write("b.yaml", b.file("")).unwrap();
    let pki = Arc::new(Pki::new());
    let flags = ServerFlags::of(&pki, "shared", Mode::Http).registry(dir.path());
    let server = flags.start();
    let shared = Shared { server, dir, a, b };
    let failed = "rhizome_konnectivity_registry_failed_sockets";
    shared.server.wait_value(failed, &[], 1.0);
    let _agents = (shared.agent(&shared.a), shared.agent(&shared.b));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let addr = echo.addr().to_string();
    shared.dial(&shared.b, &addr).unwrap().echo(b"x").unwrap();

    std::fs::create_dir(&missing).unwrap();

    shared.server.wait_value(failed, &[], 0.0);
    let frontend = GrpcFrontend::uds(&path).unwrap();
    let mut tunnel = frontend.connect(&addr).unwrap().unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
}

/// A server with one tenant, which has a socket of its own for gRPC.
struct Single {
    server: Server,
    frontend: GrpcFrontend,
    tenant: Tenant,
    _dir: TempDir,
}

impl Single {
    /// `limits` are the tenant's.
    fn start(limits: &str) -> Self {
        let dir = TempDir::new("registry").unwrap();
        let tenant = Tenant::new("a", &dir);
        let path = dir.join("a.sock");
        let file = with_socket(&tenant, &path) + limits;
        dir.write("a.yaml", file).unwrap();
        let pki = Arc::new(Pki::new());
        let flags = ServerFlags::of(&pki, "shared", Mode::Http).registry(dir.path());
        Self {
            server: flags.start(),
            frontend: GrpcFrontend::sharing(&path).unwrap(),
            tenant,
            _dir: dir,
        }
    }
}

/// All are on one connection.
#[test]
fn grpc_streams_of_a_tenant_are_bounded() {
    let single = Single::start("limits: { tunnels: 4, pendingDials: 2 }\n");
    let open = || single.frontend.open().unwrap();
    let mut streams: Vec<_> = (0..6).map(|_| open()).collect();
    for stream in &mut streams {
        stream.head(LIMIT).unwrap();
    }

    let refused = open().end(LIMIT).unwrap();

    assert!(
        matches!(refused, End::Status { code: 8, .. }),
        "{refused:?}"
    );
    let metric = "rhizome_konnectivity_refused_dials_total";
    assert_eq!(single.server.value(metric, &[("limit", "tunnels")]), 1.0);
    streams.pop();
    wait::until("a stream", LIMIT, || open().head(LIMIT).is_ok()).unwrap();
}

#[test]
fn stream_without_dial_is_charged_and_ended() {
    let single = Single::start("");
    let mut stream = single.frontend.open().unwrap();
    // The head of a message of 1 MiB, and less than a window of it.
    let part = [&[0, 0, 16, 0, 0][..], &[0; 100_000]].concat();
    stream.send_bytes(&[part]).unwrap();

    let buffered = "rhizome_konnectivity_buffered_bytes";
    let held = || single.server.value(buffered, &[]);
    wait::until("the charge", LIMIT, || held() > 90_000.0).unwrap();

    // A handshake has 15 s, and so has what follows it.
    let end = stream.end(2 * LIMIT).unwrap();
    assert!(matches!(end, End::Status { code: 4, .. }), "{end:?}");
    single.server.wait_value(buffered, &[], 0.0);
}

#[test]
fn a_tenant_may_have_a_socket_of_its_own() {
    let Single {
        server,
        frontend,
        tenant,
        _dir,
    } = Single::start("");
    let target = AgentTarget {
        server_name: "a.kn.example.com".to_owned(),
        identity: Some(tenant.agent),
        ..server.target()
    };
    let _agent = FakeAgent::start(&target, &AgentMetadata::new("a")).unwrap();
    server.wait_status("/readyz/a", 200);
    let held = Held::new();
    let tunnel = frontend.connect(&held.addr().to_string()).unwrap().unwrap();
    drop(held.accept());
    drop(tunnel);
}
