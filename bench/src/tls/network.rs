//! A network of our own: a namespace with nothing but loopback, set up for many short connections.

use std::io::{Write, stderr};

use anyhow::Result;
use testkit::netns::{Namespace, Place, privileges};

pub(crate) fn make() -> Result<Namespace> {
    let namespace = Namespace::new("bench-tls")?;
    for (name, value) in SETTINGS {
        namespace.set_sysctl(name, value)?;
    }
    Ok(namespace)
}

/// Runs `work` in one as root, else in this machine's network; tells it which of them that is.
pub(crate) fn inside<T: Send>(work: impl FnOnce(Place<'_>, &str) -> Result<T> + Send) -> Result<T> {
    if !privileges::is_root() {
        let why = "this machine's, with its limits of ports: not root";
        let _ = writeln!(stderr(), "network: {why}");
        return work(Place::Here, why);
    }
    let namespace = make()?;
    namespace.run(|| work(Place::In(&namespace), "a namespace of its own"))?
}

/// Nearly all ports for clients, but for those that are given to listeners; ports of closed
/// connections are used again after a second, and no more of them are kept than that takes. Queues
/// are long enough for any load here, and no peer is measured with what congestion control the
/// machine happens to have.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/ip_local_port_range", "1024 65535"),
    ("ipv4/ip_local_reserved_ports", "20000-31999"),
    ("ipv4/tcp_tw_reuse", "1"),
    ("ipv4/tcp_max_tw_buckets", "16384"),
    ("ipv4/tcp_max_syn_backlog", "8192"),
    ("core/somaxconn", "8192"),
    ("ipv4/tcp_congestion_control", "reno"),
];
