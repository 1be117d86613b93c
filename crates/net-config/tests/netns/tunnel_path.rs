//! Packets through both ends of a tunnel whose sides use the same addresses.
//!
//! ```text
//!   server namespace (seed)            line              client namespace       shoot namespace
//!   eth0 10.0.0.5/16
//!   rhizome0 192.168.123.1  ═══════════════════  rhizome0 192.168.123.64
//!                                                eth0 10.0.0.1/8 ────────────── eth0 10.0.0.5/8
//! ```
//!
//! A line of two TUN devices stands in for tunnel and WireGuard. Everything around it is set up by
//! this crate.

use std::{
    fs,
    io::Write,
    net::{IpAddr, SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use ipnet::IpNet;
use net_config::{
    Forwarding, ReversePath, Rules, SourceChecks, TunnelDevice, TunnelRoutes, setup_ipv6_forwarding,
};
use testkit::{
    impair::Link,
    netns::{End, Namespace, cable},
};
use tokio::{io::AsyncReadExt, net::TcpSocket, time::timeout};

const TUNNEL: &str = "rhizome0";
/// On both sides: the server's own, and a pod's of the shoot.
const SAME: [&str; 2] = ["10.0.0.5:8080", "[fd00:1::5]:8080"];
/// Another pod of the shoot; on the server's side no host, but the subnet's broadcast address.
const OTHER: &str = "10.0.255.255:8080";
const NETWORKS: [&str; 2] = ["10.0.0.0/8", "fd00:1::/64"];

#[test]
fn bound_socket_reaches_pod_with_own_address() {
    let world = World::new("0");

    for address in SAME {
        assert_eq!(world.ask(None, address), answer("seed", own(address)));
        let through = world.ask(Some(TUNNEL), address);
        assert_eq!(through, answer("shoot", uplink(address)));
    }
    let through = world.ask(Some(TUNNEL), OTHER);
    assert_eq!(through, answer("shoot", "10.0.0.1"));
}

#[test]
fn bound_socket_works_with_strict_rp_filter() {
    let world = World::new("1");

    for address in SAME {
        assert_eq!(world.ask(None, address), answer("seed", own(address)));
        let through = world.ask(Some(TUNNEL), address);
        assert_eq!(through, answer("shoot", uplink(address)));
    }
}

#[test]
fn shoot_sees_client_only_if_masqueraded() {
    let world = World::new("0");
    let masquerade = Rules::masquerade("rhizome", TUNNEL).unwrap();
    world
        .shoot
        .add_route("192.168.123.0/24", "10.0.0.1")
        .unwrap();
    world.shoot.add_route("fd8f::/96", "fd00:1::1").unwrap();

    world
        .client
        .inside(async || masquerade.remove().await.unwrap());
    for (address, source) in SAME.into_iter().zip(["192.168.123.1", "fd8f::1"]) {
        assert_eq!(world.ask(Some(TUNNEL), address), answer("shoot", source));
    }

    world
        .client
        .inside(async || masquerade.install().await.unwrap());
    for address in SAME {
        let through = world.ask(Some(TUNNEL), address);
        assert_eq!(through, answer("shoot", uplink(address)));
    }
}

#[test]
fn connections_survive_second_installation() {
    let world = World::new("0");
    let to: SocketAddr = SAME[0].parse().unwrap();
    let (listener, stream) = world.shoot_listens_and_server_connects(to, 9090);

    world.set_up("0");

    let (mut near, _) = listener.accept().unwrap();
    near.write_all(b"still here").unwrap();
    drop(near);
    assert_eq!(read_all(stream), "still here");
}

/// Seed, client and shoot, with a tunnel between the first two.
struct World {
    server: Namespace,
    client: Namespace,
    shoot: Namespace,
    _line: Link,
    _seed: Namespace,
}

impl World {
    /// `rp_filter` is the server's `net.ipv4.conf.all.rp_filter`.
    fn new(rp_filter: &str) -> Self {
        let names = ["server", "client", "shoot", "seed"];
        let [server, client, shoot, seed] = names.map(|name| Namespace::new(name).unwrap());
        let end = |namespace, device| End { namespace, device };
        cable(end(&server, "eth0"), end(&seed, "server0")).unwrap();
        cable(end(&client, "eth0"), end(&shoot, "eth0")).unwrap();
        for (namespace, addresses) in [
            (&server, ["10.0.0.5/16", "fd00:1::5/64"]),
            (&client, ["10.0.0.1/8", "fd00:1::1/64"]),
            (&shoot, ["10.0.0.5/8", "fd00:1::5/64"]),
        ] {
            for address in addresses {
                namespace.add_address("eth0", address).unwrap();
            }
        }
        shoot
            .ip(&["addr", "add", "10.0.255.255/8", "dev", "eth0"])
            .unwrap();
        server.add_route("default", "10.0.0.9").unwrap();
        let line = Link::lay(end(&server, TUNNEL), end(&client, TUNNEL), 1420, 1).unwrap();
        let world = Self {
            server,
            client,
            shoot,
            _line: line,
            _seed: seed,
        };
        world.set_up(rp_filter);
        for address in SAME {
            world.serve(&world.server, "seed", address);
            world.serve(&world.shoot, "shoot", address);
        }
        world.serve(&world.shoot, "shoot", OTHER);
        world
    }

    fn set_up(&self, rp_filter: &str) {
        let networks: Vec<IpNet> = NETWORKS.map(|text| text.parse().unwrap()).to_vec();
        self.server.inside(async || {
            fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", rp_filter).unwrap();
            let device = device(["192.168.123.1/24", "fd8f::1/96"], false);
            device.configure().await.unwrap();
            let routes = TunnelRoutes {
                device: TUNNEL.to_owned(),
                table: TunnelRoutes::DEFAULT_TABLE,
                priority: TunnelRoutes::DEFAULT_PRIORITY,
                sources: device.addresses.iter().map(IpNet::addr).collect(),
                networks: networks.clone(),
            };
            routes.install().await.unwrap();
            let checks = SourceChecks {
                device: TUNNEL.to_owned(),
                networks: networks.clone(),
            };
            let expected = if rp_filter == "0" {
                ReversePath::Off
            } else {
                ReversePath::Loose
            };
            assert_eq!(checks.relax().await.unwrap().0, expected);
        });
        self.client.inside(async || {
            fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1").unwrap();
            let device = device(["192.168.123.64/24", "fd8f::b:0/96"], true);
            device.configure().await.unwrap();
            setup_ipv6_forwarding(false).unwrap();
            let forwarding = Forwarding {
                device: TUNNEL.to_owned(),
                networks: networks.clone(),
            };
            assert_eq!(forwarding.enable().await.unwrap().uplinks, ["eth0"]);
            Rules::masquerade("rhizome", TUNNEL)
                .unwrap()
                .install()
                .await
                .unwrap();
        });
    }

    /// Sends `side` and the client's address to every client of `address` in `namespace`.
    fn serve(&self, namespace: &Namespace, side: &'static str, address: &str) {
        let listener = namespace
            .run(|| TcpListener::bind(address))
            .unwrap()
            .unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, from)) = listener.accept() {
                let _ = stream.write_all(answer(side, from.ip()).as_bytes());
            }
        });
    }

    /// What is answered to the server when it connects to `address` by `device`.
    fn ask(&self, device: Option<&str>, address: &str) -> String {
        let to = address.parse().unwrap();
        self.server.inside(async || {
            let mut heard = String::new();
            let mut stream = connect(device, to).await;
            stream.read_to_string(&mut heard).await.unwrap();
            heard
        })
    }

    fn shoot_listens_and_server_connects(
        &self,
        to: SocketAddr,
        port: u16,
    ) -> (TcpListener, std::net::TcpStream) {
        let to = SocketAddr::new(to.ip(), port);
        let listener = self.shoot.run(|| TcpListener::bind(to)).unwrap().unwrap();
        let stream = self.server.inside(async || {
            let stream = connect(Some(TUNNEL), to).await;
            stream.into_std().unwrap()
        });
        (listener, stream)
    }
}

/// Runs a future inside a namespace, on a thread and runtime of its own.
trait Inside {
    fn inside<T: Send>(&self, job: impl AsyncFnOnce() -> T + Send) -> T;
}

impl Inside for Namespace {
    fn inside<T: Send>(&self, job: impl AsyncFnOnce() -> T + Send) -> T {
        self.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            // A hang is a failure; nothing here takes a tenth of this.
            let limit = Duration::from_secs(30);
            runtime.block_on(async { timeout(limit, job()).await.expect("the test hangs") })
        })
        .unwrap()
    }
}

async fn connect(device: Option<&str>, to: SocketAddr) -> tokio::net::TcpStream {
    let socket = match to {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
    .unwrap();
    socket.bind_device(device.map(str::as_bytes)).unwrap();
    socket.connect(to).await.unwrap()
}

fn read_all(stream: std::net::TcpStream) -> String {
    use std::io::Read;

    stream.set_nonblocking(false).unwrap();
    let mut heard = String::new();
    (&stream).read_to_string(&mut heard).unwrap();
    heard
}

fn device(addresses: [&str; 2], prefix_routes: bool) -> TunnelDevice {
    TunnelDevice {
        device: TUNNEL.to_owned(),
        mtu: 1400,
        queue_packets: 2000,
        addresses: addresses.map(|text| text.parse().unwrap()).to_vec(),
        prefix_routes,
    }
}

fn answer(side: &str, from: impl ToString) -> String {
    format!("{side} saw {}", from.to_string())
}

/// The server's own address of the same family.
fn own(address: &str) -> IpAddr {
    address.parse::<SocketAddr>().unwrap().ip()
}

/// The client's address on its uplink, of the same family.
fn uplink(address: &str) -> &'static str {
    if address.starts_with('[') {
        "fd00:1::1"
    } else {
        "10.0.0.1"
    }
}
