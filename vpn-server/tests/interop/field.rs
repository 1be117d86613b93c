//! Where two ends meet: a shoot with a pod, a NAT, and a seed.
//!
//! ```text
//!   pod 100.96.0.10 ── 100.96.0.1 shoot 10.9.0.1, 10.9.0.3 ══ 10.9.0.2 seed
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testkit::certs::{Authority, Identity};
use testkit::command;
use testkit::http::{Connection, Proxy, Target, Upgraded};
use testkit::netns::{End, Namespace, Place, cable};
use testkit::peers::wireguard::KeyPair;
use testkit::tempdir::TempDir;
use testkit::tunnel_world::Held;
use testkit::upstream::{Behaviour, Upstream};
use testkit::wait;

use crate::everyone::Case;
use crate::nat::Nat;

/// A hang is a failure; nothing here takes half of this but what waits for WireGuard's own timers.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The addresses by which the shoot is seen in the seed: at first, and when it has moved.
pub(crate) const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
pub(crate) const AWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 3));
/// The seed.
pub(crate) const SEED: &str = "10.9.0.2";
/// The port of servers.
pub(crate) const PORT: u16 = 51_820;
/// The inner addresses.
pub(crate) const SERVER: &str = "192.168.123.1";
pub(crate) const CLIENT: &str = "192.168.123.64";
/// The pod's network, and the pod.
pub(crate) const PODS: &str = "100.96.0.0/11";
pub(crate) const POD: &str = "100.96.0.10";

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
        for outside in [HOME, AWAY] {
            let cidr = format!("{outside}/24");
            shoot.add_address("eth0", &cidr).unwrap();
        }
        seed.add_address("eth0", &format!("{SEED}/24")).unwrap();
        shoot.add_address("eth1", "100.96.0.1/24").unwrap();
        pod.add_address("eth0", &format!("{POD}/24")).unwrap();
        pod.add_route("default", "100.96.0.1").unwrap();
        let listener = Place::In(&pod).bind(echo());
        let dir = TempDir::new("interop").unwrap();
        let authority = Authority::new("tunnel").unwrap();
        let proxy = authority.server(&[SEED]).unwrap();
        proxy.write(dir.path(), "proxy").unwrap();
        authority.write(&dir.join("proxy-ca.crt")).unwrap();
        let field = Self {
            case,
            _echo: Upstream::serve(listener.unwrap(), Behaviour::Echo).unwrap(),
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
        // 32 random octets in base64, as a preshared key is.
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
        let server = format!("{SEED}:{PORT}").parse().unwrap();
        Nat::start(&self.shoot, HOME, server)
    }

    /// Connects to the echo, as often as it takes.
    pub(crate) fn connect(&self, by: By) -> Upgraded {
        let target = match by {
            By::Proxy => self.proxy(),
            By::Route => Target::plain(echo()),
        };
        let target = target.timeout(LIMIT);
        let open = || self.seed.run(|| Connection::open(&target))?;
        let connection = wait::until_ok("a connection through the tunnel", LIMIT, open);
        connection.unwrap().raw()
    }

    fn proxy(&self) -> Target {
        let proxy = SocketAddr::new(SEED.parse().unwrap(), 9443);
        Target::plain(proxy).proxy(Proxy::ConnectTls {
            authority: echo().to_string(),
            authority_pem: self.authority.pem().to_owned(),
            identity: self.api_server.clone(),
        })
    }

    /// Connects, and sends octets there and back in pieces that fit into sockets' buffers.
    pub(crate) fn stream(&self, by: By) {
        let mut connection = self.connect(by);
        let piece: Vec<u8> = (0..=250_u8).cycle().take(64 << 10).collect();
        for _ in 0..32 {
            assert!(
                connection.exchange(&piece).unwrap() == piece,
                "other octets"
            );
        }
    }

    /// Connects and holds the connection, once it has been spoken on.
    pub(crate) fn hold(&self, by: By) -> Held {
        let held = Held::hold(self.connect(by)).unwrap();
        alive(&held);
        held
    }

    /// Pings the pod from the seed by a device.
    pub(crate) fn ping(&self, device: &str) {
        let mut ping = self.seed.command(command::require("ping").unwrap());
        ping.args(["-I", device, "-c", "3", "-i", "0.2", "-W", "10", POD]);
        command::run(&mut ping).unwrap();
    }

    /// Has the shoot send something to the server's inner address, which nobody answers.
    pub(crate) fn call_from_shoot(&self) {
        let mut ping = self.shoot.command(command::require("ping").unwrap());
        ping.args(["-c", "1", "-W", "1", SERVER]);
        command::output(&mut ping).unwrap();
    }

    /// Has a namespace answer pings, or not.
    pub(crate) fn answer_pings(namespace: &Namespace, answer: bool) {
        let path = "/proc/sys/net/ipv4/icmp_echo_ignore_all";
        let write = || std::fs::write(path, if answer { "0" } else { "1" });
        namespace.run(write).unwrap().unwrap();
    }
}

/// Waits until a held connection has been spoken on some more.
pub(crate) fn alive(held: &Held) {
    held.wait_exchanges(5, LIMIT).unwrap();
}

fn echo() -> SocketAddr {
    format!("{POD}:7000").parse().unwrap()
}
