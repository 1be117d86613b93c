//! Reads a request's head, as much of it as the stand-in needs.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;

pub(super) type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// A request whose body has been read and dropped.
pub(super) struct Request {
    target: String,
    closes: bool,
}

impl Request {
    /// Reads the next request; `None` when the client has ended the connection between two.
    pub(super) async fn read(stream: &mut BufReader<TlsStream>) -> io::Result<Option<Self>> {
        let mut limited = stream.take(MAX_HEAD_BYTES);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if limited.read_line(&mut line).await? == 0 {
                return if lines.is_empty() {
                    Ok(None)
                } else {
                    Err(bad("a head cut off"))
                };
            }
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let target = lines
            .first()
            .and_then(|first| first.split(' ').nth(1))
            .ok_or_else(|| bad("no request line"))?;
        let header = |name: &str| {
            lines.iter().skip(1).find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let closes = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let length = header("content-length").map_or(Ok(0), |value| {
            value
                .parse::<u64>()
                .map_err(|_| bad("a content length that is no number"))
        })?;
        let request = Self {
            target: target.to_owned(),
            closes,
        };
        tokio::io::copy(&mut stream.take(length), &mut tokio::io::sink()).await?;
        Ok(Some(request))
    }

    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(super) fn is_watch(&self) -> bool {
        matches!(self.parameter("watch"), Some("1" | "true"))
    }

    pub(super) fn closes(&self) -> bool {
        self.closes
    }

    /// Returns a number from the query, 0 when it is absent or none.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.parameter(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or_default()
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(key, value)| (key == name).then_some(value))
    }
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const MAX_HEAD_BYTES: u64 = 64 * 1024;
