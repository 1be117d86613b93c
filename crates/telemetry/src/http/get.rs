//! Asks another process at one of its addresses: one request, one answer.
//!
//! Does not look at what the answer says.

use std::io;
use std::time::Duration;

use settings::EndpointAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Returns the first `max_bytes` of the answer, head included, to `GET path` at `address`; all of it
/// must have come within `limit`.
///
/// # Errors
/// Why there is no answer; `TimedOut` if not in time, `UnexpectedEof` if not a byte of it came.
pub async fn get(
    address: &EndpointAddr,
    path: &str,
    max_bytes: u64,
    limit: Duration,
) -> io::Result<String> {
    let exchange = async {
        match address {
            EndpointAddr::None => Err(io::ErrorKind::AddrNotAvailable.into()),
            EndpointAddr::Tcp(at) => ask(TcpStream::connect(at).await?, path, max_bytes).await,
            EndpointAddr::Unix(at) => ask(UnixStream::connect(at).await?, path, max_bytes).await,
        }
    };
    timeout(limit, exchange).await?
}

async fn ask<S>(mut stream: S, path: &str, max_bytes: u64) -> io::Result<String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // HTTP/1.0, so that the answer ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    if stream.take(max_bytes).read_to_end(&mut answer).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
