//! The TUN device.

use std::os::fd::OwnedFd;

/// An open TUN device.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Takes over an open TUN device.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Returns its descriptor.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}
