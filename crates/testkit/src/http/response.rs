//! The head of an answer, its body, and a body that never ends.

use std::io::{self, BufRead, BufReader, Read};

use anyhow::{Context, Result, ensure};

use super::connection::{MAX_HEAD_BYTES, Stream, read_line};

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body, without transfer coding.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the body as text; what is no UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| {
            let start: String = self.text().chars().take(200).collect();
            format!("reading JSON from {start:?}")
        })
    }

    /// Returns the first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(&found.1)
    }

    pub(super) fn is_chunked(&self) -> bool {
        self.header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    }

    /// Reads the head; [`Self::read_body`] reads the rest.
    pub(super) fn read_head(stream: &mut impl BufRead) -> Result<Self> {
        let first = read_line(stream)?;
        let status = first
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
            .with_context(|| format!("{first:?} is no status line"))?;
        let (mut headers, mut bytes) = (Vec::new(), first.len() as u64);
        loop {
            let line = read_line(stream)?;
            bytes += line.len() as u64;
            let fits = bytes <= MAX_HEAD_BYTES;
            ensure!(fits, "a head above {MAX_HEAD_BYTES} bytes");
            if line.is_empty() {
                let body = Vec::new();
                return Ok(Self {
                    status,
                    headers,
                    body,
                });
            }
            let (name, value) = line.split_once(':').context("a header without a colon")?;
            headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }

    pub(super) fn read_body(mut self, stream: &mut impl BufRead) -> Result<Self> {
        if self.is_chunked() {
            while let Some(chunk) = read_chunk(stream)? {
                self.body.extend(chunk);
                let fits = self.body.len() <= MAX_BODY_BYTES;
                ensure!(fits, "a body above {MAX_BODY_BYTES} bytes");
            }
        } else if let Some(length) = self.header("content-length") {
            let length = length.parse().context("reading a content length")?;
            self.body = read_exactly(stream, length)?;
        } else if self.status != 204 && self.status != 304 {
            let mut rest = stream.take(MAX_BODY_BYTES as u64);
            rest.read_to_end(&mut self.body).context("reading a body")?;
        }
        Ok(self)
    }
}

/// An answer that goes on: one JSON object per line, as a Kubernetes watch sends them.
#[derive(Debug)]
pub struct Watch {
    stream: BufReader<Stream>,
    pending: Vec<u8>,
}

impl Watch {
    pub(super) fn new(stream: BufReader<Stream>) -> Self {
        Self {
            stream,
            pending: Vec::new(),
        }
    }

    /// Waits for the next event; `None` when the server ended the watch in good order.
    pub fn next_event(&mut self) -> Result<Option<serde_json::Value>> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let event = serde_json::from_slice(&line);
                return event.map(Some).context("reading an event");
            }
            match read_chunk(&mut self.stream).context("reading a watch")? {
                Some(chunk) => self.pending.extend(chunk),
                None => return Ok(None),
            }
            let fits = self.pending.len() <= MAX_BODY_BYTES;
            ensure!(fits, "an event above {MAX_BODY_BYTES} bytes");
        }
    }
}

#[derive(Debug)]
pub struct Body {
    stream: BufReader<Stream>,
    left: u64,
}

impl Body {
    pub(super) fn new(stream: BufReader<Stream>, left: u64) -> Self {
        Self { stream, left }
    }

    pub fn left(&self) -> u64 {
        self.left
    }

    /// Waits for the next `bytes` bytes, or as many as are left.
    pub fn next(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let wanted = usize::try_from(self.left).map_or(bytes, |left| left.min(bytes));
        let bytes = read_exactly(&mut self.stream, wanted)?;
        self.left -= wanted as u64;
        Ok(bytes)
    }
}

/// Reads one chunk (RFC 9112 section 7.1); `None` for the last one.
fn read_chunk(stream: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let line = read_line(stream)?;
    let digits = line.split(';').next().unwrap_or_default().trim();
    let length = usize::from_str_radix(digits, 16)
        .with_context(|| format!("{line:?} is no length of a chunk"))?;
    let chunk = read_exactly(stream, length)?;
    let end = read_line(stream)?;
    ensure!(end.is_empty(), "{end:?} follows a chunk");
    Ok((length > 0).then_some(chunk))
}

fn read_exactly(stream: &mut impl BufRead, length: usize) -> Result<Vec<u8>> {
    let fits = length <= MAX_BODY_BYTES;
    ensure!(fits, "{length} bytes are more than {MAX_BODY_BYTES}");
    let mut bytes = Vec::new();
    let read = stream.take(length as u64).read_to_end(&mut bytes);
    read.context("reading a body")?;
    if bytes.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof))
            .context("a body that is cut off");
    }
    Ok(bytes)
}

const MAX_BODY_BYTES: usize = 256 * 1024 * 1024;
