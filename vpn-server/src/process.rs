//! The program around the server: keys and network in place, then the tunnel, then the server, and
//! all of it taken back.
//!
//! ```text
//!   keys, peers ─▶ TUN device, routes ─▶ UDP ports ─▶ Tunnel ─▶ Server ─▶ … ─▶ routes removed
//! ```
//!
//! Needs `CAP_NET_ADMIN`; what works without it is `server`'s.

use std::io;
use std::net::SocketAddr;

use serve::Signals;
use settings::ListenAddress;
use telemetry::{LogControl, Registry};
use tunnel::device::Device;
use tunnel::stream::StreamParams;
use tunnel::{Identity, Params, Role, Sockets, Tunnel, filter};

use crate::config::Config;
use crate::error::ServerError;
use crate::network::Networking;
use crate::proxy::Shoot;
use crate::server::{Parts, Server};

/// Runs the program until a stop signal.
///
/// # Errors
/// Why it did not start or go on; routes and rules were taken back.
pub async fn run(config: Config, log: LogControl, signals: Signals) -> Result<(), ServerError> {
    let identity = config.identity()?;
    let (device, networking) = Networking::set_up(&config).await?;
    let ended = serve(config, identity, device, log, signals).await;
    networking.take_down().await;
    ended
}

async fn serve(
    config: Config,
    identity: Identity,
    device: Device,
    log: LogControl,
    signals: Signals,
) -> Result<(), ServerError> {
    let registry = Registry::new();
    let bound = |at: Option<ListenAddress>| at.map(|at| bind(at.0, &config)).transpose();
    let sockets = Sockets {
        device,
        udp: bound(config.listen.udp)?,
        wrapped: bound(config.wrapped())?,
        trusted_gateways: config.trusted_gateways.iter().map(|cidr| cidr.0).collect(),
    };
    let (link, _) = Tunnel::start(params(&config), identity.clone(), sockets, &registry)?;
    let parts = Parts {
        shoot: Shoot::behind_tunnel(&config),
        link: link.clone(),
        identity,
        registry,
        log,
    };
    match Server::start(config, parts) {
        Ok(server) => server.run(Some(signals)).await,
        Err(error) => {
            link.stop().await;
            Err(error)
        }
    }
}

fn params(config: &Config) -> Params {
    Params {
        role: Role::Server {
            route: config.route,
            networks: config.networks.all(),
            filter: filter::Params {
                max_flows: config.flows,
                ..filter::Params::default()
            },
        },
        name: config.name.clone(),
        addresses: config.inner.iter().map(|own| own.addr()).collect(),
        mtu: config.mtu,
        stream: StreamParams {
            queue: config.queue.params(),
            notsent_lowat: config.tcp_options.notsent_lowat,
            hello_timeout: config.limits.hello_timeout.0,
        },
        offloads: config.offloads.of_udp(),
    }
}

fn bind(address: SocketAddr, config: &Config) -> Result<std::net::UdpSocket, ServerError> {
    let failed = |source| ServerError::Port { address, source };
    let buffers = config.buffers.sizes();
    let mut sockets = udp::bind(address, 1, buffers).map_err(failed)?;
    let socket = sockets.pop();
    let socket = socket.ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))?;
    let bound = socket.local_addr().map_or(address, serve::unmapped);
    let (granted, wanted) = (udp::granted(&socket).unwrap_or(0), buffers.receive);
    tracing::info!(address = %bound, receive_buffer = granted, "bound for datagrams");
    if granted < wanted {
        tracing::warn!(
            granted,
            wanted,
            "net.core.rmem_max bounds the receive buffer"
        );
    }
    Ok(socket)
}
