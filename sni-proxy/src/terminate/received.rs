//! Answers of one pooled connection, read ahead of clients that stopped reading.
//!
//! ```text
//!     h2, frame by frame ──▶ a client that reads
//!                └─ every 256 KiB ─▶ ahead, in one piece ─▶ once it reads again
//! ```
//!
//! h2 holds what is unread as it came: a frame of few bytes takes some hundred, and a connection with many of
//! them is ended, for all its streams. Nothing is read beyond a stream's window, which stays used until its client
//! takes the bytes.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::RecvStream;
use slab::Slab;

/// Bytes of a connection after which it is looked for clients that stopped reading; a turn of its task reads at
/// most four times as many. In frames of one byte both take half of what h2 permits (`CONNECTION_WINDOW`).
const PERIOD: u64 = 256 * 1024;
/// Bytes that are taken at a time, as a frame of HTTP/2 has by default.
const PIECE: usize = 16 * 1024;

/// The answers whose streams are open.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    open: RefCell<Slab<Rc<RefCell<Received>>>>,
    /// Bytes that the connection had received when this was done last.
    gathered: Cell<u64>,
}

impl Answers {
    /// Adds an answer.
    pub(crate) fn add(self: &Rc<Self>, stream: RecvStream) -> Listed {
        let received = Rc::new(RefCell::new(Received {
            stream,
            ahead: Vec::new(),
            taken: Bytes::new(),
            read: 0,
        }));
        Listed {
            key: self.open.borrow_mut().insert(Rc::clone(&received)),
            received,
            of: Rc::clone(self),
        }
    }

    /// Reads ahead for clients that stopped reading, if the connection has received enough since.
    pub(crate) fn gather(&self, received: u64) {
        if received < self.gathered.get() + PERIOD {
            return;
        }
        self.gathered.set(received);
        for (_, own) in self.open.borrow().iter() {
            own.borrow_mut().gather();
        }
    }
}

/// An answer that is among the open ones until this is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    received: Rc<RefCell<Received>>,
    key: usize,
    of: Rc<Answers>,
}

impl Deref for Listed {
    type Target = RefCell<Received>;

    fn deref(&self) -> &RefCell<Received> {
        &self.received
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        drop(self.of.open.borrow_mut().try_remove(self.key));
    }
}

/// A stream of a server's, and what was read ahead of it.
#[derive(Debug)]
pub(crate) struct Received {
    stream: RecvStream,
    ahead: Vec<u8>,
    /// Of what was read ahead, what its client takes now.
    taken: Bytes,
    /// Bytes that the client took since this was looked at last.
    read: usize,
}

impl Received {
    /// Returns the next bytes, and lets the server send as many more.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if self.taken.is_empty() && !self.ahead.is_empty() {
            self.taken = std::mem::take(&mut self.ahead).into();
        }
        let data = if self.taken.is_empty() {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => data,
                other => return Poll::Ready(other),
            }
        } else {
            self.taken.split_to(PIECE.min(self.taken.len()))
        };
        self.read += data.len();
        let _ = self.stream.flow_control().release_capacity(data.len());
        Poll::Ready(Some(Ok(data)))
    }

    pub(crate) fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<http::HeaderMap>, h2::Error>> {
        self.stream.poll_trailers(cx)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.taken.is_empty() && self.stream.is_end_stream()
    }

    fn gather(&mut self) {
        // One that reads much is not copied; in small frames few can, within a period.
        if std::mem::take(&mut self.read) >= PIECE {
            return;
        }
        let used = self.stream.flow_control().used_capacity();
        let unread = used.saturating_sub(self.ahead.len() + self.taken.len());
        if unread == 0 {
            return;
        }
        self.ahead.reserve_exact(unread);
        // A client that waited was woken when these bytes came. Its end, and an error, are there again when it asks.
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(data))) = self.stream.poll_data(&mut cx) {
            self.ahead.extend_from_slice(&data);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use http::{HeaderMap, Request, Response};
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::{LocalSet, spawn_local};
    use tokio::time::{sleep, timeout};

    use super::*;

    /// More than a window, in frames of two bytes.
    const FRAMES: u16 = 60_000;

    /// Answers with numbers, some at a time, and with trailers.
    async fn serve(stream: DuplexStream) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        tokio::spawn(async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            for number in 0..FRAMES {
                let bytes = Bytes::copy_from_slice(&number.to_be_bytes());
                stream.send_data(bytes, false).unwrap();
                if number % 5000 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("a", http::HeaderValue::from_static("b"));
            stream.send_trailers(trailers).unwrap();
        });
        while connection.accept().await.is_some() {}
    }

    async fn read(pause: Duration) {
        let (client, server) = duplex(64 * 1024);
        tokio::spawn(serve(server));
        let (mut sender, connection) = h2::client::Builder::new()
            .data_frame_budget(usize::MAX)
            .handshake::<_, Bytes>(client)
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = Request::get("https://a/").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let answers = Rc::<Answers>::default();
        let listed = answers.add(response.await.unwrap().into_body());
        let ahead = Rc::clone(&answers);
        let gathering = spawn_local(async move {
            for period in 1.. {
                ahead.gather(period * PERIOD);
                sleep(Duration::from_millis(1)).await;
            }
        });
        let mut bytes = Vec::new();
        while let Some(data) = poll_fn(|cx| listed.borrow_mut().poll_data(cx)).await {
            assert!(!listed.borrow().is_end_stream());
            let before = bytes.len();
            bytes.extend_from_slice(&data.unwrap());
            if bytes.len() / 8192 > before / 8192 {
                sleep(pause).await;
            }
        }
        let trailers = poll_fn(|cx| listed.borrow_mut().poll_trailers(cx)).await;
        assert_eq!(trailers.unwrap().unwrap().len(), 1);
        assert!(listed.borrow().is_end_stream());
        let expected = (0..FRAMES).flat_map(u16::to_be_bytes);
        assert!(bytes.into_iter().eq(expected));
        gathering.abort();
        drop(listed);
        assert!(answers.open.borrow().is_empty());
    }

    #[tokio::test]
    async fn answer_is_whole_however_it_is_read_ahead() {
        for pause in [0, 100].map(Duration::from_millis) {
            // In a task of its own, which nothing else wakes.
            let tasks = LocalSet::new();
            let reading = tasks.spawn_local(read(pause));
            let reading = tasks.run_until(timeout(Duration::from_secs(60), reading));
            reading.await.expect("the end").unwrap();
        }
    }
}
