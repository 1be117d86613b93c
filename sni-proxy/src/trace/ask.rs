//! Asks a running gateway, over its admin address: one request, one answer, no runtime.
//!
//! ```text
//!     Question ─▶ GET /trace?… ─TCP or Unix socket─▶ gateway ─▶ JSON ─▶ Trace
//! ```
//!
//! Everything waits [`TIMEOUT`] at most. Does not look at what the answer says.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use telemetry::EndpointAddr;

use super::question::Question;
use super::report::Trace;

/// How long connecting, and each read and write, may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the longest answer; 256 endpoints are some 64 KiB.
const MAX_ANSWER: u64 = 4 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// What answers is no gateway, or an older one.
    #[error("{address} answers, but not as a gateway: {what}")]
    Answer {
        /// The address that was asked.
        address: EndpointAddr,
        /// What was wrong with the answer.
        what: String,
    },
    /// The gateway cannot answer the question as it is.
    #[error("{0}")]
    Question(String),
    /// The gateway cannot be reached.
    #[error("asking the gateway at {address}")]
    Reach {
        /// The address that was asked.
        address: EndpointAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Asks the gateway whose admin address this is; returns its answer, and the JSON that it came as.
pub(super) fn ask(
    address: &EndpointAddr,
    question: &Question,
) -> Result<(Trace, String), AskError> {
    let answer = |what: String| AskError::Answer {
        address: address.clone(),
        what,
    };
    let answered = exchange(address, &question.to_query()).map_err(|source| AskError::Reach {
        address: address.clone(),
        source,
    })?;
    let (head, body) = answered
        .split_once("\r\n\r\n")
        .ok_or_else(|| answer("it ended early".to_owned()))?;
    match head.split_ascii_whitespace().nth(1) {
        Some("200") => match serde_json::from_str(body) {
            Ok(trace) => Ok((trace, body.to_owned())),
            Err(error) => Err(answer(format!("no trace: {error}"))),
        },
        Some("400") => Err(AskError::Question(body.trim_end().to_owned())),
        Some("404") => Err(answer(
            "it has no /trace; is this the admin address?".to_owned(),
        )),
        _ => {
            let first = head.lines().next().unwrap_or_default();
            Err(answer(first.to_owned()))
        }
    }
}

fn exchange(address: &EndpointAddr, query: &str) -> io::Result<String> {
    match address {
        EndpointAddr::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            converse(stream, query)
        }
        EndpointAddr::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            converse(stream, query)
        }
        EndpointAddr::None => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

fn converse(mut stream: impl Read + Write, query: &str) -> io::Result<String> {
    let request =
        format!("GET /trace?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
