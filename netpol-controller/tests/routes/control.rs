//! A discovery server that a test feeds.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::channel;

use telemetry::Registry;
use testkit::background::Background;
use testkit::ports;
use tls::ServerTls;
use tokio::net::TcpListener;
use xds::{GatewayAccess, GatewayParams, Resource, Server, ServerLimits, ServerParams};

pub(crate) fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A gateway on unused ports of this host.
pub(crate) fn gateway() -> GatewayParams {
    let free = ports::free(3).unwrap();
    GatewayParams {
        address: Ipv4Addr::LOCALHOST.into(),
        tls: free[0],
        node: free[1],
        vpn: free[2],
        ..GatewayParams::default()
    }
}

/// It runs on a thread of its own, for the gateway `default`.
pub(crate) struct Control {
    server: Server,
    pub(crate) addr: SocketAddr,
    _thread: Background,
}

impl Control {
    /// Serves by mutual TLS to clients with this name, or without TLS to any; secrets only by TLS.
    pub(crate) fn start(resources: Vec<Resource>, access: Option<(ServerTls, &str)>) -> Self {
        let (tls, client) = access.unzip();
        let server = Server::new(
            ServerParams {
                tls,
                gateways: vec![GatewayAccess {
                    name: "default".to_owned(),
                    clients: client.map(str::to_owned).into_iter().collect(),
                }],
                limits: ServerLimits::default(),
                delta: true,
            },
            &Registry::new(),
        );
        let handle = server.gateway("default").unwrap();
        handle.update(resources, Vec::new());
        handle.complete();
        handle.complete_whole(true);
        let (bound, binding) = channel();
        let serving = server.clone();
        let thread = Background::spawn("xds", move || async move {
            let listener = TcpListener::bind(loopback(0)).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            serving.serve(listener, std::future::pending()).await;
        });
        Self {
            server,
            addr: binding.recv().unwrap(),
            _thread: thread.unwrap(),
        }
    }

    /// Returns what its clients said of what they refused last.
    pub(crate) fn refused(&self) -> Vec<String> {
        let clients = self.server.clients().into_iter();
        let types = clients.flat_map(|client| client.types);
        types.filter_map(|(_, one)| one.nack).collect()
    }
}
