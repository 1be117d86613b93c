//! What kubectl speaks behind an upgrade to WebSocket (RFC 6455), since 1.31 before it tries SPDY.
//!
//! ```text
//!     exec, attach:  v5.channel.k8s.io: the first byte of a message is its channel; 255 closes the one that follows
//!     port-forward:  SPDY/3.1+portforward.k8s.io: messages are pieces of a stream of SPDY
//! ```

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::spdy::{self, Process, SUCCESS};
use crate::https::pattern;

/// Returns what proves to a client that its key was read (section 4.2.2).
pub(super) fn accept(key: &[u8]) -> String {
    let text = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &text))
}

/// Echoes input, or only writes the pattern where there is none, and ends with success.
pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin>(stream: S, own: Process) -> Result<()> {
    let mut session = Session(stream);
    for piece in pattern(own.bytes).chunks(PIECE) {
        session.channel(OUTPUT, piece).await?;
    }
    let mut is_over = !own.input;
    while !is_over {
        let Some(message) = session.next().await? else {
            return Ok(());
        };
        match message.split_first() {
            Some((&INPUT, bytes)) => session.channel(OUTPUT, bytes).await?,
            Some((&CLOSE_CHANNEL, [INPUT])) => is_over = true,
            _ => {}
        }
    }
    session.channel(ERROR, SUCCESS).await?;
    session.send(CLOSE, &NORMAL.to_be_bytes()).await?;
    while session.next().await?.is_some() {}
    Ok(())
}

/// Carries SPDY, until the client ends.
pub(super) async fn forward<S: AsyncRead + AsyncWrite + Unpin + Send>(stream: S) -> Result<()> {
    let (within, without) = tokio::io::duplex(PIECE);
    let (mut reading, writing) = tokio::io::split(stream);
    let mut writing = Session(writing);
    let served = spdy::forward(within);
    let carried = async {
        let (mut back, mut out) = tokio::io::split(without);
        let up = async {
            while let Some(frame) = read(&mut reading).await? {
                match frame.kind {
                    BINARY | CONTINUED => out.write_all(&frame.payload).await?,
                    CLOSE => break,
                    _ => {}
                }
            }
            anyhow::Ok(())
        };
        let down = async {
            let mut bytes = vec![0; PIECE];
            while let read @ 1.. = back.read(&mut bytes).await? {
                writing.send(BINARY, &bytes[..read]).await?;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            ended = up => ended,
            ended = down => ended,
        }
    };
    tokio::select! {
        ended = served => ended,
        ended = carried => ended,
    }
}

struct Session<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Returns the next message; `None` at the end. Answers a ping.
    async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        while let Some(frame) = read(&mut self.0).await? {
            match frame.kind {
                BINARY | CONTINUED => {
                    message.extend(frame.payload);
                    if frame.is_last {
                        return Ok(Some(message));
                    }
                }
                PING => self.send(PONG, &frame.payload).await?,
                CLOSE => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }

    async fn channel(&mut self, channel: u8, bytes: &[u8]) -> Result<()> {
        self.send(BINARY, &[&[channel], bytes].concat()).await
    }
}

impl<S: AsyncWrite + Unpin> Session<S> {
    /// Sends a message in one frame (section 5.2).
    async fn send(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let mut frame = vec![0x80 | kind];
        match payload.len() {
            length @ 0..126 => frame.push(u8::try_from(length)?),
            length @ 126..0x1_0000 => {
                frame.push(126);
                frame.extend(u16::try_from(length)?.to_be_bytes());
            }
            length => {
                frame.push(127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(payload);
        self.0.write_all(&frame).await.context("sending")?;
        self.0.flush().await.context("sending")
    }
}

struct Frame {
    kind: u8,
    is_last: bool,
    payload: Vec<u8>,
}

/// Reads a frame, which a client must mask (section 5.3).
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<Frame>> {
    let mut head = [0; 2];
    if stream.read_exact(&mut head).await.is_err() {
        return Ok(None);
    }
    ensure!(head[1] & 0x80 != 0, "a client's frame is not masked");
    let length = match head[1] & 0x7f {
        126 => u64::from(stream.read_u16().await?),
        127 => stream.read_u64().await?,
        short => u64::from(short),
    };
    if length > 16 << 20 {
        bail!("a frame of {length} bytes");
    }
    let mut mask = [0; 4];
    stream.read_exact(&mut mask).await?;
    let mut payload = vec![0; usize::try_from(length)?];
    stream.read_exact(&mut payload).await?;
    let masked = payload.iter_mut().zip(mask.iter().cycle());
    masked.for_each(|(byte, mask)| *byte ^= mask);
    Ok(Some(Frame {
        kind: head[0] & 0x0f,
        is_last: head[0] & 0x80 != 0,
        payload,
    }))
}

const CONTINUED: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const NORMAL: u16 = 1000;
const INPUT: u8 = 0;
const OUTPUT: u8 = 1;
const ERROR: u8 = 3;
const CLOSE_CHANNEL: u8 = 255;
const PIECE: usize = 32 * 1024;
