//! From resources to clusters and routes.
//!
//! ```text
//!  bytes ──walk──▶ nothing in it is unknown ──prost──▶ message ──read──▶ Decoded
//!  Decoded … ──State::set──▶ State ──table(own listeners)──▶ TableSpec, reports
//! ```
//!
//! A resource is refused alone, with the path of what is not understood. What resources mean
//! together, and for the caller's own listeners, is found when a table is asked for.

mod cluster;
mod connect;
mod fault;
mod http;
mod listener;
mod parts;
mod routes;
mod secret;
mod state;
mod table;
mod terminate;
mod walk;
mod wireguard;

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::decode::cluster::{Assignment, ClusterConfig};
use crate::decode::fault::{Fault, Within};
use crate::decode::http::ConnectRules;
use crate::decode::listener::ListenerConfig;
use crate::decode::wireguard::WireGuardConfig;
use crate::proto::discovery::NameOnly;
use crate::proto::{self, known::Known};
use crate::resource::ResourceType;

pub use cluster::MAX_ENDPOINTS;
pub use parts::MAX_NAME_BYTES;
pub(crate) use state::Named;
pub use state::State;
pub use table::{OwnListener, OwnProtocol, Table, TableError};

/// Bytes of the largest resource that is decoded. A listener with 10,000 routes has about 3 MB.
pub const MAX_RESOURCE_BYTES: usize = 64 << 20;

/// Resources of one type that a [`State`] makes a table of.
pub const MAX_RESOURCES: usize = 100_000;

/// A resource that was understood.
#[derive(Debug)]
pub struct Decoded {
    body: Body,
    /// As it came from a server, set by the caller of [`decode`]; `None` for what stands in for a
    /// missing resource.
    pub(crate) received: Option<Received>,
}

/// A resource as it came.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) version: String,
    pub(crate) body: Bytes,
}

/// What was understood, by type.
#[derive(Debug)]
enum Body {
    Assignment(Assignment),
    Cluster(Box<ClusterConfig>),
    Listener(ListenerConfig),
    Routes(ConnectRules),
    Secret(Arc<tls::Secret>),
    WireGuard(Box<WireGuardConfig>),
}

macro_rules! bodies {
    ($($kind:ident = $variant:ident($name:ident: $type:ty);)*) => {
        impl Decoded {
            /// Returns what it is.
            #[must_use]
            pub fn kind(&self) -> ResourceType {
                match self.body {
                    $(Body::$variant(_) => ResourceType::$kind,)*
                }
            }

            $(fn $name(&self) -> Option<&$type> {
                if let Body::$variant(body) = &self.body { Some(body) } else { None }
            })*
        }
    };
}

bodies! {
    Cluster = Cluster(cluster: ClusterConfig);
    ClusterLoadAssignment = Assignment(assignment: Assignment);
    Listener = Listener(listener: ListenerConfig);
    RouteConfiguration = Routes(routes: ConnectRules);
    Secret = Secret(secret_arc: Arc<tls::Secret>);
    WireGuardRoute = WireGuard(wireguard: WireGuardConfig);
}

impl Decoded {
    /// Returns it, if it is a secret.
    pub(crate) fn secret(&self) -> Option<Arc<tls::Secret>> {
        self.secret_arc().cloned()
    }
}

/// Why a resource is refused: which one, where in it, and what is wrong there.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{} {name}: {fault}", kind.type_url().rsplit('.').next().unwrap_or_default())]
pub struct DecodeError {
    kind: ResourceType,
    name: String,
    fault: Fault,
}

impl DecodeError {
    fn new(kind: ResourceType, name: &str, fault: Fault) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            fault,
        }
    }
}

/// Decodes the resource `name`: the message inside its `Any`.
///
/// # Errors
/// It is malformed or too large, has another name, or has something that is not understood.
pub fn decode(kind: ResourceType, name: &str, body: &[u8]) -> Result<Decoded, DecodeError> {
    let read = check_size(body).and_then(|()| match kind {
        ResourceType::Cluster => {
            let message: proto::Cluster = unpack(body)?;
            check_name(name, &message.name)?;
            ClusterConfig::read(&message).map(|read| Body::Cluster(Box::new(read)))
        }
        ResourceType::ClusterLoadAssignment => {
            let message: proto::ClusterLoadAssignment = unpack(body)?;
            check_name(name, &message.cluster_name).within("cluster_name")?;
            Assignment::read(&message).map(Body::Assignment)
        }
        ResourceType::Listener => {
            let message: proto::Listener = unpack(body)?;
            check_name(name, &message.name)?;
            ListenerConfig::read(&message).map(Body::Listener)
        }
        ResourceType::RouteConfiguration => {
            let message: proto::RouteConfiguration = unpack(body)?;
            check_name(name, &message.name)?;
            ConnectRules::read(&message).map(Body::Routes)
        }
        ResourceType::Secret => {
            if body.len() > secret::MAX_SECRET_BYTES {
                let why = format!("it is larger than {} bytes", secret::MAX_SECRET_BYTES);
                return Err(Fault::new(why));
            }
            let message: proto::Secret = unpack(body)?;
            check_name(name, &message.name)?;
            secret::read(message).map(|read| Body::Secret(Arc::new(read)))
        }
        ResourceType::WireGuardRoute => {
            let message: proto::WireGuardRoute = unpack(body)?;
            check_name(name, &message.name)?;
            WireGuardConfig::read(&message).map(|read| Body::WireGuard(Box::new(read)))
        }
    });
    let received = None;
    read.map(|body| Decoded { body, received })
        .map_err(|fault| DecodeError::new(kind, name, fault))
}

/// As [`decode`], for these listeners of the caller: one that is none of them has no effect, and may
/// say anything.
pub(crate) fn decode_for(
    own: &[OwnListener],
    kind: ResourceType,
    name: &str,
    body: &[u8],
) -> Result<Decoded, DecodeError> {
    if kind == ResourceType::Listener
        && let Ok(head) = proto::ListenerHead::decode(body)
        && head.name == name
    {
        let socket = head.address.and_then(|address| address.socket_address);
        let tcp = socket.filter(|socket| socket.protocol == 0);
        let port = tcp.and_then(|tcp| u16::try_from(tcp.port_value?).ok());
        if head.internal_listener.is_none() && table::find_own(name, port, own).is_none() {
            let body = Body::Listener(ListenerConfig {
                port,
                internal: false,
                chains: Vec::new(),
            });
            let received = None;
            return Ok(Decoded { body, received });
        }
    }
    decode(kind, name, body)
}

/// Returns the name that a resource has within its message, which is all that state-of-the-world
/// responses have. Nothing else of the message is looked at.
///
/// # Errors
/// It is malformed or too large, or has no name.
pub fn resource_name(kind: ResourceType, body: &[u8]) -> Result<String, DecodeError> {
    let read = check_size(body).and_then(|()| {
        let message = NameOnly::decode(body).map_err(|error| Fault::new(error.to_string()))?;
        parts::name(&message.name).within("name")
    });
    read.map_err(|fault| DecodeError::new(kind, "without a name", fault))
}

fn check_size(body: &[u8]) -> Result<(), Fault> {
    if body.len() > MAX_RESOURCE_BYTES {
        let why = format!("it is larger than {MAX_RESOURCE_BYTES} bytes");
        return Err(Fault::new(why));
    }
    Ok(())
}

fn check_name(wanted: &str, own: &str) -> Result<(), Fault> {
    parts::name(own).within("name")?;
    if own != wanted {
        return Err(Fault::at("name", format!("it is {own:?}")));
    }
    Ok(())
}

fn unpack<M: Message + Default + Known>(body: &[u8]) -> Result<M, Fault> {
    walk::walk::<M>(body)?;
    M::decode(body).map_err(|error| Fault::new(error.to_string()))
}

#[cfg(test)]
mod tests;
