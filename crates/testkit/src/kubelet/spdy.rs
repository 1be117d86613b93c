//! What kubectl speaks behind an upgrade to SPDY/3.1: streams of `exec`, `attach` and `port-forward`.
//!
//! ```text
//!     exec, attach:  error, stdin, stdout, stderr in this order, those that were asked for
//!     port-forward:  error and data, for each connection
//! ```
//!
//! Streams of a process are known by their order: the compressed headers of the client are not read. Its own headers are empty,
//! and compressed without being so (RFC 1951 section 3.2.4). It keeps no window, as the client does not.

use anyhow::{Result, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::https::pattern;

/// What is run.
#[derive(Debug)]
pub(super) struct Process {
    /// What the client asks for, beside the stream of errors.
    pub(super) input: bool,
    pub(super) output: bool,
    pub(super) error: bool,
    /// Bytes of a pattern to begin with.
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Error,
    Input,
    Output,
}

struct Session<S> {
    stream: S,
    streams: Vec<(u32, Role)>,
    replied: bool,
}

/// Echoes input, or only writes the pattern where there is none, and ends with success.
pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin>(stream: S, own: Process) -> Result<()> {
    let asked = [
        (true, Role::Error),
        (own.input, Role::Input),
        (own.output, Role::Output),
        (own.error, Role::Output),
    ];
    let roles: Vec<Role> = asked
        .into_iter()
        .filter_map(|(asked, role)| asked.then_some(role))
        .collect();
    let mut session = Session::new(stream);
    let mut begun = false;
    while let Some(frame) = session.next().await? {
        match frame {
            Frame::Syn(id) => {
                let role = roles.get(session.streams.len()).copied();
                session.accept(id, role.unwrap_or(Role::Error)).await?;
                if session.streams.len() == roles.len() && !begun {
                    begun = true;
                    let output = session.first(Role::Output);
                    for piece in pattern(own.bytes).chunks(PIECE) {
                        session.data(output, 0, piece).await?;
                    }
                    if !own.input {
                        session.finish().await?;
                    }
                }
            }
            Frame::Data(id, end, bytes) if session.role(id) == Some(Role::Input) => {
                let output = session.first(Role::Output);
                session.data(output, 0, &bytes).await?;
                if end {
                    session.finish().await?;
                }
            }
            Frame::Data(..) | Frame::Other => {}
        }
    }
    Ok(())
}

/// Echoes what each connection sends, until it ends. A stream of errors ends as the client ends it, without a word.
pub(super) async fn forward<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Result<()> {
    let mut session = Session::new(stream);
    while let Some(frame) = session.next().await? {
        match frame {
            Frame::Syn(id) => session.accept(id, Role::Error).await?,
            Frame::Data(id, end, bytes) => session.data(id, u8::from(end), &bytes).await?,
            Frame::Other => {}
        }
    }
    Ok(())
}

enum Frame {
    Syn(u32),
    /// Of a stream, whether it is its last, and what it carries.
    Data(u32, bool, Vec<u8>),
    Other,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    fn new(stream: S) -> Self {
        Self {
            stream,
            streams: Vec::new(),
            replied: false,
        }
    }

    async fn next(&mut self) -> Result<Option<Frame>> {
        let mut head = [0; 8];
        if self.stream.read_exact(&mut head).await.is_err() {
            return Ok(None);
        }
        let [a, b, c, d, flags, x, y, z] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, x, y, z]) as usize];
        self.stream.read_exact(&mut payload).await?;
        if a & 0x80 == 0 {
            let id = u32::from_be_bytes([a, b, c, d]);
            return Ok(Some(Frame::Data(id, flags & FIN != 0, payload)));
        }
        ensure!((a, b) == (0x80, 3), "not SPDY/3");
        match (u16::from_be_bytes([c, d]), payload.first_chunk()) {
            (SYN_STREAM, Some(id)) => Ok(Some(Frame::Syn(u32::from_be_bytes(*id)))),
            (PING, _) => {
                self.control(PING, &payload).await?;
                Ok(Some(Frame::Other))
            }
            _ => Ok(Some(Frame::Other)),
        }
    }

    async fn accept(&mut self, id: u32, role: Role) -> Result<()> {
        self.streams.push((id, role));
        let mut reply = id.to_be_bytes().to_vec();
        if !self.replied {
            self.replied = true;
            reply.extend(ZLIB);
        }
        reply.extend(NO_HEADERS);
        self.control(SYN_REPLY, &reply).await
    }

    fn role(&self, id: u32) -> Option<Role> {
        let found = self.streams.iter().find(|own| own.0 == id);
        found.map(|own| own.1)
    }

    fn first(&self, role: Role) -> u32 {
        let found = self.streams.iter().find(|own| own.1 == role);
        found.map_or(0, |own| own.0)
    }

    /// Ends all output, with success.
    async fn finish(&mut self) -> Result<()> {
        for (id, role) in self.streams.clone() {
            match role {
                Role::Output => self.data(id, FIN, &[]).await?,
                Role::Error => {
                    self.data(id, FIN, SUCCESS).await?;
                }
                Role::Input => {}
            }
        }
        Ok(())
    }

    async fn data(&mut self, id: u32, flags: u8, payload: &[u8]) -> Result<()> {
        let [_, x, y, z] = u32::try_from(payload.len())?.to_be_bytes();
        let [a, b, c, d] = id.to_be_bytes();
        self.write(&[a, b, c, d, flags, x, y, z], payload).await
    }

    async fn control(&mut self, kind: u16, payload: &[u8]) -> Result<()> {
        let [_, x, y, z] = u32::try_from(payload.len())?.to_be_bytes();
        let [c, d] = kind.to_be_bytes();
        self.write(&[0x80, 3, c, d, 0, x, y, z], payload).await
    }

    async fn write(&mut self, head: &[u8; 8], payload: &[u8]) -> Result<()> {
        self.stream.write_all(&[head, payload].concat()).await?;
        self.stream.flush().await?;
        Ok(())
    }
}

/// How a process ended.
pub(super) const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const PING: u16 = 6;
const FIN: u8 = 1;
const PIECE: usize = 32 * 1024;
/// The head of a zlib stream that has SPDY/3's dictionary (RFC 1950 section 2.2), by its checksum.
const ZLIB: [u8; 6] = [0x78, 0x20, 0xe3, 0xc6, 0xa7, 0xc2];
/// A stored block with a count of 0, and an empty one, at which a reader hands on what it has.
const NO_HEADERS: [u8; 14] = [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
