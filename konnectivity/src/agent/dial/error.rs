//! Why a destination was not reached, in the words of Go's `net` package.
//!
//! ```text
//! stage, errno, name ──▶ DialFault ──Display──▶ "dial tcp 127.0.0.1:1: connect: connection refused"
//! ```
//!
//! Those words are part of the protocol: servers choose an HTTP status by them, and people know
//! them. Chooses no status itself.

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

/// A failed dial. Its text is what the server is told.
#[derive(Debug, thiserror::Error)]
#[error("dial {network}{fault}")]
pub(crate) struct DialError {
    /// What was asked for: `tcp`, `tcp4`, `tcp6` or an unknown network.
    pub(super) network: String,
    pub(crate) fault: DialFault,
}

/// What went wrong, and at which address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DialFault {
    /// The destination is no `host:port`.
    #[error(": address {0}: {1}")]
    Address(String, &'static str),
    /// The kernel refused this call. Its reason is part of the text in Go's words, so it is no
    /// source of its own.
    #[error(" {0}: {1}: {text}", text = errno_text(.2))]
    Connect(SocketAddr, &'static str, io::Error),
    /// The list of destinations does not have the address that would have been dialed for this
    /// destination.
    #[error(" {0}: destination {1} is not allowed")]
    Forbidden(SocketAddr, String),
    /// The name leads nowhere.
    #[error(": lookup {0}: {1}")]
    Lookup(String, LookupFault),
    /// No answer came from the address that was tried last.
    #[error(" {0}: i/o timeout")]
    Timeout(SocketAddr),
    /// As many dials as may be are under way.
    #[error(" {0}: more than {1} dials under way")]
    TooMany(String, usize),
    /// Not a network of TCP.
    #[error(": unknown network {0}")]
    UnknownNetwork(String),
}

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LookupFault {
    /// The servers, or their configuration, are at fault.
    #[error("server misbehaving")]
    Misbehaving,
    /// There is no such name, or it has no address of the wanted family.
    #[error("no such host")]
    NoSuchHost,
    /// No server answered in time.
    #[error("i/o timeout")]
    Timeout,
}

impl DialFault {
    /// Returns whether this is a time-out, as Go sees it: the metric's label.
    pub(crate) fn is_timeout(&self) -> bool {
        self.weight() == Weight::Timeout
    }

    /// Returns how much this explains, among failures at different addresses.
    pub(super) fn weight(&self) -> Weight {
        match self {
            Self::Connect(_, _, error) => match Errno::from_io_error(error) {
                Some(Errno::CONNREFUSED) => Weight::Refused,
                // Go takes these for time-outs.
                Some(Errno::AGAIN | Errno::TIMEDOUT) => Weight::Timeout,
                Some(
                    Errno::ADDRNOTAVAIL
                    | Errno::AFNOSUPPORT
                    | Errno::HOSTUNREACH
                    | Errno::NETDOWN
                    | Errno::NETUNREACH,
                ) => Weight::Unreachable,
                _ => Weight::Other,
            },
            Self::Lookup(_, LookupFault::Timeout) | Self::Timeout(_) => Weight::Timeout,
            Self::Address(..)
            | Self::Forbidden(..)
            | Self::Lookup(..)
            | Self::TooMany(..)
            | Self::UnknownNetwork(_) => Weight::Other,
        }
    }
}

/// How much a failure at one of several addresses explains why none was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// There is no way to that address: so it is with IPv6 on a node that has none.
    Unreachable,
    /// No answer came from there.
    Timeout,
    /// Anything else.
    Other,
    /// The host is there and refuses the port.
    Refused,
}

/// Returns Go's text for a system call's error: lower case and without the number, the same
/// whatever C library this is built with.
fn errno_text(error: &io::Error) -> String {
    let known = match Errno::from_io_error(error) {
        Some(Errno::ACCESS) => "permission denied",
        Some(Errno::ADDRINUSE) => "address already in use",
        Some(Errno::ADDRNOTAVAIL) => "cannot assign requested address",
        Some(Errno::AFNOSUPPORT) => "address family not supported by protocol",
        Some(Errno::AGAIN) => "resource temporarily unavailable",
        Some(Errno::CONNREFUSED) => "connection refused",
        Some(Errno::CONNRESET) => "connection reset by peer",
        Some(Errno::HOSTDOWN) => "host is down",
        Some(Errno::HOSTUNREACH) => "no route to host",
        Some(Errno::INVAL) => "invalid argument",
        Some(Errno::MFILE) => "too many open files",
        Some(Errno::NETDOWN) => "network is down",
        Some(Errno::NETUNREACH) => "network is unreachable",
        Some(Errno::NFILE) => "too many open files in system",
        Some(Errno::NOBUFS) => "no buffer space available",
        Some(Errno::NOMEM) => "cannot allocate memory",
        Some(Errno::PERM) => "operation not permitted",
        Some(Errno::PROTO) => "protocol error",
        Some(Errno::TIMEDOUT) => "connection timed out",
        _ => return unnumbered(&error.to_string()),
    };
    known.to_owned()
}

/// Removes the number from a text of the standard library and begins it in lower case.
fn unnumbered(text: &str) -> String {
    let text = text
        .rfind(" (os error")
        .map_or(text, |end| text.get(..end).unwrap_or(text));
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(letters).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_those_of_go() {
        for (call, errno, text, timeout) in [
            ("connect", Errno::CONNREFUSED, "connection refused", false),
            (
                "connect",
                Errno::NETUNREACH,
                "network is unreachable",
                false,
            ),
            ("connect", Errno::HOSTUNREACH, "no route to host", false),
            ("connect", Errno::TIMEDOUT, "connection timed out", true),
            ("socket", Errno::MFILE, "too many open files", false),
            ("connect", Errno::INVAL, "invalid argument", false),
        ] {
            let address = "127.0.0.1:1".parse().unwrap();
            let error = DialFault::Connect(address, call, errno.into());
            let expected = format!(" 127.0.0.1:1: {call}: {text}");
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.is_timeout(), timeout, "{text}");
        }
        for (fault, text, timeout) in [
            (LookupFault::NoSuchHost, "no such host", false),
            (LookupFault::Timeout, "i/o timeout", true),
        ] {
            let error = DialFault::Lookup("x.invalid".to_owned(), fault);
            let expected = format!(": lookup x.invalid: {text}");
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.is_timeout(), timeout, "{text}");
        }
    }

    #[test]
    fn unlisted_error_loses_number_and_capital() {
        assert_eq!(unnumbered("Broken pipe (os error 32)"), "broken pipe");
        assert_eq!(unnumbered(""), "");
        assert_eq!(unnumbered("already lower"), "already lower");
    }
}
