//! The TLS entrance: a handshake with an end to it, and errors that tell what went wrong.
//!
//! ```text
//! stream ──ClientHello──▶ server name ──choose──▶ settings ──handshake──▶ Accepted
//!                                                     └── alert, close ──▶ AcceptError
//! ```
//!
//! Whom a certificate stands for is the caller's to find out; the server name is what the client
//! says, and proves nothing.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::answer;

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Accepted<S> {
    /// The stream; in a box, since the state of a TLS session is more than a kilobyte and streams
    /// are moved from future to future.
    pub stream: Box<TlsStream<S>>,
    /// The server name the client asked for, in lower case; `None` when it named none (an IP
    /// address is no name).
    pub server_name: Option<String>,
}

/// Why a handshake failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The client's certificate does not verify: expired, another authority, not for clients.
    #[error("the client's certificate is not acceptable")]
    BadClientCertificate(#[source] rustls::Error),
    /// The client went away, or the connection broke.
    #[error("the client went away during the TLS handshake")]
    Gone(#[source] io::Error),
    /// The client sent no certificate where one is required.
    #[error("the client sent no certificate")]
    NoClientCertificate,
    /// The first bytes are no ClientHello.
    #[error("the client does not speak TLS")]
    NotTls(#[source] rustls::Error),
    /// The client ended the handshake with an alert: it does not accept our certificate, most
    /// likely.
    #[error("the client refused the TLS handshake")]
    RefusedByClient(#[source] rustls::Error),
    /// The handshake was not done in time.
    #[error("the TLS handshake took longer than {0:?}")]
    TimedOut(Duration),
    /// No common ground: versions, cipher suites, protocols, or a peer that breaks the rules.
    #[error("the TLS handshake failed")]
    Unsuccessful(#[source] rustls::Error),
}

impl AcceptError {
    /// Returns a word from a closed set, for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadClientCertificate(_) => "bad_client_certificate",
            Self::Gone(_) => "client_gone",
            Self::NoClientCertificate => "no_client_certificate",
            Self::NotTls(_) => "not_tls",
            Self::RefusedByClient(_) => "refused_by_client",
            Self::TimedOut(_) => "handshake_timeout",
            Self::Unsuccessful(_) => "handshake_failed",
        }
    }

    fn new(error: io::Error, hello_read: bool) -> Self {
        match error.downcast::<rustls::Error>() {
            Ok(rustls::Error::NoCertificatesPresented) => Self::NoClientCertificate,
            Ok(error @ rustls::Error::InvalidCertificate(_)) => Self::BadClientCertificate(error),
            Ok(error @ rustls::Error::AlertReceived(_)) => Self::RefusedByClient(error),
            Ok(
                error @ (rustls::Error::InvalidMessage(_)
                | rustls::Error::InappropriateMessage { .. }),
            ) if !hello_read => Self::NotTls(error),
            Ok(error) => Self::Unsuccessful(error),
            Err(error) => Self::Gone(error),
        }
    }
}

/// Does the server's side of a handshake within `limit`.
///
/// Cancel-safe in the sense that dropping the future closes the stream.
///
/// # Errors
/// [`AcceptError`]; the client has been sent the alert that TLS has for it, and up to one second
/// to read it, within `limit`.
pub async fn accept_tls<S>(
    stream: S,
    config: Arc<ServerConfig>,
    limit: Duration,
) -> Result<Accepted<S>, AcceptError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    accept_tls_by_name(stream, |_| config, limit).await
}

/// Does the server's side of a handshake within `limit`, with the settings that `choose` has for
/// the server name the client asks for (in lower case, without a final dot).
///
/// Cancel-safe in the sense that dropping the future closes the stream.
///
/// # Errors
/// As [`accept_tls`].
pub async fn accept_tls_by_name<S, F>(
    stream: S,
    choose: F,
    limit: Duration,
) -> Result<Accepted<S>, AcceptError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: FnOnce(Option<&str>) -> Arc<ServerConfig>,
{
    let deadline = Instant::now() + limit;
    // Boxed: twice the size of a session, and needed for moments.
    let done = Box::pin(timeout_at(deadline, shake_hands(stream, choose))).await;
    match done {
        Ok(Ok(accepted)) => Ok(accepted),
        Ok(Err(failed)) => {
            if let Some(mut stream) = failed.stream {
                let left = deadline.saturating_duration_since(Instant::now());
                let limit = left.min(ALERT_LIMIT);
                relay::linger(&mut stream, limit, answer::LINGER_BYTES).await;
            }
            Err(failed.error)
        }
        Err(_) => Err(AcceptError::TimedOut(limit)),
    }
}

/// A handshake that failed, and the stream on which the alert may still have to be read.
struct Failed<S> {
    error: AcceptError,
    stream: Option<S>,
}

async fn shake_hands<S, F>(stream: S, choose: F) -> Result<Accepted<S>, Failed<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: FnOnce(Option<&str>) -> Arc<ServerConfig>,
{
    let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
    let start = match (&mut acceptor).await {
        Ok(start) => start,
        Err(error) => {
            return Err(Failed {
                error: AcceptError::new(error, false),
                stream: acceptor.take_io(),
            });
        }
    };
    let server_name = start
        .client_hello()
        .server_name()
        .map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    let config = choose(server_name.as_deref());
    match start.into_stream(config).into_fallible().await {
        Ok(stream) => Ok(Accepted {
            stream: Box::new(stream),
            server_name,
        }),
        Err((error, stream)) => Err(Failed {
            error: AcceptError::new(error, true),
            stream: Some(stream),
        }),
    }
}

/// Longest time a client is given to read why its handshake failed.
const ALERT_LIMIT: Duration = Duration::from_secs(1);
