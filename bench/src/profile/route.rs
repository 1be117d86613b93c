//! One name that is routed, as every protocol calls it.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) name: String,
    /// The destination in a PROXY header, with port 443.
    pub(crate) destination: Ipv4Addr,
    /// The value of a CONNECT's header, and the name of a cluster.
    pub(crate) cluster: String,
    pub(crate) backend: SocketAddr,
}

impl Route {
    /// Makes the route number `nth`, at most 16 million.
    pub(crate) fn numbered(nth: u32, backend: SocketAddr) -> Self {
        let [_, high, middle, low] = nth.to_be_bytes();
        Self {
            name: format!("api.shoot{nth}.bench.example.com"),
            destination: Ipv4Addr::new(10, high, middle, low),
            cluster: format!(
                "outbound|443||kube-apiserver.shoot--bench--shoot{nth}.svc.cluster.local"
            ),
            backend,
        }
    }

    pub(crate) fn table(count: u32, backend: SocketAddr) -> Vec<Self> {
        (0..count).map(|nth| Self::numbered(nth, backend)).collect()
    }

    pub(crate) fn facts(&self) -> Value {
        json!({
            "name": self.name,
            "destination": self.destination,
            "cluster": self.cluster,
            "backend": self.backend,
            "backend_ip": self.backend.ip(),
            "backend_port": self.backend.port(),
        })
    }
}
