//! What the gateway makes of a request and of a client's certificate where TLS ends in it, as plain functions that
//! panic when a law does not hold.
//!
//! ```text
//! fuzz_targets/{request,subject}.rs ─────(exploring)────────┐
//! sni-proxy/tests/it/replay.rs ─────────────────────────────┴─▶ request, subject
//! ```
//!
//! A request is a target in the first line and a header in each other; what the `http` crate refuses is left out, as
//! hyper leaves none of it through. A subject is a certificate in DER.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue, Request};

#[path = "../sni-proxy/src/terminate/headers.rs"]
mod headers;
#[path = "../sni-proxy/src/terminate/subject.rs"]
mod subject;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// A head: what is left is what came, without identity and what ends at this hop.
pub(crate) fn request(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let target = lines.next().unwrap_or_default();
    let mut all = HeaderMap::new();
    for line in lines.take(100) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        if let (Ok(name), Ok(value)) = (
            name,
            HeaderValue::from_bytes(line[colon + 1..].trim_ascii()),
        ) {
            all.append(name, value);
        }
    }
    let mut clean = all.clone();
    headers::clean(&mut clean, CLIENT);
    let mut expected: Vec<(String, Vec<u8>)> = pairs(&all);
    let named = tokens(&all);
    expected.retain(|(name, _)| {
        !is_identity(name) && !HOP_BY_HOP.contains(&name.as_str()) && !named.contains(name)
    });
    expected.push((
        "x-forwarded-for".to_owned(),
        CLIENT.to_string().into_bytes(),
    ));
    expected.sort_unstable();
    let mut left = pairs(&clean);
    left.sort_unstable();
    assert_eq!(left, expected);
    let mut again = clean.clone();
    headers::clean(&mut again, CLIENT);
    assert_eq!(again, clean);

    let mut trailers = all.clone();
    headers::remove_identity(&mut trailers);
    assert!(trailers.keys().all(|name| !is_identity(name.as_str())));

    if let Some(protocol) = headers::upgrade(&all) {
        let known: [&[u8]; 2] = [b"spdy/3.1", b"websocket"];
        let protocol = protocol.as_bytes().to_ascii_lowercase();
        assert!(known.contains(&&*protocol));
        assert_eq!(all.get_all("upgrade").iter().count(), 1);
        assert!(named.contains(&"upgrade".to_owned()));
    }
    if headers::has_token(&all) {
        let value = all["authorization"].as_bytes().trim_ascii();
        assert!(value.to_ascii_lowercase().starts_with(b"bearer "));
    }
    if !headers::is_coded(&all) {
        assert!(all.get_all("transfer-encoding").iter().count() < 2);
    }

    let mut request = Request::builder().uri(target).body(());
    if let Ok(request) = &mut request {
        *request.headers_mut() = all;
        let Ok(Some(found)) = headers::authority(request) else {
            return;
        };
        let text = found.as_str();
        assert!(!text.contains('@'), "{text}");
        let port = text.strip_prefix(found.host()).unwrap_or("?");
        let digits = port.strip_prefix(':').unwrap_or(port);
        assert!(digits.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        for host in request.headers().get_all("host") {
            assert!(
                host.as_bytes().eq_ignore_ascii_case(text.as_bytes()),
                "{text}"
            );
        }
    }
}

/// A certificate: who it names is in it, byte for byte, and can be nothing but text.
pub(crate) fn subject(input: &[u8]) {
    let Some(found) = subject::Subject::of(input) else {
        return;
    };
    for value in std::iter::once(&found.user).chain(&found.groups) {
        let bytes = value.as_bytes();
        assert!(!bytes.is_empty());
        assert!(input.windows(bytes.len()).any(|own| own == bytes));
        let text = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(text, text.trim());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

fn pairs(all: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let own =
        |(name, value): (&HeaderName, &HeaderValue)| (name.to_string(), value.as_bytes().to_vec());
    all.iter().map(own).collect()
}

/// Whether a server that takes `_` for `-` would believe it.
fn is_identity(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    let whole = ["forwarded", "x-real-ip"].contains(&name.as_str());
    whole || name.starts_with("x-remote-") || name.starts_with("x-forwarded-")
}

fn tokens(all: &HeaderMap) -> Vec<String> {
    let values = all.get_all("connection").iter();
    let tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let tokens = tokens.map(|own| own.trim_ascii().to_ascii_lowercase());
    tokens
        .filter_map(|own| String::from_utf8(own).ok())
        .collect()
}
