//! The Unix socket between two processes of a handover: whole messages, with descriptors.
//!
//! Bounded in bytes and descriptors by [`wire`](super::wire); time is the caller's.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::wire::{HEAD, Head, MAX_DESCRIPTORS, Message, WireError, encode};

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
}

/// A message as it came.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) message: Message,
    pub(super) descriptors: Vec<OwnedFd>,
    /// The bytes behind its JSON.
    pub(super) tail: Vec<u8>,
}

/// What ended the talk with the other process.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("the other process")]
    Io(#[from] io::Error),
    #[error("the other process says what this one does not understand")]
    Wire(#[from] WireError),
}

impl Channel {
    /// Takes a connected socket whose peer is a process of this user.
    ///
    /// # Errors
    /// `PermissionDenied` if the peer is another user's.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let peer = stream.peer_cred()?.uid();
        if peer != rustix::process::geteuid().as_raw() {
            let text = format!("the other process belongs to the user {peer}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { stream })
    }

    /// Connects to the process that serves at `path`.
    ///
    /// # Errors
    /// As connect(2) has them, and as [`Channel::new`].
    pub(super) async fn connect(path: &Path) -> io::Result<Self> {
        Self::new(UnixStream::connect(path).await?)
    }

    /// Sends a message with descriptors, and `tail` behind it. Not cancel-safe: the channel is of no use
    /// after that.
    pub(super) async fn send(
        &mut self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        tail: &[u8],
    ) -> Result<(), ChannelError> {
        let frame = encode(message, tail.len(), descriptors.len())?;
        let sent = self.stream.async_io(Interest::WRITABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty()
                && !control.push(SendAncillaryMessage::ScmRights(descriptors))
            {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            // The descriptors go with the first byte, however many are taken (unix(7)).
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            Ok(sendmsg(
                &self.stream,
                &[IoSlice::new(&frame)],
                &mut control,
                flags,
            )?)
        });
        let sent = sent.await?;
        self.stream
            .write_all(frame.get(sent..).unwrap_or_default())
            .await?;
        self.stream.write_all(tail).await?;
        Ok(())
    }

    /// Waits until the other process has closed its end, or says what is not asked for. Cancel-safe.
    pub(super) async fn gone(&mut self) {
        let _ = self.stream.read(&mut [0; 1]).await;
    }

    /// Has the other process find that what it sends from now on comes too late; what it has sent can be
    /// received.
    pub(super) fn shut(&self) {
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Read);
    }

    /// Ends the talk by telling why nothing more is taken. The other process finds the channel closed when this
    /// one has ended, unless it is dropped before.
    pub(super) fn refuse(self, reason: String) -> Arc<UnixStream> {
        // One that has said more than was read finds what it says next refused, at the latest.
        if let Ok(frame) = encode(&Message::Refused { reason }, 0, 0) {
            let _ = self.stream.try_write(&frame);
        }
        self.shut();
        Arc::new(self.stream)
    }

    /// Ends the talk, as an end of stream, with nothing more to give. As [`Channel::refuse`] otherwise.
    pub(super) fn end(self) -> Arc<UnixStream> {
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Write);
        Arc::new(self.stream)
    }

    /// Waits for a message. Not cancel-safe: the channel is of no use after that.
    pub(super) async fn receive(&mut self) -> Result<Received, ChannelError> {
        let mut head = [0; HEAD];
        let mut descriptors = Vec::new();
        let mut read = 0;
        while read < HEAD {
            let part = self.stream.async_io(Interest::READABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let into = head.get_mut(read..).unwrap_or_default();
                let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
                let part = recvmsg(
                    &self.stream,
                    &mut [IoSliceMut::new(into)],
                    &mut control,
                    flags,
                )?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(all) = message {
                        descriptors.extend(all);
                    }
                }
                Ok(part.bytes)
            });
            let part = part.await?;
            if part == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            read += part;
        }
        let head = Head::parse(head)?;
        // Fewer where this process may not have as many.
        if descriptors.len() != head.descriptors {
            let text = format!(
                "{} of {} descriptors came",
                descriptors.len(),
                head.descriptors
            );
            return Err(io::Error::other(text).into());
        }
        let mut bytes = vec![0; head.json + head.tail];
        self.stream.read_exact(&mut bytes).await?;
        let tail = bytes.split_off(head.json);
        let message = serde_json::from_slice(&bytes).map_err(WireError::from)?;
        Ok(Received {
            message,
            descriptors,
            tail,
        })
    }
}
