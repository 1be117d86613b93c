//! Sockets that systemd passed at start (sd_listen_fds(3)).
//!
//! Does not read the environment: the binary's configuration does and passes the three values in.

use std::io;
use std::net::TcpListener;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// First descriptor the service manager passes (SD_LISTEN_FDS_START).
const FIRST: i32 = 3;

/// Maximum number of sockets taken over.
const MAX_SOCKETS: i32 = 64;

/// A listening socket of the service manager.
#[derive(Debug)]
pub struct InheritedSocket {
    /// Name from `LISTEN_FDNAMES`, empty when none was given.
    pub name: String,
    pub(crate) socket: TcpListener,
}

impl InheritedSocket {
    /// Returns the port the socket listens on.
    pub fn port(&self) -> Option<u16> {
        self.socket.local_addr().ok().map(|addr| addr.port())
    }
}

/// Takes the sockets that the environment announces for this process, in order.
///
/// `pid`, `fds` and `names` are the values of `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES`;
/// sockets meant for another process are left alone. Each is duplicated through a pidfd
/// (Linux 5.6), because owning a bare number cannot be done safely.
///
/// # Errors
/// A value that is not a number, or the kernel's error for a descriptor.
pub fn inherited_sockets(
    pid: Option<&str>,
    fds: Option<&str>,
    names: Option<&str>,
) -> io::Result<Vec<InheritedSocket>> {
    let (Some(pid), Some(fds)) = (pid, fds) else {
        return Ok(Vec::new());
    };
    let number = |variable: &str, value: &str| {
        value.parse::<i32>().map_err(|_| {
            let text = format!("{variable} is {value:?}, not a number");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })
    };
    if number("LISTEN_PID", pid)? != getpid().as_raw_nonzero().get() {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS", fds)?;
    if !(0..=MAX_SOCKETS).contains(&count) {
        let text = format!("LISTEN_FDS is {count}, allowed are 0 to {MAX_SOCKETS}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let ours = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut names = names.unwrap_or_default().split(':');
    (FIRST..FIRST + count)
        .map(|fd| {
            let socket = pidfd_getfd(&ours, fd, PidfdGetfdFlags::empty())?;
            let name = names.next().unwrap_or_default().to_owned();
            let socket = TcpListener::from(socket);
            if !socket2::SockRef::from(&socket).is_listener()? {
                let text = format!("descriptor {fd} ({name}) is not a listening socket");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            Ok(InheritedSocket { name, socket })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_values_are_ignored_invalid_named() {
        for pid in [None, Some("1")] {
            assert!(inherited_sockets(pid, Some("2"), None).unwrap().is_empty());
        }
        let pid = std::process::id().to_string();
        assert!(
            inherited_sockets(Some(&pid), None, None)
                .unwrap()
                .is_empty()
        );
        for (fds, why) in [
            ("two", "LISTEN_FDS is \"two\", not a number"),
            ("65", "LISTEN_FDS is 65, allowed are 0 to 64"),
        ] {
            let error = inherited_sockets(Some(&pid), Some(fds), None).unwrap_err();
            assert_eq!(error.to_string(), why);
        }
    }
}
