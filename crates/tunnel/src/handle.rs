//! The handle that programs have of a tunnel: start, commands and status.
//!
//! ```text
//!   program ── Command (bounded) ──▶ data thread ── Status ──▶ program
//!   program ◀── Dial (bounded) ───── data thread
//! ```
//!
//! Carries no packets and decides nothing.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tunnel_proto::datagram::RouteId;
use tunnel_proto::path::{LinkId, Transport};
use tunnel_proto::{filter, path};

use crate::device::Device;
use crate::keys::{PresharedKey, PrivateKey, PublicKey};
use crate::status::Status;
use crate::stream::StreamParams;

/// Commands that may wait for the data thread.
const COMMANDS: usize = 256;
/// Dials that may wait for the program: more than 16 servers, the most there are, ask for.
const DIALS: usize = 256;

/// What stays the same while the process runs.
#[derive(Clone, Debug)]
pub struct Params {
    /// Which end this is.
    pub role: Role,
    /// What this end calls itself on TCP streams; a claim, for the other end's logs.
    pub name: String,
    /// The inner addresses of this end, at most one per family.
    pub addresses: Vec<IpAddr>,
    /// Bytes of the largest inner packet where nothing smaller was found.
    pub mtu: u16,
    /// Queue, options and bounds of each TCP stream.
    pub stream: StreamParams,
    /// What of UDP is left to the kernel.
    pub offloads: udp::Offloads,
}

/// The two ends of a tunnel.
#[derive(Clone, Debug)]
pub enum Role {
    /// In the shoot: connects, and carries what comes to the shoot's networks.
    Client {
        /// The shoot's networks: what packets may be for.
        networks: Vec<IpNet>,
        /// How transports are chosen.
        path: path::Params,
    },
    /// In the seed: is connected to, and opens flows toward the shoot.
    Server {
        /// The number that leads datagrams here through a gateway.
        route: Option<RouteId>,
        /// The shoot's networks: what packets may come from.
        networks: Vec<IpNet>,
        /// Bounds of the filter.
        filter: filter::Params,
    },
}

/// Keys and peers: what a reload replaces.
#[derive(Clone)]
pub struct Identity {
    /// Own keys, the preferred one first; one that is there twice counts once.
    pub keys: Vec<PrivateKey>,
    /// The other ends.
    pub peers: Vec<PeerSpec>,
}

/// One other end.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerSpec {
    /// Its name, unique.
    pub name: String,
    /// Its keys, the preferred one first; several during a rotation.
    pub public_keys: Vec<PublicKey>,
    /// The key shared with it.
    pub preshared_key: Option<PresharedKey>,
    /// Its inner addresses.
    pub addresses: Vec<IpAddr>,
    /// The number that leads datagrams to it through a gateway; servers alone have one.
    pub route: Option<RouteId>,
}

/// What the data thread takes over.
#[derive(Debug)]
pub struct Sockets {
    /// The TUN device, configured and up.
    pub device: Device,
    /// Server: where datagrams come in.
    pub udp: Option<std::net::UdpSocket>,
    /// Server: where datagrams that a gateway wrapped come in.
    pub wrapped: Option<std::net::UdpSocket>,
    /// Gateways that may send wrapped datagrams.
    pub trusted_gateways: Vec<IpNet>,
}

/// The tunnels of this process.
#[derive(Clone, Debug)]
pub struct Tunnel {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<Arc<Status>>,
    stopped: watch::Receiver<()>,
}

/// A command to the data thread.
pub(crate) enum Command {
    Accepted(std::net::TcpStream, SocketAddr),
    /// What a [`Dial`] led to; `None`: it failed.
    Dialed {
        server: String,
        link: LinkId,
        socket: Option<Connected>,
    },
    Drain,
    /// Whether this end can forward.
    Settled(bool),
    Replace(Identity, oneshot::Sender<Result<(), IdentityError>>),
    Stop,
}

/// A connected socket, of a stream with what was read ahead.
pub(crate) enum Connected {
    Tcp(std::net::TcpStream, Vec<u8>),
    Udp(std::net::UdpSocket),
}

/// The data thread's ends of what a [`Tunnel`] holds.
pub(crate) struct Ends {
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) status: watch::Sender<Arc<Status>>,
    pub(crate) dials: mpsc::Sender<Dial>,
    /// To be put into each [`Dial`].
    pub(crate) answers: mpsc::WeakSender<Command>,
    /// Dropped when the data thread has ended.
    pub(crate) stopped: Arc<watch::Sender<()>>,
}

impl Tunnel {
    /// Starts the data thread.
    ///
    /// # Errors
    ///
    /// - [`StartError::Thread`], [`StartError::Socket`]: an error of the kernel;
    /// - [`StartError::Identity`]: keys and peers that cannot be used together.
    pub fn start(
        params: Params,
        identity: Identity,
        sockets: Sockets,
        registry: &telemetry::Registry,
    ) -> Result<(Self, Dials), StartError> {
        let (commands, received) = mpsc::channel(COMMANDS);
        let (dials, asked) = mpsc::channel(DIALS);
        let (told, status) = watch::channel(Arc::default());
        let (runs, stopped) = watch::channel(());
        let ends = Ends {
            commands: received,
            status: told,
            dials,
            answers: commands.downgrade(),
            stopped: Arc::new(runs),
        };
        crate::runner::start(params, identity, sockets, registry, ends)?;
        let tunnel = Self {
            commands,
            status,
            stopped,
        };
        Ok((tunnel, Dials(asked)))
    }

    /// Replaces keys and peers. Sessions of pairs of keys that stay are kept; a changed preshared
    /// key ends the sessions of its peer. Canceled, it may have been done or not.
    ///
    /// # Errors
    ///
    /// - [`TunnelError::Identity`]: keys and peers that cannot be used together; nothing changed;
    /// - [`TunnelError::Stopped`].
    pub async fn replace(&self, identity: Identity) -> Result<(), TunnelError> {
        let (answer, answered) = oneshot::channel();
        self.tell(Command::Replace(identity, answer)).await?;
        let replaced = answered.await.map_err(|_| TunnelError::Stopped)?;
        Ok(replaced?)
    }

    /// Hands over a TCP connection that was accepted; its first bytes are frames. It is closed
    /// when too many wait.
    pub fn accept(&self, stream: std::net::TcpStream, from: SocketAddr) {
        static LIMIT: telemetry::Throttle = telemetry::Throttle::new(Duration::from_secs(10));
        let told = self.commands.try_send(Command::Accepted(stream, from));
        if told.is_err()
            && let Some(suppressed) = LIMIT.permit(Instant::now().into_std())
        {
            tracing::warn!(%from, suppressed, "connection closed: too many are waiting");
        }
    }

    /// Asks every peer to give no new flows to this end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`TunnelError::Stopped`].
    pub async fn drain(&self) -> Result<(), TunnelError> {
        self.tell(Command::Drain).await
    }

    /// Tells every peer whether this end can forward what it is given; from the start it can. Peers prefer
    /// others that can for new flows. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`TunnelError::Stopped`].
    pub async fn set_settled(&self, settled: bool) -> Result<(), TunnelError> {
        self.tell(Command::Settled(settled)).await
    }

    /// Ends all links and the data thread. Cancel-safe.
    pub async fn stop(&self) {
        // Already stopped is as good.
        let _ = self.tell(Command::Stop).await;
        let mut stopped = self.stopped.clone();
        // Ends with an error, which is what is waited for.
        while stopped.changed().await.is_ok() {}
    }

    /// Returns what is known of all tunnels, at most 250 ms old.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status.borrow())
    }

    /// Returns a receiver of every new status.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Status>> {
        self.status.clone()
    }

    async fn tell(&self, command: Command) -> Result<(), TunnelError> {
        let told = self.commands.send(command).await;
        told.map_err(|_| TunnelError::Stopped)
    }
}

/// What a client asks its program to connect.
#[derive(Debug)]
pub struct Dials(mpsc::Receiver<Dial>);

impl Dials {
    /// Returns the next one; `None` once the data thread has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Dial> {
        self.0.recv().await
    }
}

/// One attempt to connect. Dropping it is a failure.
#[derive(Debug)]
pub struct Dial {
    /// The name of the server in the configuration.
    pub server: String,
    /// By what.
    pub transport: Transport,
    pub(crate) link: LinkId,
    pub(crate) answers: Option<mpsc::Sender<Command>>,
}

impl Dial {
    /// Hands over a connected stream, with what was read from it behind the gateway's answer.
    pub fn tcp(mut self, stream: std::net::TcpStream, early: Vec<u8>) {
        self.answer(Some(Connected::Tcp(stream, early)));
    }

    /// Hands over a socket that is connected to the gateway or the server.
    pub fn udp(mut self, socket: std::net::UdpSocket) {
        self.answer(Some(Connected::Udp(socket)));
    }

    /// Reports a failure, and why.
    pub fn failed(mut self, error: impl Display) {
        tracing::info!(server = %self.server, transport = ?self.transport, %error, "connecting failed");
        self.answer(None);
    }

    fn answer(&mut self, socket: Option<Connected>) {
        if let Some(answers) = self.answers.take() {
            let (server, link) = (self.server.clone(), self.link);
            let command = Command::Dialed {
                server,
                link,
                socket,
            };
            // When the data thread is that far behind, the attempt times out there.
            let _ = answers.try_send(command);
        }
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        self.answer(None);
    }
}

/// Why a tunnel was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Keys and peers that cannot be used together.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A socket or the device cannot be used.
    #[error("{0} cannot be used")]
    Socket(&'static str, #[source] io::Error),
    /// The data thread could not be started.
    #[error("the data thread could not be started")]
    Thread(#[source] io::Error),
}

/// Why keys and peers cannot be used together, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IdentityError(pub(crate) String);

/// Why a command to a tunnel failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// Keys and peers that cannot be used together.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The data thread has ended.
    #[error("the tunnel has been stopped")]
    Stopped,
}
