//! A server in this process, with a stand-in for its tunnels.

mod dns;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use serve::Drain;
use telemetry::{EndpointAddr, LogControl, Registry};
use testkit::certs::{Authority, Identity as Certificate};
use testkit::http::{Connection, Response, Target};
use testkit::konnectivity::HttpFrontend;
use testkit::metrics::Metrics;
use testkit::tempdir::TempDir;
use testkit::wait;
use tokio::sync::watch;
use tunnel::{Identity, IdentityError, PeerStatus, Status};
use vpn_server::{Config, Environment, Link, Parts, Server, Shoot, keygen};

pub(crate) use dns::Dns;

/// A hang is a failure; nothing here takes a tenth of this.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Calls that the tunnels received.
pub(crate) enum Call {
    Accepted(TcpStream, SocketAddr),
    Drain,
    Replace(Identity),
    Stop,
}

/// Stands in for the tunnels.
#[derive(Clone)]
struct FakeLink {
    calls: Sender<Call>,
    status: watch::Receiver<Arc<Status>>,
}

impl FakeLink {
    fn record(&self, call: Call) {
        // A test that has what it wanted no longer listens.
        let _ = self.calls.send(call);
    }
}

impl Link for FakeLink {
    fn accept(&self, stream: TcpStream, from: SocketAddr) {
        self.record(Call::Accepted(stream, from));
    }

    async fn drain(&self) {
        self.record(Call::Drain);
    }

    async fn replace(&self, identity: Identity) -> Result<(), IdentityError> {
        self.record(Call::Replace(identity));
        Ok(())
    }

    async fn stop(&self) {
        self.record(Call::Stop);
    }

    fn watch(&self) -> watch::Receiver<Arc<Status>> {
        self.status.clone()
    }
}

/// A server. Dropping it cuts its connections and waits for its end.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) authority: Authority,
    pub(crate) proxy: SocketAddr,
    pub(crate) tunnel: SocketAddr,
    pub(crate) probes: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) calls: Receiver<Call>,
    pub(crate) status: Option<watch::Sender<Arc<Status>>>,
    pub(crate) drain: Drain,
    /// Ends with whether it ended as asked.
    thread: Option<JoinHandle<bool>>,
}

/// What is known once a server has started.
struct Started {
    addresses: [SocketAddr; 4],
    drain: Drain,
}

/// Writes keys, peers and certificates, and returns a configuration that names them.
pub(crate) fn files(dir: &TempDir, authority: &Authority) -> Value {
    authority.write(&dir.join("ca.crt")).unwrap();
    let server = authority.server(&["127.0.0.1", "localhost"]).unwrap();
    server.write(dir.path(), "tls").unwrap();
    keygen(&dir.join("own")).unwrap();
    let peer = keygen(&dir.join("peer")).unwrap();
    dir.write("peers.yaml", peers(&[("a", &peer.to_string())]))
        .unwrap();
    json!({
        "addresses": ["192.168.123.1/24"],
        "networks": { "pods": ["100.96.0.0/11"] },
        "keys": { "private": ["own"], "peers": "peers.yaml" },
        "listen": { "tcp": "127.0.0.1:0", "udp": null, "wrapped": null },
        "proxy": { "address": "127.0.0.1:0", "ca": "ca.crt", "cert": "tls.crt", "key": "tls.key" },
        "probes": { "address": "127.0.0.1:0" },
        "admin": { "address": "127.0.0.1:0" },
        "drain": { "timeout": "1s" },
    })
}

/// Returns a file of peers, each with one key and an address of its own.
pub(crate) fn peers(peers: &[(&str, &str)]) -> String {
    let peers = peers.iter().enumerate().map(|(at, (name, key))| {
        json!({
            "name": name, "publicKeys": [key],
            "addresses": [format!("192.168.123.{}", 64 + at)],
        })
    });
    json!({ "peers": peers.collect::<Vec<_>>() }).to_string()
}

/// Returns `base` with the keys of `more` in place, block by block.
pub(crate) fn with(mut base: Value, more: &Value) -> Value {
    match (&mut base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                let before = base.remove(key).unwrap_or(Value::Null);
                base.insert(key.clone(), with(before, value));
            }
        }
        (base, more) => *base = more.clone(),
    }
    base
}

/// Returns a status with one client.
pub(crate) fn one_client(healthy: bool, draining: bool) -> Arc<Status> {
    Arc::new(Status {
        peers: vec![PeerStatus {
            name: "a".to_owned(),
            healthy,
            draining,
            ..PeerStatus::default()
        }],
        draining: false,
        strangers: 0,
    })
}

impl Rig {
    /// Starts with a healthy tunnel; the shoot is the loopback network.
    pub(crate) fn start(more: &Value) -> Self {
        Self::start_with(more, &[])
    }

    /// As [`Rig::start`], with DNS servers of the shoot.
    pub(crate) fn start_with(more: &Value, resolvers: &[SocketAddr]) -> Self {
        let dir = TempDir::new("vpn-server").unwrap();
        let authority = Authority::new("ca").unwrap();
        let text = with(files(&dir, &authority), more).to_string();
        let file = dir.write("server.yaml", &text).unwrap();
        let config = Config::load(&file, &Environment::default()).unwrap();
        let networks = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap());
        let shoot = Shoot::around_host(&networks, resolvers);
        let (sender, calls) = channel();
        let (status, watched) = watch::channel(one_client(true, false));
        let link = FakeLink {
            calls: sender,
            status: watched,
        };
        let (started, starting) = channel();
        let thread = std::thread::spawn(move || run(config, shoot, link, &started));
        let Ok(Started { addresses, drain }) = starting.recv_timeout(LIMIT) else {
            panic!("the server did not start with {text}");
        };
        let [proxy, tunnel, probes, admin] = addresses;
        Self {
            dir,
            authority,
            proxy,
            tunnel,
            probes,
            admin,
            calls,
            status: Some(status),
            drain,
            thread: Some(thread),
        }
    }

    /// Returns an API server that has a certificate of the right authority.
    pub(crate) fn api_server(&self) -> HttpFrontend {
        let identity = self.authority.client("kube-apiserver", &[], &[]).unwrap();
        self.client(Some(&identity))
    }

    /// Returns a client with the given certificate.
    pub(crate) fn client(&self, identity: Option<&Certificate>) -> HttpFrontend {
        HttpFrontend::tls(self.proxy, "localhost", self.authority.pem(), identity).unwrap()
    }

    /// Sets what is known of the tunnels.
    pub(crate) fn set_status(&self, status: Arc<Status>) {
        let sender = self.status.as_ref().unwrap();
        sender.send_replace(status);
    }

    /// Waits for the next call.
    pub(crate) fn call(&self) -> Call {
        self.calls.recv_timeout(LIMIT).unwrap()
    }

    /// Returns whether there was no further call.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(
            self.calls.recv_timeout(Duration::ZERO),
            Err(RecvTimeoutError::Timeout)
        )
    }

    /// Asks a probe or the admin address.
    pub(crate) fn ask(at: SocketAddr, method: &str, path: &str) -> Response {
        let mut connection = Connection::open(&Target::plain(at)).unwrap();
        connection.request(method, path, None).unwrap()
    }

    pub(crate) fn ready(&self) -> u16 {
        Self::ask(self.probes, "GET", "/readyz").status
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::parse(&Self::ask(self.probes, "GET", "/metrics").text()).unwrap()
    }

    /// Waits until samples add up to `wanted`.
    pub(crate) fn wait_value(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        let mut last = None;
        let reached = wait::until(&format!("{name}{labels:?} = {wanted}"), LIMIT, || {
            last = self.metrics().value(name, labels);
            last.unwrap_or(0.0) == wanted
        });
        assert!(reached.is_ok(), "{reached:?}; last seen: {last:?}");
    }

    /// Waits until the proxy has closed `count` connections for `reason`.
    pub(crate) fn wait_closed(&self, reason: &str, count: u32) {
        let labels = [("listener", "proxy"), ("reason", reason)];
        self.wait_value(
            "rhizome_connections_closed_total",
            &labels,
            f64::from(count),
        );
    }

    /// Waits for the server's end, and answers whether it ended as asked.
    pub(crate) fn end(&mut self) -> bool {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.drain.cut();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

fn run(config: Config, shoot: Shoot, link: FakeLink, started: &Sender<Started>) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let parts = Parts {
            shoot,
            link,
            identity: config.identity().unwrap(),
            registry: Registry::new(),
            log: LogControl::detached(),
        };
        let server = Server::start(config, parts).unwrap();
        let tcp = |address: &EndpointAddr| match address {
            EndpointAddr::Tcp(address) => *address,
            other @ (EndpointAddr::None | EndpointAddr::Unix(_)) => panic!("{other}"),
        };
        let addresses = [
            server.proxy_address(),
            server.tunnel_address().unwrap(),
            tcp(server.probes_address()),
            tcp(server.admin_address()),
        ];
        let drain = server.drain().clone();
        started.send(Started { addresses, drain }).unwrap();
        server.run(None).await.is_ok()
    })
}
