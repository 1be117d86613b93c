//! A netlink socket: requests answered by an acknowledgement or a dump, and multicast events.
//!
//! The kernel handles a request while it is being sent, so an answer is there at once; the deadline
//! is for what should not happen. One [`Connection`] serves one exchange after the other and is
//! thrown away after an error, so no late answer meets the wrong request.

use std::{io, time::Duration};

use netlink_sys::{Socket, SocketAddr};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

use crate::{
    attributes::{self, MESSAGE_HEADER, Message, Request, messages},
    error::NetlinkError,
};

/// How long an answer may take.
const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// The kernel fills dump datagrams up to 32 KiB (`netlink_dump`) and sends none that is longer
/// unless a single message is.
const BUFFER: usize = 32 * 1024;

/// How often a dump is read anew when the kernel says it changed meanwhile (`NLM_F_DUMP_INTR`).
const DUMP_ATTEMPTS: usize = 5;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A bound netlink socket and its receive buffer.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: AsyncFd<Socket>,
    buf: Vec<u8>,
    sequence: u32,
}

impl Connection {
    /// Opens a socket of `protocol` that also receives the multicast `groups` (a bit mask).
    pub(crate) fn open(protocol: isize, groups: u32) -> Result<Self, NetlinkError> {
        let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
        socket.set_non_blocking(true).map_err(failed("fcntl"))?;
        // Both only improve error answers: the reason in words, without our request repeated.
        // Old kernels lack them.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        socket
            .bind(&SocketAddr::new(0, groups))
            .map_err(failed("bind"))?;
        let socket = register(socket).map_err(failed("epoll_ctl"))?;
        Ok(Self {
            socket,
            buf: vec![0; BUFFER],
            sequence: 1,
        })
    }

    /// An empty request with sequence numbers of this connection.
    pub(crate) fn request(&self) -> Request {
        Request::new(self.sequence)
    }

    /// Sends `request` and waits until its acknowledged message is acknowledged, or any is refused.
    pub(crate) async fn acknowledged(&mut self, request: &Request) -> Result<(), NetlinkError> {
        self.send(request).await?;
        loop {
            let datagram = self.reply().await?;
            for message in messages(datagram) {
                let message = message.map_err(|_| NetlinkError::Malformed)?;
                if request.contains(message.sequence) && message.kind == NLMSG_ERROR {
                    return verdict(&message);
                }
            }
        }
    }

    /// Sends the request that `build` writes and returns what `decode` finds in answers of type
    /// `kind`, reading again while the kernel reports a change in between.
    pub(crate) async fn dump<T>(
        &mut self,
        build: impl Fn(Request) -> Request,
        kind: u16,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let request = build(self.request());
            self.send(&request).await?;
            let mut found = Vec::new();
            let each = |message: Message<'_>| {
                if message.kind == kind {
                    found.extend(decode(message.payload));
                }
            };
            if self.collect(&request, each).await? {
                return Ok(found);
            }
        }
        Err(NetlinkError::Inconsistent)
    }

    /// Reads one dump to its end; tells whether it is consistent.
    async fn collect(
        &mut self,
        request: &Request,
        mut each: impl FnMut(Message<'_>),
    ) -> Result<bool, NetlinkError> {
        let mut consistent = true;
        loop {
            let datagram = self.reply().await?;
            for message in messages(datagram) {
                let message = message.map_err(|_| NetlinkError::Malformed)?;
                if !request.contains(message.sequence) {
                    continue;
                }
                consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => return verdict(&message).map(|()| consistent),
                    _ => each(message),
                }
            }
        }
    }

    async fn send(&mut self, request: &Request) -> Result<(), NetlinkError> {
        // Far below 2^32 exchanges in a connection's life; wrapping keeps even that harmless.
        self.sequence = self.sequence.wrapping_add(1 << 12);
        let kernel = SocketAddr::new(0, 0);
        let sending = self.socket.async_io(Interest::WRITABLE, |socket| {
            socket.send_to(request.bytes(), &kernel, 0)
        });
        within(sending).await?.map_err(failed("sendto"))?;
        Ok(())
    }

    /// One datagram from the kernel, within the deadline.
    async fn reply(&mut self) -> Result<&[u8], NetlinkError> {
        let bytes = within(receive(&self.socket, &mut self.buf)).await??;
        Ok(&self.buf[..bytes])
    }

    /// The next datagram from the kernel, without a deadline. Cancel-safe: nothing is lost.
    ///
    /// # Errors
    /// `Socket` with `ENOBUFS` when events were lost because they came faster than they were read.
    pub(crate) async fn next(&mut self) -> Result<&[u8], NetlinkError> {
        let bytes = receive(&self.socket, &mut self.buf).await?;
        Ok(&self.buf[..bytes])
    }

    /// Throws away what has been received, at most `limit` datagrams.
    pub(crate) fn discard(&mut self, limit: usize) {
        for _ in 0..limit {
            match self.socket.get_ref().recv(&mut &mut self.buf[..], 0) {
                Ok(_) => {}
                // The socket told of lost events; what follows in the queue is still to be read.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "the replacement is unsafe and asks that the descriptor stays open and the same for \
              the value's life, which holds for a `Socket`: it owns its descriptor"
)]
fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    AsyncFd::new(socket)
}

async fn receive(socket: &AsyncFd<Socket>, buf: &mut [u8]) -> Result<usize, NetlinkError> {
    loop {
        let (bytes, sender) = socket
            .async_io(Interest::READABLE, |socket| {
                socket.recv_from(&mut &mut *buf, libc::MSG_TRUNC)
            })
            .await
            .map_err(failed("recvfrom"))?;
        // Any process may send to a netlink port; the kernel's is 0.
        if sender.port_number() != 0 {
            continue;
        }
        if bytes > buf.len() {
            return Err(NetlinkError::Truncated { bytes });
        }
        return Ok(bytes);
    }
}

async fn within<T>(answer: impl Future<Output = T>) -> Result<T, NetlinkError> {
    timeout(REPLY_LIMIT, answer)
        .await
        .map_err(|_| NetlinkError::Timeout { limit: REPLY_LIMIT })
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> NetlinkError {
    move |source| NetlinkError::Socket { call, source }
}

/// What an acknowledgement, an error or the end of a dump says: a negative error number, or 0.
fn verdict(message: &Message<'_>) -> Result<(), NetlinkError> {
    let code = attributes::u32_at(message.payload, 0).ok_or(NetlinkError::Malformed)?;
    let is_error = message.kind == NLMSG_ERROR;
    let flags = if is_error { message.flags } else { 0 };
    let answered = message.payload.get(4..).unwrap_or_default();
    refusal(code.cast_signed(), flags, answered)
}

/// The error that `code` and the bytes behind it tell, unless it is 0: with `NLM_F_ACK_TLVS` in
/// `flags`, the header that is answered is followed by attributes.
fn refusal(code: i32, flags: u16, answered: &[u8]) -> Result<(), NetlinkError> {
    if code == 0 {
        return Ok(());
    }
    let told = (flags & NLM_F_ACK_TLVS != 0).then(|| answered.get(MESSAGE_HEADER..));
    let detail = told
        .flatten()
        .and_then(|told| attributes::attribute(told, NLMSGERR_ATTR_MSG))
        .and_then(attributes::text);
    Err(NetlinkError::Refused {
        errno: code.saturating_neg(),
        detail: detail.unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, flags: u16, payload: &[u8]) -> Message<'_> {
        Message {
            kind,
            flags,
            sequence: 1,
            payload,
        }
    }

    #[test]
    fn zero_is_an_acknowledgement() {
        let payload = [0; 20];

        assert!(verdict(&answer(NLMSG_ERROR, 0, &payload)).is_ok());
        assert!(verdict(&answer(NLMSG_DONE, 0, &payload[..4])).is_ok());
    }

    #[test]
    fn a_refusal_carries_the_number_and_the_words() {
        let mut payload = (-libc::EOPNOTSUPP).to_ne_bytes().to_vec();
        payload.extend([0; MESSAGE_HEADER]);
        payload.extend(12_u16.to_ne_bytes());
        payload.extend(NLMSGERR_ATTR_MSG.to_ne_bytes());
        payload.extend(b"unknown\0");

        let refused = verdict(&answer(NLMSG_ERROR, NLM_F_ACK_TLVS, &payload)).unwrap_err();

        assert!(matches!(
            refused,
            NetlinkError::Refused { errno: libc::EOPNOTSUPP, ref detail } if detail == "unknown"
        ));
    }

    #[test]
    fn an_answer_without_a_number_is_malformed() {
        let short = verdict(&answer(NLMSG_ERROR, 0, &[0; 3]));

        assert!(matches!(short, Err(NetlinkError::Malformed)));
    }

    #[test]
    fn the_most_negative_number_does_not_overflow() {
        let payload = i32::MIN.to_ne_bytes();

        let refused = verdict(&answer(NLMSG_ERROR, 0, &payload)).unwrap_err();

        assert_eq!(refused.errno(), Some(i32::MAX));
    }
}
