//! Which clients may have the resources of a gateway.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::{Gateway, Inner};
use crate::proto::discovery::Node;

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) addr: SocketAddr,
    /// The names in its certificate; `None` without TLS.
    pub(super) names: Option<Arc<[String]>>,
}

telemetry::labels! {
    /// Why a stream is refused.
    pub(super) enum Refusal {
        Denied = "denied",
        Limit = "limit",
        Malformed = "malformed",
        NoNode = "no_node",
        Timeout = "timeout",
        UnknownGateway = "unknown_gateway",
    }
}

impl Refusal {
    pub(super) fn status(self) -> Status {
        match self {
            Self::Denied => Status::permission_denied(
                "no name in the client's certificate is among those of the gateway",
            ),
            Self::Limit => Status::resource_exhausted("too many streams"),
            Self::Malformed => Status::invalid_argument("the first request cannot be read"),
            Self::NoNode => Status::invalid_argument("the first request names no node"),
            Self::Timeout => Status::deadline_exceeded("no first request came"),
            Self::UnknownGateway => {
                Status::not_found("node.cluster is the name of no gateway that is served")
            }
        }
    }
}

/// Finds the gateway of a client and whether it may have its resources.
pub(super) fn admit(
    inner: &Inner,
    peer: &Peer,
    node: Option<&Node>,
) -> Result<Arc<Gateway>, Refusal> {
    let node = node.ok_or(Refusal::NoNode)?;
    let gateway = inner
        .gateways
        .get(node.cluster.as_str())
        .ok_or(Refusal::UnknownGateway)?;
    if may(gateway, peer) {
        Ok(gateway.clone())
    } else {
        Err(Refusal::Denied)
    }
}

/// Acquires a permit for a stream before anything of it is read. A client that may have no
/// gateway's resources gets none.
pub(super) fn place(
    inner: &Inner,
    peer: &Peer,
    without_tls: &Arc<Semaphore>,
) -> Result<OwnedSemaphorePermit, Refusal> {
    let places = if peer.names.is_some() {
        let mut gateways = inner.gateways.values();
        let gateway = gateways.find(|gateway| may(gateway, peer));
        &gateway.ok_or(Refusal::Denied)?.places
    } else {
        without_tls
    };
    let place = places.clone().try_acquire_owned();
    place.map_err(|_| Refusal::Limit)
}

fn may(gateway: &Gateway, peer: &Peer) -> bool {
    peer.names
        .as_ref()
        .is_none_or(|names| names.iter().any(|name| gateway.clients.contains(name)))
}
