//! Without an API server that answers: it lives, says what it waits for, and ends at once.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use testkit::http::{Connection, Target};
use testkit::ports;
use testkit::tempdir::TempDir;

use crate::child::Child;

/// The process ends within this after SIGTERM.
const END: Duration = Duration::from_secs(1);

/// An API server that takes connections and says nothing, ever.
pub(crate) struct Mute {
    pub(crate) addr: SocketAddr,
    _listener: TcpListener,
}

impl Mute {
    pub(crate) fn start() -> Self {
        // The kernel completes handshakes for as many as wait in the backlog; they are never
        // accepted.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        Self {
            addr,
            _listener: listener,
        }
    }
}

/// A configuration for the API server at `addr`, with everything switched on.
pub(crate) fn config(dir: &TempDir, addr: SocketAddr, election: bool) -> String {
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\n\
         clusters: [{{ name: c, cluster: {{ server: \"http://{addr}\" }} }}]\n\
         users: [{{ name: u, user: {{ token: t }} }}]\n\
         contexts: [{{ name: x, context: {{ cluster: c, user: u }} }}]\ncurrent-context: x\n"
    );
    dir.write("conf/kubeconfig", kubeconfig).unwrap();
    format!(
        "kubeconfig: conf/kubeconfig\n\
         leaderElection: {{ enabled: {election} }}\n\
         probes: {{ address: \"127.0.0.1:0\" }}\n\
         admin: {{ address: \"127.0.0.1:0\" }}\n\
         controllers:\n  \
           namespacePolicies: {{ enabled: true, cluster: {{ services: [\"10.0.0.0/24\"] }} }}\n  \
           routing:\n    enabled: true\n    \
             gateways: [{{ name: default, namespace: istio-ingress, selector: {{ a: b }} }}]\n    \
             xds: {{ address: \"127.0.0.1:0\" }}\n"
    )
}

fn waits_and_ends(addr: SocketAddr, election: bool) {
    let dir = TempDir::new("lonely").unwrap();
    let mut child = Child::start(dir.path(), "controller", &config(&dir, addr, election));
    assert_eq!(Child::ask(child.probes, "GET", "/healthz").status, 200);
    let ready = Child::ask(child.probes, "GET", "/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("API server"), "{}", ready.text());
    let (status, took) = child.terminate();
    assert_eq!(status.code(), Some(0), "{}", child.guard.log_tail(20));
    assert!(took < END, "{took:?}");
}

#[test]
fn refusing_api_server_is_retried() {
    let addr = SocketAddr::from(([127, 0, 0, 1], ports::free(1).unwrap()[0]));
    waits_and_ends(addr, true);
    waits_and_ends(addr, false);
}

#[test]
fn silent_api_server_delays_nothing() {
    let mute = Mute::start();
    waits_and_ends(mute.addr, true);
    waits_and_ends(mute.addr, false);
}

#[test]
fn admin_shows_config_and_snapshot() {
    let (dir, mute) = (TempDir::new("admin").unwrap(), Mute::start());
    let child = Child::start(dir.path(), "controller", &config(&dir, mute.addr, true));
    let config = child.admin_json("/config");
    assert_eq!(
        config["leaderElection"]["name"],
        "rhizome-netpol-controller"
    );
    assert_eq!(config["controllers"]["networkPolicy"]["concurrentSyncs"], 5);
    let snapshot = child.admin_json("/snapshot");
    assert_eq!(snapshot["synced"], false);
    assert_eq!(snapshot["leading"], false);
    assert_eq!(snapshot["gateways"]["default"]["routes"], 0, "{snapshot}");
    for path in ["/", "/log", "/connections", "/metrics", "/healthz"] {
        assert_eq!(Child::ask(child.admin, "GET", path).status, 200, "{path}");
    }
    for path in ["/config", "/snapshot", "/log"] {
        assert_eq!(Child::ask(child.probes, "GET", path).status, 404, "{path}");
    }
    let mut connection = Connection::open(&Target::plain(child.admin)).unwrap();
    let set = |connection: &mut Connection, filter: &str| {
        connection
            .request("PUT", "/log", Some(filter))
            .unwrap()
            .status
    };
    assert_eq!(set(&mut connection, "info,netpol_controller=debug"), 200);
    for nonsense in ["netpol_controller=shout", "nonsense=debug", ""] {
        assert_eq!(set(&mut connection, nonsense), 400, "{nonsense:?}");
    }
    let filter = Child::ask(child.admin, "GET", "/log").text();
    assert!(filter.contains("netpol_controller=debug"), "{filter}");
}

#[test]
fn bind_failure_exits_1() {
    let (dir, mute) = (TempDir::new("bind").unwrap(), Mute::start());
    let config = config(&dir, mute.addr, true);
    for key in ["probes", "admin", "xds"] {
        let free = format!("{key}: {{ address: \"127.0.0.1:0\" }}");
        let taken = format!("{key}: {{ address: \"{}\" }}", mute.addr);
        dir.write("controller.yaml", config.replace(&free, &taken))
            .unwrap();
        let output = crate::child::run(dir.path(), &["--config", "controller.yaml"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{key}: {text}");
        assert!(text.contains(&mute.addr.to_string()), "{key}: {text}");
    }
}
