//! A client that writes frames of HTTP/2 (RFC 9113) as it likes. It reads headers no further than their first
//! byte, which is enough for `:status` 200 and 400.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::client::TlsStream;

use testkit::certs::Identity;

use super::World;
use crate::support::LIMIT;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

pub(super) struct Frames {
    stream: TlsStream<TcpStream>,
    next: u32,
    /// The code of GOAWAY, if one was read.
    pub(super) goaway: Option<u32>,
}

/// What the gateway says of a stream, or of the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Said {
    Status(u16),
    /// The stream is reset, with this code.
    Reset(u32),
    /// The connection ends, with the code of GOAWAY if there is one.
    Ended(Option<u32>),
}

#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frames {
    pub(super) async fn open(world: &World, identity: Option<&Identity>) -> Self {
        let mut this = Self {
            stream: world.raw(identity, "h2").await,
            next: 1,
            goaway: None,
        };
        this.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        this.frame(SETTINGS, 0, 0, &[]).await;
        this
    }

    /// Writes bytes; returns whether the connection takes them, within the limit.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> bool {
        let written = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        timeout(LIMIT, written).await.is_ok_and(|own| own.is_ok())
    }

    pub(super) async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.write(&encode(kind, flags, stream, payload)).await
    }

    /// Begins a request, and returns its stream.
    pub(super) async fn request(&mut self, headers: &[(&str, &str)], flags: u8) -> u32 {
        let stream = self.stream_id();
        self.frame(HEADERS, END_HEADERS | flags, stream, &block(headers))
            .await;
        stream
    }

    /// Begins a plain GET, and returns its stream.
    pub(super) async fn get(&mut self, path: &str) -> u32 {
        self.request(&head("GET", path), END_STREAM).await
    }

    pub(super) fn stream_id(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Reads the next frame; `None` at the end.
    ///
    /// # Panics
    /// When neither comes within the limit.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        let read = timeout(LIMIT, self.read()).await;
        read.expect("a frame, or the end")
    }

    /// Reads the next frame; `None` when there is none for this long.
    ///
    /// # Panics
    /// At the end.
    pub(super) async fn next_within(&mut self, limit: Duration) -> Option<Frame> {
        let read = timeout(limit, self.read()).await.ok()?;
        Some(read.expect("a connection that goes on"))
    }

    async fn read(&mut self) -> Option<Frame> {
        let read = async {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await?;
            let [a, b, c, kind, flags, d, e, f, g] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.stream.read_exact(&mut payload).await?;
            std::io::Result::Ok(Frame {
                kind,
                flags,
                stream: u32::from_be_bytes([d & 0x7f, e, f, g]),
                payload,
            })
        };
        let frame = read.await.ok()?;
        if frame.kind == GOAWAY {
            self.goaway = Some(code(&frame.payload[4..]));
        }
        Some(frame)
    }

    /// Waits for what is said of a stream; SETTINGS are acknowledged, all else is left out.
    pub(super) async fn said(&mut self, stream: u32) -> Said {
        let by = Instant::now() + LIMIT;
        loop {
            let next = timeout_at(by, self.next()).await.expect("a frame");
            let Some(frame) = next else {
                return Said::Ended(self.goaway);
            };
            match frame.kind {
                HEADERS if frame.stream == stream => return Said::Status(status(&frame.payload)),
                RST_STREAM if frame.stream == stream => return Said::Reset(code(&frame.payload)),
                SETTINGS if frame.flags & ACK == 0 => {
                    self.frame(SETTINGS, ACK, 0, &[]).await;
                }
                _ => {}
            }
        }
    }

    /// Waits for the end of the connection, and returns the code of GOAWAY, if there was one.
    pub(super) async fn ended(&mut self) -> Option<u32> {
        match self.said(u32::MAX).await {
            Said::Ended(code) => code,
            other @ (Said::Status(_) | Said::Reset(_)) => panic!("{other:?}"),
        }
    }

    /// Answers whether the connection still serves.
    pub(super) async fn serves(&mut self) -> bool {
        let stream = self.get("/a").await;
        self.said(stream).await == Said::Status(200)
    }
}

pub(super) fn encode(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The pseudo-headers of a request.
pub(super) fn head<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
    [
        (":method", method),
        (":scheme", "https"),
        (":authority", super::NAME),
        (":path", path),
    ]
}

/// Encodes headers as literals that nothing indexes (RFC 7541 section 6.2.2).
pub(super) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            integer(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// RFC 7541 section 5.1, with a prefix of seven bits.
fn integer(into: &mut Vec<u8>, value: usize) {
    let Some(mut rest) = value.checked_sub(127) else {
        into.push(u8::try_from(value).unwrap());
        return;
    };
    into.push(127);
    while rest >= 128 {
        into.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    into.push(u8::try_from(rest).unwrap());
}

/// RFC 7541 appendix A; after an update of the table's size.
fn status(block: &[u8]) -> u16 {
    let first = block.iter().find(|byte| **byte & 0xe0 != 0x20);
    match first {
        Some(0x88) => 200,
        Some(0x8c) => 400,
        _ => 0,
    }
}

fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}
