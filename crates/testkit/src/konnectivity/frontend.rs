//! A kube-apiserver as a server sees it: one connection for each dial, by CONNECT or by gRPC.
//!
//! ```text
//!  test ── connect ──▶ FakeFrontend ──▶ UDS or mTLS ──▶ server
//!       ◀─ Tunnel (reader, writer) or Refusal ──
//! ```
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any packet but the one awaited is an error"
)]

mod grpc;
mod http;

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::Result;

use super::packet::Packet;
use super::wire::{LIMIT, WireReceiver, WireSender};

pub use self::grpc::GrpcFrontend;
use self::http::Bridge;
pub use self::http::HttpFrontend;

#[derive(Debug)]
pub enum FakeFrontend {
    Grpc(GrpcFrontend),
    Http(HttpFrontend),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status; 0 from a gRPC frontend.
    pub status: u16,
    /// The head of the answer, its empty line left out; empty from a gRPC frontend.
    pub head: String,
    pub body: String,
}

impl FakeFrontend {
    /// Dials `target`, `host:port`.
    pub fn connect(&self, target: &str) -> Result<Result<Tunnel, Refusal>> {
        match self {
            Self::Grpc(frontend) => frontend.connect(target),
            Self::Http(frontend) => frontend.connect(target),
        }
    }
}

/// A connection through the server. Dropping it closes it without a word.
#[derive(Debug)]
pub struct Tunnel {
    pub reader: TunnelReader,
    pub writer: TunnelWriter,
}

impl Tunnel {
    /// Returns what came together with the answer's head and was not read yet: nothing, unless the
    /// destination spoke first. kube-apiserver gives up when it is not empty.
    pub fn early(&self) -> &[u8] {
        match &self.reader.0 {
            Reading::Grpc { .. } => &[],
            Reading::Http { stream, .. } => stream.buffer(),
        }
    }

    pub fn echo(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.writer.write_all(bytes)?;
        let mut back = vec![0; bytes.len()];
        self.reader.read_exact(&mut back)?;
        Ok(back)
    }

    /// Resets the connection. A Unix socket knows no reset and is closed; of gRPC it is the stream
    /// that is reset.
    pub fn reset(self) {
        if let Reading::Http {
            bridge: Some(bridge),
            ..
        } = &self.reader.0
        {
            bridge.reset();
        }
    }
}

/// The half of a [`Tunnel`] that reads; a read waits 20 s at most.
#[derive(Debug)]
pub struct TunnelReader(Reading);

#[derive(Debug)]
enum Reading {
    Grpc {
        receiver: Box<WireReceiver>,
        pending: io::Cursor<Vec<u8>>,
        connect_id: i64,
        end: Option<String>,
    },
    Http {
        stream: BufReader<UnixStream>,
        bridge: Option<Arc<Bridge>>,
    },
}

impl TunnelReader {
    pub fn end(&self) -> Option<&str> {
        match &self.0 {
            Reading::Grpc { end, .. } => end.as_deref(),
            Reading::Http { .. } => None,
        }
    }

    /// Reads to the end.
    ///
    /// Fails when the connection fails or ends without TLS's closing alert, or nothing comes for 20 s.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for TunnelReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (receiver, pending, connect_id, end) = match &mut self.0 {
            Reading::Http { stream, bridge } => {
                let count = stream.read(buf)?;
                let failed = bridge.as_ref().and_then(|bridge| bridge.failed());
                return match failed {
                    Some(kind) if count == 0 && !buf.is_empty() => Err(kind.into()),
                    Some(_) | None => Ok(count),
                };
            }
            Reading::Grpc {
                receiver,
                pending,
                connect_id,
                end,
            } => (receiver, pending, *connect_id, end),
        };
        loop {
            let count = pending.read(buf)?;
            if count > 0 || end.is_some() || buf.is_empty() {
                return Ok(count);
            }
            match receiver.recv(LIMIT).map_err(io::Error::other)? {
                Packet::Data {
                    connect_id: found,
                    data,
                } if found == connect_id => *pending = io::Cursor::new(data),
                Packet::CloseRsp {
                    connect_id: found,
                    error,
                } if found == connect_id => *end = Some(error),
                other => return Err(io::Error::other(format!("{other:?} for {connect_id}"))),
            }
        }
    }
}

#[derive(Debug)]
pub struct TunnelWriter(Writing);

#[derive(Debug)]
enum Writing {
    Grpc { sender: WireSender, connect_id: i64 },
    Http(UnixStream),
}

impl TunnelWriter {
    /// Says that nothing more is sent: a half-close over HTTP, CLOSE_REQ and so the end of both
    /// directions over gRPC.
    pub fn finish(&self) -> io::Result<()> {
        match &self.0 {
            Writing::Grpc { sender, connect_id } => {
                let connect_id = *connect_id;
                let packet = Packet::CloseReq { connect_id };
                sender.send(&packet).map_err(io::Error::other)
            }
            Writing::Http(stream) => stream.shutdown(std::net::Shutdown::Write),
        }
    }
}

impl Write for TunnelWriter {
    /// Over gRPC one call is one packet, however large, as in upstream's client library.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Writing::Grpc { sender, connect_id } => {
                let packet = Packet::data(*connect_id, buf);
                sender.send(&packet).map_err(io::Error::other)?;
                Ok(buf.len())
            }
            Writing::Http(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
