//! The machines: a namespace for each pod, joined by three bridges.
//!
//! ```text
//!   seed 10.0.0.0/16                     internet 198.51.100.0/24         shoot 100.96.0.0/11, 10.250.0.0/16
//!   api .4 ── controller .3 ── gateway .2 ═ .1 (203.0.113.1) ── vpn-shoot-n .20+n ═ 100.96.1.20+n ── pod 100.96.0.11
//!   servers .11 .12 .21, shoot's API .31                     ── agent .30 ═ 100.96.1.30               10.250.0.11
//!                                                            ── node .40
//! ```

use testkit::netns::{End, Namespace, cable};

/// The gateway, as the internet knows it.
pub(crate) const GATEWAY: &str = "203.0.113.1";

/// A node of the shoot, with a kubelet; a pod is there too.
pub(crate) const NODE: &str = "10.250.0.11";
pub(crate) const POD: &str = "100.96.0.11";

/// Who is in the seed, and at which last byte.
const SEED: [(&str, u8); 8] = [
    ("gateway", 2),
    ("controller", 3),
    ("api", 4),
    ("vpn-seed-server-0", 11),
    ("vpn-seed-server-1", 12),
    ("konnectivity-server", 21),
    ("shoot-api", 31),
    ("prometheus", 40),
];

/// Who else is in the seed where pods follow each other: each has an address of its own.
const FOLLOWING: [(&str, u8); 21] = [
    ("balancer", 1),
    ("vpn-seed-server-0b", 13),
    ("vpn-seed-server-1b", 14),
    ("konnectivity-server-0", 21),
    ("konnectivity-server-1", 22),
    ("konnectivity-server-2", 23),
    ("konnectivity-server-3", 24),
    ("other-vpn-seed-server-0", 25),
    ("other-api", 32),
    ("sni-proxy-0", 50),
    ("sni-proxy-1", 51),
    ("sni-proxy-2", 52),
    ("sni-proxy-3", 53),
    ("netpol-controller-0", 60),
    ("netpol-controller-1", 61),
    ("netpol-controller-2", 62),
    ("netpol-controller-3", 63),
    ("kube-apiserver-0", 71),
    ("kube-apiserver-1", 72),
    ("kube-apiserver-2", 73),
    ("kube-apiserver-3", 74),
];

/// Who is in the shoot and has a way to the internet, and at which last byte of either.
const SHOOT: [(&str, u8); 4] = [
    ("vpn-shoot-0", 20),
    ("vpn-shoot-1", 21),
    ("konnectivity-agent", 30),
    ("node", 40),
];

/// All namespaces.
pub(crate) struct Network {
    all: Vec<(&'static str, Namespace)>,
    switch: Namespace,
}

impl Network {
    pub(crate) fn lay() -> Self {
        let mut network = Self::with_bridges(&["seed", "internet", "shoot"]);
        for (name, _) in SEED {
            network.add_to_seed(name);
        }
        for (name, host) in SHOOT {
            network.add_to_shoot("shoot", name, host);
        }
        network.add_pod("shoot", "pod");
        let gateway = network.at("gateway");
        network.plug(gateway, "internet", "inet");
        gateway.add_address("inet", "198.51.100.1/24").unwrap();
        gateway.add_address("lo", &format!("{GATEWAY}/32")).unwrap();
        network
    }

    /// Lays nothing but the bridges.
    pub(crate) fn with_bridges(bridges: &[&str]) -> Self {
        let switch = Namespace::new("switch").unwrap();
        for bridge in bridges {
            switch.add_bridge(bridge).unwrap();
        }
        Self {
            all: Vec::new(),
            switch,
        }
    }

    /// Puts a machine into the seed.
    pub(crate) fn add_to_seed(&mut self, name: &'static str) {
        let own = self.make(name, "seed", "eth0");
        own.add_address("eth0", &format!("{}/16", Self::ip(name)))
            .unwrap();
        self.all.push((name, own));
    }

    /// Puts a machine into a shoot, with a way to the internet.
    pub(crate) fn add_to_shoot(&mut self, bridge: &str, name: &'static str, host: u8) {
        let own = self.make(name, bridge, "eth0");
        own.add_address("eth0", &format!("100.96.1.{host}/11"))
            .unwrap();
        own.add_address("eth0", &format!("10.250.1.{host}/16"))
            .unwrap();
        own.ip(&["route", "add", "100.64.0.0/13", "dev", "eth0"])
            .unwrap();
        self.plug(&own, "internet", "inet");
        own.add_address("inet", &format!("198.51.100.{host}/24"))
            .unwrap();
        own.add_route(GATEWAY, "198.51.100.1").unwrap();
        self.all.push((name, own));
    }

    /// Puts a node with a pod on it into a shoot.
    pub(crate) fn add_pod(&mut self, bridge: &str, name: &'static str) {
        let pod = self.make(name, bridge, "eth0");
        pod.add_address("eth0", &format!("{POD}/11")).unwrap();
        pod.add_address("eth0", &format!("{NODE}/16")).unwrap();
        self.all.push((name, pod));
    }

    /// Returns the namespace of a machine.
    pub(crate) fn at(&self, name: &str) -> &Namespace {
        let own = self.all.iter().find(|(own, _)| *own == name);
        &own.unwrap_or_else(|| panic!("no machine is called {name}"))
            .1
    }

    /// Returns the address of a machine in the seed.
    pub(crate) fn ip(name: &str) -> String {
        let mut all = SEED.iter().chain(&FOLLOWING);
        let host = all.find(|(own, _)| *own == name);
        format!(
            "10.0.0.{}",
            host.unwrap_or_else(|| panic!("no {name} in the seed")).1
        )
    }

    fn make(&self, name: &str, bridge: &str, device: &str) -> Namespace {
        let own = Namespace::new(name).unwrap();
        self.plug(&own, bridge, device);
        own
    }

    /// Joins a namespace's `device` to a bridge; ports are numbered.
    pub(crate) fn plug(&self, namespace: &Namespace, bridge: &str, device: &str) {
        let switch = &self.switch;
        let ports = switch.ip(&["-o", "link", "show", "type", "veth"]).unwrap();
        let port = format!("port{}", ports.lines().count());
        let ends = [(namespace, device), (switch, port.as_str())]
            .map(|(namespace, device)| End { namespace, device });
        cable(ends[0], ends[1]).unwrap();
        switch.join_bridge(bridge, &port).unwrap();
    }
}
