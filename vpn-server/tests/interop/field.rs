//! Where two ends meet: a shoot with a pod, a NAT, and a seed.
//!
//! ```text
//!   pod ── eth1 shoot eth0 ══ eth0 seed
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testkit::certs::{Authority, Identity};
use testkit::command;
use testkit::http::{Connection, Proxy, Target, Upgraded};
use testkit::netns::{End, Namespace, Place, cable};
use testkit::peers::wireguard::KeyPair;
use testkit::tempdir::TempDir;
use testkit::tunnel_world::{Held, PROXY_NAME};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::addresses::Addresses;
use crate::everyone::Case;
use crate::nat::Nat;

/// A hang is a failure; nothing here takes a third of this but what waits for timers of WireGuard, and
/// of TCP in a connection that was silent for long.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);

/// How a connection gets into the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Through our server's proxy, as an API server's.
    Proxy,
    /// By a route of the seed.
    Route,
}

/// The place of a test. Programs are dropped before it.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) case: Case,
    pub(crate) addresses: &'static Addresses,
    pub(crate) shoot: Namespace,
    pub(crate) seed: Namespace,
    _pod: Namespace,
    pub(crate) dir: TempDir,
    pub(crate) client: KeyPair,
    pub(crate) server: KeyPair,
    /// Signs the proxy's certificate and those of its clients.
    authority: Authority,
    api_server: Identity,
    _echo: Upstream,
}

impl Field {
    /// Makes namespaces, keys and certificates, and starts the echo of the pod.
    pub(crate) fn lay(case: Case) -> Self {
        let make = |label| Namespace::new(label).unwrap();
        let (shoot, seed, pod) = (make("shoot"), make("seed"), make("pod"));
        let end = |namespace, device| End { namespace, device };
        cable(end(&shoot, "eth0"), end(&seed, "eth0")).unwrap();
        cable(end(&shoot, "eth1"), end(&pod, "eth0")).unwrap();
        let addresses = case.addresses;
        for (namespace, device, address) in [
            (&shoot, "eth0", addresses.home),
            (&shoot, "eth0", addresses.away),
            (&seed, "eth0", addresses.seed),
            (&shoot, "eth1", addresses.router),
            (&pod, "eth0", addresses.pod),
        ] {
            let cidr = addresses.cidr(address);
            namespace.add_address(device, &cidr).unwrap();
        }
        let router = addresses.router.to_string();
        pod.add_route("default", &router).unwrap();
        let listener = Place::In(&pod).bind(addresses.echo());
        let dir = TempDir::new("interop").unwrap();
        let authority = Authority::new("tunnel").unwrap();
        let proxy = authority.server(&[PROXY_NAME]).unwrap();
        proxy.write(dir.path(), "proxy").unwrap();
        authority.write(&dir.join("proxy-ca.crt")).unwrap();
        let field = Self {
            case,
            addresses,
            _echo: Upstream::serve(listener.unwrap(), Behavior::Echo).unwrap(),
            api_server: authority.client("kube-apiserver", &[], &[]).unwrap(),
            authority,
            client: KeyPair::generate().unwrap(),
            server: KeyPair::generate().unwrap(),
            shoot,
            seed,
            _pod: pod,
            dir,
        };
        field.write_keys();
        field
    }

    fn write_keys(&self) {
        // 32 random bytes in base64, as a preshared key is.
        let shared = KeyPair::generate().unwrap().private;
        for (file, key) in [
            ("client.key", &self.client.private),
            ("server.key", &self.server.private),
            ("preshared", &shared),
        ] {
            let path = self.dir.write(file, format!("{key}\n")).unwrap();
            command::run(Command::new("chmod").arg("600").arg(path)).unwrap();
        }
    }

    /// Returns the file of the preshared key, if there is one.
    pub(crate) fn preshared(&self) -> Option<PathBuf> {
        self.case.preshared.then(|| self.dir.join("preshared"))
    }

    /// Starts the NAT.
    pub(crate) fn nat(&self) -> Nat<'_> {
        Nat::start(&self.shoot, self.addresses)
    }

    /// Connects to the echo, as often as it takes.
    pub(crate) fn connect(&self, by: By) -> Upgraded {
        let target = match by {
            By::Proxy => self.proxy(),
            By::Route => Target::plain(self.addresses.echo()),
        };
        let target = target.timeout(LIMIT);
        let open = || self.seed.run(|| Connection::open(&target))?;
        let connection = wait::until_ok("a connection through the tunnel", LIMIT, open);
        connection.unwrap().raw()
    }

    fn proxy(&self) -> Target {
        let proxy = SocketAddr::new(self.addresses.seed, 9443);
        Target::plain(proxy).proxy(Proxy::ConnectTls {
            authority: self.addresses.echo().to_string(),
            server_name: PROXY_NAME.to_owned(),
            authority_pem: self.authority.pem().to_owned(),
            identity: self.api_server.clone(),
        })
    }

    /// Connects, and sends bytes there and back in pieces that fit into sockets' buffers.
    pub(crate) fn stream(&self, by: By) {
        let mut connection = self.connect(by);
        let piece: Vec<u8> = (0..=250_u8).cycle().take(64 << 10).collect();
        for _ in 0..32 {
            assert!(connection.exchange(&piece).unwrap() == piece, "other bytes");
        }
    }

    /// Connects and holds the connection, once it has been spoken on.
    pub(crate) fn hold(&self, by: By) -> Held {
        let held = Held::hold(self.connect(by)).unwrap();
        alive(&held);
        held
    }

    /// Pings the pod from the seed by a device, as often as it takes the shoot to find the pod.
    pub(crate) fn ping(&self, device: &str) {
        let mut ping = self.seed.command(command::require("ping").unwrap());
        ping.args(["-I", device, "-c", "3", "-i", "0.2", "-W", "10"]);
        ping.arg(self.addresses.pod.to_string());
        wait::until_ok("a ping", LIMIT, || command::run(&mut ping)).unwrap();
    }

    /// Has the shoot ping the server's inner address, which does not answer.
    pub(crate) fn call_from_shoot(&self) {
        let mut ping = self.shoot.command(command::require("ping").unwrap());
        ping.args(["-c", "1", "-W", "1"]);
        ping.arg(self.addresses.server.to_string());
        command::output(&mut ping).unwrap();
    }

    /// Has a namespace answer pings, or not.
    pub(crate) fn answer_pings(&self, namespace: &Namespace, answer: bool) {
        let value = if answer { "0" } else { "1" };
        set(namespace, self.addresses.ignore_pings, value);
    }

    /// Has the shoot carry packets between its devices.
    pub(crate) fn forward(&self) {
        set(&self.shoot, self.addresses.forwarding, "1");
    }
}

fn set(namespace: &Namespace, switch: &str, value: &str) {
    let write = || std::fs::write(format!("/proc/sys/net/{switch}"), value);
    namespace.run(write).unwrap().unwrap();
}

/// Waits until a held connection has been spoken on some more.
pub(crate) fn alive(held: &Held) {
    held.wait_exchanges(5, LIMIT).unwrap();
}
