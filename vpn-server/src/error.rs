//! Why the program did not start or go on, or what its configuration points to is refused.

use std::io;
use std::net::SocketAddr;

use net_config::NetConfigError;
use serve::{BindError, EndpointError, WorkerFailed};
use settings::ConfigError;
use tunnel::device::DeviceError;
use tunnel::keys::KeyError;

/// Why the program ended other than it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The kernel refused the device or its routes.
    #[error("setting up {device}")]
    Configure {
        /// The device.
        device: String,
        /// What is missing.
        #[source]
        source: NetConfigError,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An endpoint for probes or operators could not be bound.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Keys and peers cannot be used together.
    #[error(transparent)]
    Identity(#[from] tunnel::IdentityError),
    /// The file of a key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The file of peers cannot be used.
    #[error(transparent)]
    Peers(#[from] ConfigError),
    /// A port for datagrams could not be bound.
    #[error("listening on UDP {address}")]
    Port {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The system refused something else.
    #[error("{attempt}")]
    System {
        /// What was tried.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Certificates are refused.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The tunnel did not start.
    #[error("starting the tunnel")]
    Tunnel(#[from] tunnel::StartError),
    /// The tunnels ended by themselves.
    #[error("the tunnels have ended")]
    TunnelsEnded,
    /// A worker failed.
    #[error(transparent)]
    Worker(#[from] WorkerFailed),
}

impl ServerError {
    /// Tells whether the configuration is to blame, or what it points to.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(
            self,
            Self::Identity(_) | Self::Key(_) | Self::Peers(_) | Self::Tls(_)
        )
    }
}
