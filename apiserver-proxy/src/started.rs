//! Asks the process of a configuration whether it serves, as a pod's startup and liveness probes do.
//!
//! ```text
//!     admin.address ── GET /healthz ─▶ 200: it listens wherever it shall
//! ```
//!
//! While two processes follow each other on a node, both have the port of probes; which one answers there is
//! the kernel's choice. The admin address is one process's alone, so its answer is its own. Whether it
//! is ready is not asked.

use std::io;
use std::time::Duration;

use telemetry::EndpointAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::config::Config;

/// How long the answer may take. It comes at once, but for a process that is starting.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What is asked; HTTP/1.0, so that the answer ends with the connection.
const QUESTION: &[u8] = b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// Bytes of an answer that are looked at, up to the end of its status.
const STATUS_END: usize = "HTTP/1.1 200".len();

/// Why a process does not count as started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotStarted {
    /// It cannot be told from another process.
    #[error("admin.address is off: only there a process can be asked whether it has started")]
    NoAdmin,
    /// It says that it should be restarted, or something else answers.
    #[error("{address} answers {answer:?}, not 200")]
    Refused {
        /// The address that was asked.
        address: EndpointAddr,
        /// The beginning of the answer.
        answer: String,
    },
    /// No answer, or not in time.
    #[error("asking {address}")]
    Unreachable {
        /// The address that was asked.
        address: EndpointAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Asks the process that was started with this configuration whether it serves.
///
/// # Errors
/// Why it does not, as far as can be told.
pub async fn started(config: &Config) -> Result<(), NotStarted> {
    let address = config.admin.address.clone();
    let exchange = async {
        match &address {
            EndpointAddr::None => Ok(None),
            EndpointAddr::Tcp(at) => ask(TcpStream::connect(at).await?).await.map(Some),
            EndpointAddr::Unix(path) => ask(UnixStream::connect(path).await?).await.map(Some),
        }
    };
    let answered = timeout(TIMEOUT, exchange).await;
    match answered.unwrap_or_else(|elapsed| Err(elapsed.into())) {
        Ok(None) => Err(NotStarted::NoAdmin),
        Ok(Some(answer)) if answer.ends_with(" 200") => Ok(()),
        Ok(Some(answer)) => Err(NotStarted::Refused { address, answer }),
        Err(source) => Err(NotStarted::Unreachable { address, source }),
    }
}

/// Returns the beginning of the answer.
async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(QUESTION).await?;
    let mut answer = [0; STATUS_END];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
