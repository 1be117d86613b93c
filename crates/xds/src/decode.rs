//! From resources to clusters and routes.

use std::collections::BTreeSet;
use std::sync::Arc;

use route::{TableSpec, TcpOptions};

use crate::resource::ResourceType;

/// A resource that was understood.
#[derive(Clone, Debug)]
pub struct Decoded(());

impl Decoded {
    /// Returns what it is.
    #[must_use]
    pub fn kind(&self) -> ResourceType {
        unimplemented!()
    }
}

/// Why a resource is refused: which one, where in it, and what is wrong there.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{resource}: {path}: {why}")]
pub struct DecodeError {
    resource: String,
    path: String,
    why: String,
}

/// Decodes a resource.
///
/// # Errors
/// It is malformed, or has something that is not understood.
pub fn decode(kind: ResourceType, name: &str, body: &[u8]) -> Result<Decoded, DecodeError> {
    let _ = (kind, name, body);
    unimplemented!()
}

/// Returns the name that a resource has within its message, which is all that state-of-the-world
/// responses have.
///
/// # Errors
/// It is malformed.
pub fn resource_name(kind: ResourceType, body: &[u8]) -> Result<String, DecodeError> {
    let _ = (kind, body);
    unimplemented!()
}

/// A listener of the caller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnListener {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u16,
    /// What its connections begin with.
    pub protocol: OwnProtocol,
}

/// What connections of a listener begin with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnProtocol {
    /// An HTTP CONNECT request.
    Connect,
    /// A node proxy's PROXY header, or an HTTP CONNECT request.
    Node,
    /// A TLS ClientHello.
    Tls,
    /// WireGuard datagrams.
    WireGuard,
}

/// Decoded resources by type and name; cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct State;

impl State {
    /// Creates a state without resources, whose clusters have these socket options but for what
    /// resources say of them.
    #[must_use]
    pub fn with_tcp(tcp: Arc<TcpOptions>) -> Self {
        let _ = tcp;
        unimplemented!()
    }

    /// Adds a resource, or puts it in place of the one of its name.
    pub fn set(&mut self, name: &str, decoded: Decoded) {
        let _ = (name, decoded);
        unimplemented!()
    }

    /// Removes a resource.
    pub fn remove(&mut self, kind: ResourceType, name: &str) {
        let _ = (kind, name);
        unimplemented!()
    }

    /// Keeps the resources of a type whose name is to be kept.
    pub fn retain(&mut self, kind: ResourceType, keep: impl Fn(&str) -> bool) {
        let _ = (kind, keep("a"));
        unimplemented!()
    }

    /// Returns the names of the assignments that clusters refer to.
    #[must_use]
    pub fn wanted_assignments(&self) -> BTreeSet<Arc<str>> {
        unimplemented!()
    }

    /// Returns the names of the route configurations that listeners refer to.
    #[must_use]
    pub fn wanted_route_configurations(&self) -> BTreeSet<Arc<str>> {
        unimplemented!()
    }

    /// Returns the first resource that another one refers to and that is not there.
    #[must_use]
    pub fn missing(&self) -> Option<(ResourceType, Arc<str>)> {
        unimplemented!()
    }

    /// Translates the resources into clusters and routes.
    ///
    /// # Errors
    /// Resources contradict each other.
    pub fn table(&self, own: &[OwnListener]) -> Result<Table, TableError> {
        let _ = own;
        unimplemented!()
    }
}

/// What resources amount to.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Clusters and routes.
    pub spec: TableSpec,
    /// What has no effect, though it was understood.
    pub reports: Vec<Report>,
}

/// Something of a resource that has no effect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Report {
    /// Type of the resource.
    pub kind: ResourceType,
    /// Its name.
    pub name: Arc<str>,
    /// What has no effect, and why.
    pub what: String,
}

/// Why resources amount to no table.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Two routes match the same, and lead elsewhere.
    #[error("{first} and {second} both match {matched}")]
    Conflict {
        /// The resource of the first.
        first: String,
        /// The resource of the second.
        second: String,
        /// What both match.
        matched: String,
    },
    /// There are more resources of a type than are held.
    #[error("more than {most} resources of type {}", kind.type_url())]
    TooMany {
        /// The type.
        kind: ResourceType,
        /// How many there may be.
        most: usize,
    },
}
