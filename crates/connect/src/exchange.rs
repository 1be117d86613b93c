//! One exchange: the request, the dial while the client stays, the answer.
//!
//! ```text
//!   request ──▶ while_connected(dial) ──▶ accept ──▶ early bytes, then the tunnel's
//!      │                 │         └────▶ refuse ──▶ the connection's end
//!      └─ 400, 405, 431  └─ 504
//! ```
//!
//! A forwarded request is a tunnel that begins with it; its target's answer is the only one.
//!
//! The caller goes from step to step; nothing is called back. Dials nothing and moves no bytes
//! through a tunnel.

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use crate::answer::{self, Refusal};
use crate::head::{self, Head, Other};
use crate::{Downstream, Params, Request};

/// A connection on the way to its tunnel.
///
/// The steps are to be called in the order of their names here, each once; an error ends the
/// connection, which then only has to be closed. Every wait is bounded by [`Params`], and dropping
/// a step gives up the connection without an answer. Borrows the stream, so that what only these
/// steps need can be dropped while a tunnel is open.
#[derive(Debug)]
pub struct Exchange<'a, S> {
    stream: &'a mut Downstream<S>,
    params: &'a Params,
    /// Read and not yet used: of the next head, then what is meant for the tunnel.
    buf: BytesMut,
    status: Option<u16>,
    other_requests: u32,
}

/// Why a connection ended without a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client did not accept the answer 200 in time.
    AnswerTimeout,
    /// The client went away before it had an answer.
    ClientGone,
    /// The dial took longer than [`Params::dial_limit`].
    DialTimeout,
    /// No whole head came in time.
    HeadTimeout,
    /// The head was not well-formed, or its target no authority.
    Malformed,
    /// The client asked for something that is not a tunnel, and for no tunnel after it.
    MethodNotAllowed,
    /// The head was larger than its bound.
    TooLarge,
}

impl End {
    /// Returns the label for logs and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::AnswerTimeout => "answer_timeout",
            Self::ClientGone => "client_gone",
            Self::DialTimeout => "dial_timeout",
            Self::HeadTimeout => "head_timeout",
            Self::Malformed => "malformed",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::TooLarge => "too_large",
        }
    }
}

impl<'a, S> Exchange<'a, S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Begins on a connection of which nothing has been read.
    pub fn new(stream: &'a mut Downstream<S>, params: &'a Params) -> Self {
        Self {
            stream,
            params,
            buf: BytesMut::new(),
            status: None,
            other_requests: 0,
        }
    }

    /// Returns the status of the last answer, whether or not it could be written.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Returns how many requests that ask for no tunnel were answered.
    pub fn other_requests(&self) -> u32 {
        self.other_requests
    }

    /// Reads requests until one asks for a tunnel, and answers the others.
    ///
    /// # Errors
    /// There is none, and the client was answered as far as it has one coming.
    pub async fn request(&mut self) -> Result<Box<Request>, End> {
        loop {
            let (status, answer, end) =
                match head::read(self.stream, &mut self.buf, self.params).await {
                    Head::Connect(request) => return Ok(request),
                    Head::Forward(request, head) => {
                        self.stream.discards = true;
                        self.buf = head.as_bytes().into();
                        return Ok(request);
                    }
                    Head::Other(other) => {
                        self.answer_other(&other).await?;
                        continue;
                    }
                    Head::Gone if self.other_requests > 0 => return Err(End::MethodNotAllowed),
                    Head::Gone => return Err(End::ClientGone),
                    Head::TimedOut => return Err(End::HeadTimeout),
                    Head::Malformed => (400, answer::BAD_REQUEST, End::Malformed),
                    Head::TooLarge => (431, answer::TOO_LARGE, End::TooLarge),
                };
            self.answer_and_end(status, answer).await;
            return Err(end);
        }
    }

    /// Runs `dial` while watching the client, and keeps what it sends meanwhile.
    ///
    /// # Errors
    /// [`End::ClientGone`] and [`End::DialTimeout`], which is answered with 504; `dial` was dropped
    /// in both cases, and an attempt under way must end with it.
    pub async fn while_connected<T>(&mut self, dial: impl Future<Output = T>) -> Result<T, End> {
        let early_bytes = self.params.early_bytes;
        let dialed = tokio::select! {
            biased;
            dialed = timeout(self.params.dial_limit, dial) => dialed,
            () = client_gone(self.stream, &mut self.buf, early_bytes) => return Err(End::ClientGone),
        };
        match dialed {
            Ok(value) => Ok(value),
            Err(_) => {
                let body = "the destination did not answer in time";
                let end = End::DialTimeout;
                self.refuse(&Refusal::new(504, end.reason(), body)).await;
                Err(end)
            }
        }
    }

    /// Answers 200 to a CONNECT, and returns what goes into the tunnel first: what the client sent
    /// until now, or the head of the request that is forwarded.
    ///
    /// # Errors
    /// [`End::AnswerTimeout`] and [`End::ClientGone`]: the client does not know of the tunnel, which
    /// is to be closed.
    pub async fn accept(&mut self) -> Result<Bytes, End> {
        self.status = Some(200);
        if !self.stream.discards {
            answer::write(self.stream, answer::ESTABLISHED, self.params.answer_limit).await?;
        }
        // Copied, so that the rest of the head's buffer does not live as long as these bytes.
        Ok(Bytes::copy_from_slice(&self.buf))
    }

    /// Answers why there is no tunnel, and gives the client time to read that.
    pub async fn refuse(&mut self, refusal: &Refusal) {
        self.answer_and_end(refusal.status, &refusal.to_bytes())
            .await;
    }

    /// Answers a request that is not CONNECT; an error ends the connection.
    async fn answer_other(&mut self, other: &Other) -> Result<(), End> {
        self.other_requests += 1;
        let keep_alive = other.keep_alive && self.other_requests < self.params.other_requests;
        let answer = answer::method_not_allowed(other.version, other.is_head, !keep_alive);
        if keep_alive {
            self.status = Some(405);
            return answer::write(self.stream, &answer, self.params.answer_limit).await;
        }
        self.answer_and_end(405, &answer).await;
        Err(End::MethodNotAllowed)
    }

    /// Writes the last answer; whether the client reads it changes nothing anymore.
    async fn answer_and_end(&mut self, status: u16, answer: &[u8]) {
        self.status = Some(status);
        let limit = self.params.answer_limit;
        if answer::write(self.stream, answer, limit).await.is_ok() {
            relay::linger(self.stream, self.params.linger_limit, answer::LINGER_BYTES).await;
        }
    }
}

/// Keeps at most `max` bytes that the client sends; returns when the client is gone, and never once
/// the buffer is full.
async fn client_gone<S>(stream: &mut S, early: &mut BytesMut, max: usize)
where
    S: AsyncRead + Unpin,
{
    while early.len() < max {
        let capacity = max - early.len();
        match stream.read_buf(&mut (&mut *early).limit(capacity)).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    std::future::pending().await
}
