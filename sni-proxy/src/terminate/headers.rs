//! What of a request's head the gateway takes out, puts in, and refuses.
//!
//! The authenticating proxy's headers are the gateway's alone: every spelling of them goes, in trailers as
//! well. So does what ends at this hop (RFC 9110 section 7.6.1).

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Request, StatusCode};

/// Removes what a client may not say to an API server, and says where it comes from.
pub(crate) fn clean(headers: &mut HeaderMap, client: IpAddr) {
    remove_hop_by_hop(headers);
    remove_identity(headers);
    if let Ok(client) = HeaderValue::from_str(&client.to_string()) {
        headers.insert(FORWARDED_FOR, client);
    }
}

/// Removes every header by which a proxy tells who a client is, or where it is.
pub(crate) fn remove_identity(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| tells_identity(name))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// Removes what is about this connection.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn tells_identity(name: &HeaderName) -> bool {
    let name = name.as_str();
    let starts = |prefix: &str| {
        name.len() >= prefix.len()
            && name
                .bytes()
                .zip(prefix.bytes())
                .all(|(byte, of)| match byte {
                    b'_' => of == b'-',
                    other => other == of,
                })
    };
    let is = |whole: &str| name.len() == whole.len() && starts(whole);
    starts("x-remote-") || starts("x-forwarded-") || is("forwarded") || is("x-real-ip")
}

/// Returns the protocol that a request of HTTP/1.1 asks to go on with, if it is one of Kubernetes'. No other may
/// be: in HTTP/2, say, further requests would pass, with headers that nothing cleans.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers.get_all(header::CONNECTION).iter().any(|value| {
        let mut tokens = value.as_bytes().split(|byte| *byte == b',');
        tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    let mut protocols = headers.get_all(header::UPGRADE).iter();
    let (protocol, more) = (protocols.next()?, protocols.next());
    let known = UPGRADES
        .iter()
        .any(|known| protocol.as_bytes().eq_ignore_ascii_case(known));
    (asks && known && more.is_none()).then(|| protocol.clone())
}

/// Finds the host that a request is for: that of HTTP/2 and of an absolute target, and `Host`; they must not
/// differ.
pub(crate) fn authority<B>(request: &Request<B>) -> Result<Option<Authority>, StatusCode> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(StatusCode::BAD_REQUEST);
    }
    let host = host
        .map(|host| Authority::try_from(host.as_bytes()))
        .transpose()
        .map_err(|_| StatusCode::BAD_REQUEST)?;
    let target = request.uri().authority();
    if !target.is_none_or(is_host_and_port) || !host.as_ref().is_none_or(is_host_and_port) {
        return Err(StatusCode::BAD_REQUEST);
    }
    match (target, host) {
        (Some(target), Some(host)) if *target != host => Err(StatusCode::BAD_REQUEST),
        (Some(target), _) => Ok(Some(target.clone())),
        (None, host) => Ok(host),
    }
}

/// The URI crate takes a user, and any word for a port.
fn is_host_and_port(own: &Authority) -> bool {
    let rest = own.as_str().strip_prefix(own.host());
    rest.is_some_and(|rest| match rest.strip_prefix(':') {
        None => rest.is_empty(),
        // `u16` reads a sign as well.
        Some(port) => {
            port.bytes().all(|byte| byte.is_ascii_digit())
                && (port.is_empty() || port.parse::<u16>().is_ok())
        }
    })
}

/// Returns whether a body is coded in a way that does not end here: `chunked` alone does.
pub(crate) fn is_coded(headers: &HeaderMap) -> bool {
    let mut all = headers.get_all(header::TRANSFER_ENCODING).iter();
    let chunked = |own: &HeaderValue| own.as_bytes().eq_ignore_ascii_case(b"chunked");
    !all.next().is_none_or(chunked) || all.next().is_some()
}

/// Returns whether a request has a token, as API servers read it (RFC 6750 section 2.1).
pub(crate) fn has_token(headers: &HeaderMap) -> bool {
    let value = headers.get(header::AUTHORIZATION);
    let value = value.map(|own| own.as_bytes().trim_ascii());
    value
        .and_then(|own| own.split_at_checked(b"bearer ".len()))
        .is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case(b"bearer ")
                && token.first().is_some_and(u8::is_ascii_graphic)
        })
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const UPGRADES: [&[u8]; 2] = [b"spdy/3.1", b"websocket"];

const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&str, &str)]) -> HeaderMap {
        let parse = |(name, value): &(&str, &str)| {
            let name: HeaderName = name.parse().unwrap();
            (name, value.parse::<HeaderValue>().unwrap())
        };
        all.iter().map(parse).collect()
    }

    #[test]
    fn every_spelling_of_identity_is_removed() {
        let mut all = headers(&[
            ("X-Remote-User", "a"),
            ("x_remote_user", "a"),
            ("X_REMOTE-Group", "a"),
            ("X-Remote-Extra-scopes", "a"),
            ("x-remote-", "a"),
            ("X-Remote-Uid", "a"),
            ("Forwarded", "for=a"),
            ("X_Forwarded_For", "a"),
            ("x-forwarded-proto", "a"),
            ("X-Real_IP", "a"),
            ("Impersonate-User", "kept"),
            ("Authorization", "kept"),
            ("x-remote", "kept"),
            ("xx-remote-user", "kept"),
        ]);
        clean(&mut all, "192.0.2.1".parse().unwrap());
        let mut left: Vec<_> = all.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        let kept = [
            "authorization",
            "impersonate-user",
            "x-forwarded-for",
            "x-remote",
            "xx-remote-user",
        ];
        assert_eq!(left, kept);
        assert_eq!(all["x-forwarded-for"], "192.0.2.1");
    }

    #[test]
    fn headers_named_by_connection_go_before_ours_are_set() {
        let mut all = headers(&[
            ("connection", "close, X-Forwarded-For"),
            ("connection", "authorization ,upgrade"),
            ("authorization", "a"),
            ("upgrade", "websocket"),
            ("te", "trailers"),
            ("accept", "kept"),
        ]);
        clean(&mut all, "192.0.2.1".parse().unwrap());
        let mut left: Vec<_> = all.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "x-forwarded-for"]);
    }

    #[test]
    fn upgrade_needs_both_headers() {
        let asked = |all: &[(&str, &str)]| upgrade(&headers(all)).is_some();
        assert!(asked(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "SPDY/3.1")
        ]));
        assert!(!asked(&[
            ("connection", "keep-alive"),
            ("upgrade", "SPDY/3.1")
        ]));
        assert!(!asked(&[("connection", "upgrade")]));
    }

    #[test]
    fn upgrade_to_unknown_protocol_is_none() {
        for protocol in [
            "h2c",
            "HTTP/2.0",
            "websocket, h2c",
            "h2c, websocket",
            "TLS/1.2",
            "",
        ] {
            let all = [("connection", "upgrade"), ("upgrade", protocol)];
            assert_eq!(upgrade(&headers(&all)), None, "{protocol}");
        }
        let two = [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("upgrade", "h2c"),
        ];
        assert_eq!(upgrade(&headers(&two)), None);
    }

    #[test]
    fn authority_is_one_host() {
        let request = |uri: &str, hosts: &[&str]| {
            let mut request = Request::builder().uri(uri);
            for host in hosts {
                request = request.header("host", *host);
            }
            authority(&request.body(()).unwrap())
        };
        let found = |uri, hosts: &[&str]| request(uri, hosts).unwrap().unwrap().to_string();
        assert_eq!(found("/", &["a.example.com"]), "a.example.com");
        assert_eq!(found("https://a.example.com/", &[]), "a.example.com");
        assert_eq!(
            found("https://a.example.com/", &["A.example.com"]),
            "a.example.com"
        );
        assert_eq!(request("/", &[]), Ok(None));
        for hosts in [&["a", "a"][..], &["a b"], &["b.example.com"]] {
            assert_eq!(
                request("https://a.example.com/", hosts),
                Err(StatusCode::BAD_REQUEST)
            );
        }
        for port in ["a:x", "a:65536", "a:+1", "a:1:2"] {
            assert_eq!(
                request("/", &[port]),
                Err(StatusCode::BAD_REQUEST),
                "{port}"
            );
        }
        assert_eq!(found("/", &["a:443"]), "a:443");
        let users = ["https://a@a.example.com/", "/"].map(|uri| request(uri, &["b:1@b:1"]));
        assert!(users.iter().all(|own| *own == Err(StatusCode::BAD_REQUEST)));
    }

    #[test]
    fn token_is_what_api_servers_take_for_one() {
        for (value, has) in [
            ("Bearer a", true),
            (" bearer a b ", true),
            ("", false),
            ("Bearer", false),
            ("Bearer ", false),
            ("Bearer  a", false),
            ("Bearer\ta", false),
            ("Bearera", false),
            ("Basic Og==", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(has_token(&headers), has, "{value:?}");
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static("a"));
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
            assert!(!has_token(&headers), "not the first: {value:?}");
        }
        assert!(!has_token(&HeaderMap::new()));
    }
}
