//! Turns a request in absolute form, as HTTP clients send it to a proxy (RFC 9112 §3.2.2), into the
//! one that its target is sent.
//!
//! ```text
//!   GET http://10.0.0.1:9153/metrics ─▶ 10.0.0.1:9153   GET /metrics, Host, Connection: close
//! ```
//!
//! A connection carries one request, without a body, so that no end of a request or response has
//! to be found: the target closes the connection behind its response (RFC 9112 §9.6), which passes
//! as it is. No `Via` is added: servers answer proxies without compression.

use preamble::RequestHead;

/// Returns the target with its port, and the head that it is sent; `None` for what is not a `GET`
/// of `http` without a body.
pub(crate) fn to_origin(head: &RequestHead<'_>) -> Option<(String, String)> {
    let (scheme, rest) = head.target().split_once("://")?;
    if head.method() != "GET" || !scheme.eq_ignore_ascii_case("http") || head.announces_body() {
        return None;
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let has_port = authority.contains(':') && !authority.ends_with(']');
    let port = if has_port { "" } else { ":80" };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let version = head.version().as_str();
    let start =
        format!("GET {slash}{path} {version}\r\nHost: {authority}\r\nConnection: close\r\n");
    let dropped: Vec<&str> = options(head).chain(HOP_BY_HOP.split(' ')).collect();
    let mut lines = vec![start];
    for (name, value) in head.headers() {
        if !dropped.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            lines.push(format!("{name}: {value}\r\n"));
        }
    }
    lines.push("\r\n".to_owned());
    Some((format!("{authority}{port}"), lines.concat()))
}

/// Returns the options of `Connection`, which are also names of fields.
pub(crate) fn options<'a>(head: &RequestHead<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = head.header_values("connection");
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Fields of the connection with the proxy, named in `Connection` or not (RFC 9110 §7.6.1), and those
/// that are written anew.
const HOP_BY_HOP: &str = "connection content-length host keep-alive proxy-authorization \
                          proxy-connection te trailer upgrade";
