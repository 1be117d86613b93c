//! The answer to a CONNECT that gets no tunnel.
//!
//! Does not decide when one is due.

/// Why a CONNECT gets no tunnel, and the words it is told so with.
///
/// Written as status line, the fields of [`RefusalHeaders`], an empty line and the body, without a
/// `Content-Length`: the connection's end is the body's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// A word from a closed set of the implementation's, for logs and metrics.
    pub reason: &'static str,
    /// The body, written as it is.
    pub body: String,
    /// The header fields.
    pub headers: RefusalHeaders,
}

/// The header fields of a [`Refusal`]; the reference proxy server has three ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalHeaders {
    /// `Content-Type: text/plain` alone: no agent was there to be asked.
    Bare,
    /// `Connection: close` and `Content-Type: text/plain; charset=utf-8`: the dial failed.
    Closing,
    /// `Content-Type: text/plain; charset=utf-8` alone: the dial could not be sent or was not
    /// answered.
    Typed,
}

impl Refusal {
    /// Makes a refusal with [`RefusalHeaders::Closing`].
    #[must_use]
    pub fn new(status: u16, reason: &'static str, body: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            body: body.into(),
            headers: RefusalHeaders::Closing,
        }
    }

    /// Changes the header fields.
    #[must_use]
    pub fn with_headers(mut self, headers: RefusalHeaders) -> Self {
        self.headers = headers;
        self
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Self { status, body, .. } = self;
        let fields = match self.headers {
            RefusalHeaders::Bare => "Content-Type: text/plain\r\n",
            RefusalHeaders::Closing => {
                "Connection: close\r\nContent-Type: text/plain; charset=utf-8\r\n"
            }
            RefusalHeaders::Typed => "Content-Type: text/plain; charset=utf-8\r\n",
        };
        let phrase = phrase(*status);
        format!("HTTP/1.1 {status} {phrase}\r\n{fields}\r\n{body}").into_bytes()
    }
}

/// The reason phrase of a status, as Go's HTTP library spells it. Of those that a proxy has a use
/// for; nobody may rely on a phrase anyway (RFC 9112 §4).
fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Refused",
    }
}
