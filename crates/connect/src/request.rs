//! What a client asked for.
//!
//! Does not decide whether it is allowed.

use preamble::{HttpVersion, http_connect::is_host};

/// A well-formed CONNECT, or a request in absolute form that is forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The request target as sent, or its authority: `host:port` in a proper request, the host in
    /// brackets when it is an IPv6 address. Only bytes that a host and port may have, at most
    /// [`Params::target_bytes`](crate::Params::target_bytes) of them; that there is a port is not
    /// checked.
    pub target: String,
    /// The version of the request.
    pub version: HttpVersion,
}

impl Request {
    /// Returns `None` when the target is no authority or too long.
    pub(crate) fn new(target: &str, version: HttpVersion, max_bytes: usize) -> Option<Self> {
        let proper = target.len() <= max_bytes && is_host(target);
        proper.then(|| Self {
            target: target.to_owned(),
            version,
        })
    }

    /// Returns the target's host, without brackets, and its port.
    ///
    /// `None` when there is no port, when it is not a number from 1 to 65535, when the host is
    /// empty, or when an IPv6 address lacks its brackets.
    pub fn host_port(&self) -> Option<(&str, u16)> {
        let (host, port) = self.target.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']')?,
            None if host.contains([':', ']']) => return None,
            None => host,
        };
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|&port| digits && port != 0)?;
        (!host.is_empty() && !host.contains(['[', ']'])).then_some((host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_split_at_last_colon() {
        let bad = "a a: :80 []:80 a:0 a:65536 a:+1 fd00::1:443 [a:1 a]:1 [fd00::1] [fd00::1]443 \
                   [[a]]:1 ";
        let bad = bad.split(' ').map(|target| (target, None));
        let good = [
            ("a.example:80", Some(("a.example", 80))),
            ("10.0.0.1:65535", Some(("10.0.0.1", 65535))),
            ("[fd00::1]:443", Some(("fd00::1", 443))),
        ];
        for (target, expected) in good.into_iter().chain(bad) {
            let request = Request {
                target: target.to_owned(),
                version: HttpVersion::Http11,
            };
            assert_eq!(request.host_port(), expected, "{target:?}");
        }
    }
}
