//! Reads a request with its body, as much of it as the stand-ins need.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;

pub(crate) type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// A request whose body has been read.
pub(crate) struct Request {
    method: String,
    target: String,
    lines: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    /// Reads the next request; `None` when the client has ended the connection between two.
    pub(crate) async fn read(stream: &mut BufReader<TlsStream>) -> io::Result<Option<Self>> {
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
        let mut words = lines.first().map_or("", String::as_str).split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(bad("no request line"));
        };
        let mut request = Self {
            method: method.to_owned(),
            target: target.to_owned(),
            lines,
            body: Vec::new(),
        };
        let length = request.header("content-length").map_or(Ok(0), |value| {
            value
                .parse::<u64>()
                .map_err(|_| bad("a content length that is no number"))
        })?;
        if length > MAX_BODY_BYTES {
            return Err(bad("a body above the limit"));
        }
        stream.take(length).read_to_end(&mut request.body).await?;
        Ok(Some(request))
    }

    pub(crate) fn method(&self) -> &str {
        &self.method
    }

    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.lines.iter().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn is_watch(&self) -> bool {
        matches!(self.parameter("watch"), Some("1" | "true"))
    }

    pub(crate) fn closes(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// Returns a number from the query, 0 when it is absent or none.
    pub(crate) fn number(&self, name: &str) -> u64 {
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
const MAX_BODY_BYTES: u64 = 64 * 1024 * 1024;
