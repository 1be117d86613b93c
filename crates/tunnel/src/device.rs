//! The TUN device: opened with its offloads, read one super-packet at a time, written in batches.
//!
//! ```text
//!   kernel ─ read ──▶ Port ──▶ Packet: VnetHeader, one packet or a super-packet
//!   kernel ◀─ writev ─ Port ◀── Batch: opened packets, joined into super-packets
//! ```
//!
//! With offloads the kernel hands over and takes up to 64 KiB at once, and leaves checksums to
//! us. What it cannot do is found out at the start or at the first refusal, and done without.
//!
//! Addresses, routes and size of the device are `net_config`'s; cutting and joining packets is
//! `tunnel_proto::ip`'s.

mod batch;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tun_rs::{DeviceBuilder, SyncDevice};
use tunnel_proto::ip::vnet::{self, VnetHeader};

use crate::settings::DeviceName;

pub use batch::{Batch, Written};

/// Bytes to read into: the largest packet of IP with a header in front.
pub const READ_BUFFER: usize = vnet::LEN + 65_535;

/// What an open device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// There is a [`VnetHeader`] in front of every packet.
    pub vnet: bool,
    /// TCP segments are joined before they are written.
    pub join_tcp: bool,
    /// UDP datagrams are (Linux 6.2).
    pub join_udp: bool,
}

/// An open TUN device that no thread uses yet.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    abilities: Abilities,
}

impl Device {
    /// Opens the device of this name, in the network namespace of the calling thread, if it is
    /// there and free, else makes one that goes with the process: not up and without addresses.
    /// With `offloads`, segmentation and checksums are left to the kernel where it can
    /// (`IFF_VNET_HDR`).
    ///
    /// # Errors
    ///
    /// [`DeviceError`].
    pub fn open(name: &DeviceName, offloads: bool) -> Result<Self, DeviceError> {
        let name = name.as_str();
        let (device, vnet) = match build(name, offloads) {
            // A kernel without the header or without its offloads.
            Err(error) if offloads && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                (build(name, false), false)
            }
            built => (built, offloads),
        };
        let device = device.map_err(|source| DeviceError::of(name, source))?;
        let abilities = Abilities {
            vnet,
            join_tcp: vnet,
            join_udp: vnet && device.udp_gso(),
        };
        tracing::info!(device = %name, ?abilities, "device opened");
        let fd = device.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|source| DeviceError::of(name, source))?;
        Ok(Self { fd, abilities })
    }

    /// Returns two that are each other's network, without a kernel's network between them: what
    /// one writes the other one reads. For tests.
    ///
    /// # Errors
    ///
    /// An error of the kernel.
    pub fn pair(abilities: Abilities) -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let end = |fd| Self { fd, abilities };
        Ok((end(one), end(other)))
    }
}

/// A device in use by its thread.
#[derive(Debug)]
pub struct Port {
    fd: AsyncFd<OwnedFd>,
    abilities: Abilities,
    broken: u64,
}

/// What was read from a device.
#[derive(Debug)]
pub struct Packet<'a> {
    /// What is left to do for it.
    pub vnet: VnetHeader,
    /// From the IP header to the end of the data.
    pub bytes: &'a mut [u8],
}

impl Port {
    /// Takes the device into use. Must be called within the runtime that polls it.
    ///
    /// # Errors
    ///
    /// An error of the kernel.
    pub fn new(device: Device) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&device.fd, true)?;
        #[expect(
            deprecated,
            reason = "sound for a descriptor that is owned; its replacement is unsafe code"
        )]
        let fd = AsyncFd::with_interest(device.fd, Interest::READABLE)?;
        Ok(Self {
            fd,
            abilities: device.abilities,
            broken: 0,
        })
    }

    /// Returns what the device does.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Is ready when there may be something to read; call [`Port::read`] until it returns `None`
    /// before asking again.
    ///
    /// # Errors
    ///
    /// The runtime is shutting down.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The readiness stays until a read finds nothing.
        Poll::Ready(ready!(self.fd.poll_read_ready(cx)).map(drop))
    }

    /// Reads a packet without waiting; `None` when there is none. What does not fit `buffer` is
    /// cut off, so that it should have [`READ_BUFFER`] bytes.
    ///
    /// # Errors
    ///
    /// An error of the kernel: the device is gone.
    pub fn read<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<Packet<'a>>> {
        let (vnet, front, len) = loop {
            let Some(len) = self.read_once(buffer)? else {
                return Ok(None);
            };
            if !self.abilities.vnet {
                break (VnetHeader::default(), 0, len);
            }
            let read = buffer.get(..len).unwrap_or_default();
            match VnetHeader::parse(read) {
                Ok(vnet) => break (vnet, vnet::LEN, len),
                Err(_) => self.broken += 1,
            }
        };
        let bytes = buffer.get_mut(front..len).unwrap_or_default();
        Ok(Some(Packet { vnet, bytes }))
    }

    fn read_once(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let read = self.fd.try_io(Interest::READABLE, |fd| {
            Ok(rustix::io::retry_on_intr(|| {
                rustix::io::read(fd, &mut *buffer)
            })?)
        });
        match read {
            // The other end of a pair has been closed; a device does not end.
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes one packet or super-packet, put together from `parts`, the first of which is the
    /// encoded [`VnetHeader`] if the device has one. At most 1024 parts.
    ///
    /// # Errors
    ///
    /// An error of the kernel; nothing was written then.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let write = || rustix::io::writev(self.fd.get_ref(), parts);
        rustix::io::retry_on_intr(write)?;
        Ok(())
    }

    /// Returns whether the device was deleted. Nothing can be read any more then, and its readiness does
    /// not show it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.get_ref(), PollFlags::empty())];
        let told = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        // A deleted device polls as an error, the closed end of a pair as hung up.
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        told.is_ok() && fds.iter().any(|fd| fd.revents().intersects(gone))
    }

    /// Returns how many packets were read since the last call whose header is not understood.
    pub fn take_broken(&mut self) -> u64 {
        std::mem::take(&mut self.broken)
    }
}

fn build(name: &str, offloads: bool) -> io::Result<SyncDevice> {
    // Up or down is not ours.
    let builder = DeviceBuilder::new().name(name).inherit_enable_state();
    builder.offload(offloads).build_sync()
}

/// Why there is no device, and what an operator can do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct DeviceError {
    what: String,
    source: io::Error,
}

impl DeviceError {
    fn of(name: &str, source: io::Error) -> Self {
        let errno = source.raw_os_error().map(Errno::from_raw_os_error);
        let what = match errno {
            Some(Errno::BUSY) => format!("the device {name} is in use by another process"),
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                "there is no /dev/net/tun: the module `tun` is missing, or the container lacks the device".to_owned()
            }
            Some(Errno::PERM | Errno::ACCESS) => format!(
                "the TUN device {name} needs the capability NET_ADMIN, and access to /dev/net/tun"
            ),
            _ => format!(
                "the TUN device {name} cannot be opened; is another kind of device called so?"
            ),
        };
        Self { what, source }
    }
}

#[cfg(test)]
pub(crate) mod tests;
