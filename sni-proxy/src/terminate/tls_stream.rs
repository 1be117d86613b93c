//! TLS over a socket, without buffers of its own while nothing happens.
//!
//! ```text
//!     socket ── 64 KiB at a time ─▶ decrypted where it was read ─▶ reader; `plain` keeps what it has no room for
//!     writer ─▶ encrypted into what the socket is to send
//! ```
//!
//! rustls' own buffer for what it reads, of 4 KiB, lives as long as a connection. Here a thread reads into one
//! buffer for all, and a connection keeps the start of a record that is not whole.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, CommonState, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::wire::{MOST, Out, Wire};

thread_local! {
    /// What is read from a socket, behind the start of a record that had come before.
    static INCOMING: RefCell<Vec<u8>> = RefCell::new(vec![0; MOST]);
    /// Parts of what is written, in a row, behind what is in no use.
    static OUTGOING: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(AHEAD + WRITE));
}

/// Bytes that are written at a time: as many as one may wait to send, in frames with their heads.
const WRITE: usize = MOST + 1024;
/// Bytes that are copied at a time: glibc copies 2,112 and more by one instruction, which AMD's processors carry out
/// several times slower when both ends lie unlucky within their pages.
const COPY: usize = 2048;
/// Bytes ahead of what is written, so that it does not lie at the begin of a page, where a copy of it may begin as well.
const AHEAD: usize = 2048;
/// Of a record, beside its payload: its header, a nonce, its type and a tag (RFC 5246 section 6.2.3.3, RFC 8446
/// section 5.2), and room for one of an update of keys.
const OVERHEAD: usize = 128;
/// Bytes of payload of a record, at most.
const RECORD: usize = 16 * 1024;

/// A connection whose handshake is over.
#[derive(Debug)]
pub(crate) struct TlsStream<S> {
    session: S,
    wire: Wire,
    /// The start of a record that is not whole.
    partial: Vec<u8>,
    /// What was decrypted, of which the first `read` bytes were read.
    plain: Vec<u8>,
    read: usize,
    /// The peer has ended its direction as TLS does (RFC 8446 section 6.1).
    ended: bool,
    /// An error of TLS has ended the connection.
    failed: bool,
}

/// A connection to a server.
pub(crate) type ClientStream = TlsStream<UnbufferedClientConnection>;
/// A client's connection.
pub(crate) type ServerStream = TlsStream<UnbufferedServerConnection>;

/// Either end of TLS.
pub(crate) trait Session: Deref<Target: Deref<Target = CommonState>> + Unpin {
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

/// Accepts a client, of which the first bytes, `early`, were read already. Dropped early, it ends the connection.
pub(crate) async fn accept(
    config: Arc<ServerConfig>,
    wire: Wire,
    early: Vec<u8>,
) -> io::Result<ServerStream> {
    let session = UnbufferedServerConnection::new(config).map_err(invalid)?;
    TlsStream::new(session, wire, early).handshake().await
}

/// Connects to a server whose certificate must be for `name`. Dropped early, it ends the connection.
pub(crate) async fn connect(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    wire: Wire,
) -> io::Result<ClientStream> {
    let session = UnbufferedClientConnection::new(config, name).map_err(invalid)?;
    TlsStream::new(session, wire, Vec::new()).handshake().await
}

impl<S: Session> TlsStream<S> {
    fn new(session: S, wire: Wire, early: Vec<u8>) -> Self {
        Self {
            session,
            wire,
            partial: early,
            plain: Vec::new(),
            read: 0,
            ended: false,
            failed: false,
        }
    }

    pub(crate) fn session(&self) -> &CommonState {
        &self.session
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    async fn handshake(mut self) -> io::Result<Self> {
        let mut early = std::mem::take(&mut self.partial);
        let mut begun = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut begun, true) {
                let used = self.process(cx, &mut early, None)?;
                self.keep(&early[used..]);
            }
            loop {
                ready!(self.wire.poll_send(cx))?;
                if !self.session.is_handshaking() {
                    return Poll::Ready(Ok(()));
                }
                if ready!(self.poll_more(cx, None))? == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        })
        .await
        .map(|()| self)
    }

    /// Keeps the start of a record; behind the peer's end there is none.
    fn keep(&mut self, rest: &[u8]) {
        let rest = if self.ended { &[] } else { rest };
        self.partial = rest.to_vec();
    }

    /// Reads from the socket once, and processes that; returns how many bytes came, 0 at its end.
    fn poll_more(
        &mut self,
        cx: &mut Context<'_>,
        into: Option<&mut ReadBuf<'_>>,
    ) -> Poll<io::Result<usize>> {
        INCOMING.with_borrow_mut(|incoming| {
            let held = self.partial.len();
            let Some((before, room)) = incoming
                .split_at_mut_checked(held)
                .filter(|(_, room)| !room.is_empty())
            else {
                // More than a record has, or than messages of a handshake may have.
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            };
            let len = ready!(self.wire.poll_read(cx, room))?;
            before.copy_from_slice(&self.partial);
            let came = &mut incoming[..held + len];
            let used = self.process(cx, came, into)?;
            self.keep(&came[used..]);
            Poll::Ready(Ok(len))
        })
    }

    /// Processes what has come until that takes more, and returns how much of it is done with. What it decrypts
    /// goes to `into` as far as there is room, and what is to be said to the peer is sent.
    fn process(
        &mut self,
        cx: &mut Context<'_>,
        incoming: &mut [u8],
        mut into: Option<&mut ReadBuf<'_>>,
    ) -> io::Result<usize> {
        let Self {
            session,
            wire,
            plain,
            ..
        } = self;
        let mut out = wire.out();
        let mut used = 0;
        let error = loop {
            let UnbufferedStatus { mut discard, state } = session.process(&mut incoming[used..]);
            let goes_on = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        discard += record.discard;
                        let mut rest = record.payload;
                        if let Some(into) = &mut into {
                            let (now, later) = rest.split_at(rest.len().min(into.remaining()));
                            for piece in now.chunks(COPY) {
                                into.put_slice(piece);
                            }
                            rest = later;
                        }
                        plain.extend_from_slice(rest);
                    }
                    true
                }
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, &mut out)?;
                    true
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    true
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.ended = true;
                    true
                }
                Ok(
                    ConnectionState::BlockedHandshake
                    | ConnectionState::WriteTraffic(_)
                    | ConnectionState::Closed,
                ) => false,
                // None is asked for.
                Ok(ConnectionState::ReadEarlyData(_) | _) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                Err(error) => break error,
            };
            used += discard;
            if !goes_on {
                drop(out);
                wire.sends(cx);
                return Ok(used);
            }
        };
        self.failed = true;
        // An alert says why.
        while session.wants_write() {
            let state = session.process(&mut incoming[used..]).state;
            let Ok(ConnectionState::EncodeTlsData(data)) = state else {
                break;
            };
            encode(data, &mut out)?;
        }
        drop(out);
        let _ = wire.poll_send(cx);
        Err(invalid(error))
    }

    /// Passes what may be written to `write`, with the bytes that the socket is to send behind `room` more.
    fn write(
        &mut self,
        room: usize,
        write: impl FnOnce(WriteTraffic<'_, S::Data>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> io::Result<()> {
        if self.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut out = self.wire.out();
        loop {
            match self
                .session
                .process(&mut self.partial)
                .state
                .map_err(invalid)?
            {
                ConnectionState::WriteTraffic(traffic) => {
                    return out.append(room, |bytes| {
                        write(traffic, bytes).map_err(io::Error::other)
                    });
                }
                ConnectionState::EncodeTlsData(data) => encode(data, &mut out)?,
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.ended = true,
                ConnectionState::ReadTraffic(_)
                | ConnectionState::ReadEarlyData(_)
                | ConnectionState::BlockedHandshake
                | ConnectionState::Closed
                | _ => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }

    fn poll_encrypt(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.wire.poll_room(cx))?;
        let bytes = &bytes[..bytes.len().min(WRITE)];
        let room = bytes.len() + OVERHEAD * (1 + bytes.len() / RECORD);
        self.write(room, |mut traffic, room| traffic.encrypt(bytes, room))?;
        self.wire.sends(cx);
        Poll::Ready(Ok(bytes.len()))
    }
}

/// Appends what TLS itself says to the peer.
fn encode<D>(mut data: EncodeTlsData<'_, D>, out: &mut Out) -> io::Result<()> {
    let needed = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            required_size
        }
        Ok(_) | Err(EncodeError::AlreadyEncoded) => return Ok(()),
    };
    out.append(needed, |bytes| data.encode(bytes).map_err(io::Error::other))
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<S: Session> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = &mut *self;
        let before = into.filled().len();
        loop {
            // Ahead of all that may have to wait: with `Pending` it would be lost.
            if into.remaining() == 0 || into.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            let rest = &own.plain[own.read..];
            if !rest.is_empty() {
                // As each read of a socket does: one that sends much does not keep others waiting.
                ready!(coop::poll_proceed(cx)).made_progress();
                let len = rest.len().min(into.remaining());
                into.put_slice(&rest[..len]);
                own.read += len;
                if own.read == own.plain.len() {
                    (own.plain, own.read) = (Vec::new(), 0);
                }
                return Poll::Ready(Ok(()));
            }
            if own.ended {
                return Poll::Ready(Ok(()));
            }
            if own.failed {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            match ready!(own.poll_more(cx, Some(into))) {
                // An end without TLS's own is one that anybody on the way can make.
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                // What came ahead of it is read first.
                Err(_) if into.filled().len() > before => {}
                read => drop(read?),
            }
        }
    }
}

impl<S: Session> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = slices {
            return self.poll_encrypt(cx, only);
        }
        // A record for all of them, not one for each.
        OUTGOING.with_borrow_mut(|all| {
            all.resize(AHEAD, 0);
            for slice in slices {
                let room = AHEAD + WRITE - all.len();
                for piece in slice[..slice.len().min(room)].chunks(COPY) {
                    all.extend_from_slice(piece);
                }
            }
            self.poll_encrypt(cx, &all[AHEAD..])
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Again it writes nothing, and after an error it fails.
        let _ = self.write(OVERHEAD, |mut traffic, room| {
            traffic.queue_close_notify(room)
        });
        self.wire.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
