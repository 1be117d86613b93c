//! The few HTTP answers a CONNECT listener gives, and closing after one so that it arrives.
//!
//! Decides no more than the status of a refused CONNECT.

use std::time::Duration;

use preamble::HttpVersion;
use relay::Socket;
use serve::Reason;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// Longest time an answer may take to be written, and then to be read by the peer.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
const LINGER_LIMIT: Duration = Duration::from_secs(1);

/// Bytes of the peer that are discarded at most meanwhile.
const LINGER_BYTES: usize = 64 * 1024;

/// An answer, ready to be written.
#[derive(Debug)]
pub(crate) struct Answer {
    text: String,
}

impl Answer {
    /// The tunnel is open; bytes follow.
    pub(crate) fn established(version: HttpVersion) -> Self {
        Self {
            text: format!("{} 200 OK\r\n\r\n", version.as_str()),
        }
    }

    pub(crate) fn bad_request(version: HttpVersion, what: &str) -> Self {
        Self::closing(version, 400, "Bad Request", "", what)
    }

    pub(crate) fn too_large() -> Self {
        let (version, phrase) = (HttpVersion::Http11, "Request Header Fields Too Large");
        Self::closing(version, 431, phrase, "", "head too large")
    }

    /// What a CONNECT that was understood and is not served for `reason` is told.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no other ends a CONNECT that was understood and has no answer yet"
    )]
    pub(crate) fn to_refused_connect(version: HttpVersion, reason: Reason) -> Self {
        let (status, phrase, body) = match reason {
            Reason::UnknownDestination => (404, "Not Found", "unknown destination"),
            Reason::SourceDenied => (403, "Forbidden", "this client may not go there"),
            Reason::ConnectTimeout => {
                let body = "the destination did not answer in time";
                (504, "Gateway Timeout", body)
            }
            Reason::Limit => (503, "Service Unavailable", "too many connections"),
            Reason::ConnectFailed | Reason::ConnectRefused | Reason::NoEndpoint => {
                (503, "Service Unavailable", "no endpoint could be connected")
            }
            _ => (503, "Service Unavailable", "not served"),
        };
        Self::closing(version, status, phrase, "", body)
    }

    /// Redirects any other request to the same host by https (RFC 9110 §15.4.9).
    pub(crate) fn redirect(
        version: HttpVersion,
        host: &str,
        is_connect: bool,
        target: &str,
    ) -> Self {
        let name = without_port(host);
        let path = if target.starts_with('/') && !is_connect {
            target
        } else {
            "/"
        };
        let location = format!("Location: https://{name}{path}\r\n");
        Self::closing(version, 308, "Permanent Redirect", &location, "use https")
    }

    fn closing(version: HttpVersion, status: u16, phrase: &str, extra: &str, body: &str) -> Self {
        let version = version.as_str();
        let length = body.len() + 1;
        let text = format!(
            "{version} {status} {phrase}\r\n{extra}Content-Type: text/plain\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}\n"
        );
        Self { text }
    }

    /// Writes the answer; false when the peer did not take it in time.
    pub(crate) async fn write(&self, stream: &mut Socket) -> bool {
        let written = timeout(WRITE_LIMIT, stream.write_all(self.text.as_bytes())).await;
        matches!(written, Ok(Ok(())))
    }

    /// Writes the answer and gives the peer time to read it.
    pub(crate) async fn write_and_linger(&self, stream: &mut Socket) {
        if self.write(stream).await {
            relay::linger(stream, LINGER_LIMIT, LINGER_BYTES).await;
        }
    }
}

/// Strips the port of an authority: `host:443`, `[::1]:443`, `host`.
fn without_port(authority: &str) -> &str {
    let end = if authority.starts_with('[') {
        authority.find(']').map(|at| at + 1)
    } else {
        authority.rfind(':')
    };
    end.and_then(|end| authority.get(..end))
        .unwrap_or(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(host: &str, is_connect: bool, target: &str) -> String {
        let answer = Answer::redirect(HttpVersion::Http11, host, is_connect, target);
        assert!(answer.text.starts_with("HTTP/1.1 308 "), "{}", answer.text);
        let mut lines = answer.text.lines();
        let location = lines.find_map(|line| line.strip_prefix("Location: "));
        location.unwrap_or_default().to_owned()
    }

    #[test]
    fn redirects_keep_host_and_path() {
        for (host, is_connect, target, location) in [
            ("a.example", false, "/x?y", "https://a.example/x?y"),
            ("a.example:8132", true, "b:443", "https://a.example/"),
            ("[fd00::1]:8132", false, "/", "https://[fd00::1]/"),
            ("[fd00::1]", false, "*", "https://[fd00::1]/"),
        ] {
            assert_eq!(redirect(host, is_connect, target), location);
        }
    }

    #[test]
    fn answers_speak_the_version_of_the_request() {
        let established = Answer::established(HttpVersion::Http10).text;
        assert!(established.starts_with("HTTP/1.0 200"));
        let unknown = Reason::UnknownDestination;
        let refused = Answer::to_refused_connect(HttpVersion::Http11, unknown).text;
        let beginning = "HTTP/1.1 404 Not Found\r\n";
        let end = "Content-Length: 20\r\nConnection: close\r\n\r\nunknown destination\n";
        assert!(refused.starts_with(beginning), "{refused}");
        assert!(refused.ends_with(end), "{refused}");
    }
}
