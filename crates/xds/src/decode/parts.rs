//! Values that several messages have: addresses, prefixes, durations, matchers of strings.

use std::net::IpAddr;
use std::time::Duration;

use prost::Message;
use prost_types::Any;
use regex_lite::{Regex, RegexBuilder};
use route::{EndpointAddress, IpPrefix};

use crate::decode::fault::{Fault, Within};
use crate::proto::{Address, CidrRange, RegexMatcher, StringMatcher, StringPattern};

/// Bytes of the longest name of a cluster, and of a CONNECT destination, which may be one.
pub const MAX_NAME_BYTES: usize = 2048;

/// Bytes of the longest regular expression.
const MAX_REGEX_BYTES: usize = 4096;

/// Bytes of the largest compiled regular expression.
const MAX_COMPILED_REGEX_BYTES: usize = 1 << 20;

/// Seconds of the longest duration that the wire format allows: 10,000 years.
const MAX_SECONDS: u64 = 315_576_000_000;

/// Unpacks a message of the type `kind`; `None` when the `Any` has another one.
pub(super) fn unpack<M: Message + Default>(any: &Any, kind: &str) -> Result<Option<M>, Fault> {
    if any.type_url.rsplit('/').next() != Some(kind) {
        return Ok(None);
    }
    let message = M::decode(&*any.value);
    message
        .map(Some)
        .map_err(|error| Fault::new(error.to_string()))
}

/// Checks a name that must be there.
pub(super) fn name(name: &str) -> Result<String, Fault> {
    if name.is_empty() {
        Err(Fault::new("it is empty"))
    } else if name.len() > MAX_NAME_BYTES {
        let why = format!("it is longer than {MAX_NAME_BYTES} bytes");
        Err(Fault::new(why))
    } else {
        Ok(name.to_owned())
    }
}

fn duration(duration: prost_types::Duration) -> Result<Duration, Fault> {
    let seconds = u64::try_from(duration.seconds).ok();
    let nanos = u32::try_from(duration.nanos).ok();
    match (seconds, nanos) {
        (Some(seconds @ 0..=MAX_SECONDS), Some(nanos @ 0..=999_999_999)) => {
            Ok(Duration::new(seconds, nanos))
        }
        _ => Err(Fault::new("it is no duration of 0 to 10,000 years")),
    }
}

pub(super) fn some_duration(
    field: &str,
    value: Option<prost_types::Duration>,
) -> Result<Option<Duration>, Fault> {
    value.map(duration).transpose().within(field)
}

/// Reads prefixes; bits behind a prefix are cut off, as Envoy does.
pub(super) fn prefixes(field: &str, ranges: &[CidrRange]) -> Result<Vec<IpPrefix>, Fault> {
    let read = |(index, range)| prefix(range).within(format_args!("{field}[{index}]"));
    ranges.iter().enumerate().map(read).collect()
}

pub(super) fn prefix(range: &CidrRange) -> Result<IpPrefix, Fault> {
    let addr = range.address_prefix.parse::<IpAddr>();
    let addr = addr.map_err(|_| Fault::at("address_prefix", "it is no IP address"))?;
    let len = u8::try_from(range.prefix_len.unwrap_or(0)).unwrap_or(u8::MAX);
    match IpPrefix::new(addr, len) {
        Ok(prefix) => Ok(prefix),
        Err(route::IpPrefixError::HostBits { network }) => Ok(network),
        Err(error) => Err(Fault::at("prefix_len", error.to_string())),
    }
}

pub(super) fn port(port: u32) -> Result<u16, Fault> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| Fault::new("it is no port"))
}

/// Reads the address of an endpoint: an IP address or a host name, with a port.
pub(super) fn endpoint_address(address: Option<&Address>) -> Result<EndpointAddress, Fault> {
    let socket = address.and_then(|address| address.socket_address.as_ref());
    let socket = socket.ok_or_else(|| Fault::at("address", "it has no socket_address"))?;
    let within = |fault: Fault| fault.within("address.socket_address");
    if socket.protocol != 0 {
        return Err(within(Fault::at("protocol", "only TCP is understood")));
    }
    let port = port(socket.port_value.unwrap_or(0));
    let port = port.within("port_value").map_err(within)?;
    if let Ok(ip) = socket.address.parse::<IpAddr>() {
        return Ok(EndpointAddress::Ip((ip.to_canonical(), port).into()));
    }
    let text = format!("{}:{port}", socket.address);
    let address = text.parse::<EndpointAddress>();
    address.map_err(|error| within(Fault::at("address", error.to_string())))
}

/// What a string has to be.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    /// Anything.
    Any,
    /// Just this.
    Exact(String),
    /// Matched from end to end.
    Regex(Regex),
}

impl Matcher {
    pub(super) fn matches(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(text) => value == text,
            Self::Regex(regex) => regex.is_match(value),
        }
    }

    /// Matches what has `text` in it, and before and after it what these expressions allow. Case
    /// is ignored for ASCII alone.
    pub(super) fn literal(
        (before, text, after): (&str, &str, &str),
        ignore_case: bool,
    ) -> Result<Self, Fault> {
        let flags = if ignore_case { "(?si)" } else { "(?s)" };
        compile(&format!(
            "{flags}^{before}{}{after}$",
            regex_lite::escape(text)
        ))
        .map(Self::Regex)
    }
}

pub(super) fn string_matcher(matcher: &StringMatcher) -> Result<Matcher, Fault> {
    let ignore_case = matcher.ignore_case;
    match &matcher.pattern {
        None => Err(Fault::new("it matches nothing")),
        Some(StringPattern::Exact(text)) if ignore_case => Matcher::literal(("", text, ""), true),
        Some(StringPattern::Exact(text)) => name(text).map(Matcher::Exact).within("exact"),
        Some(StringPattern::Prefix(text)) => Matcher::literal(("", text, ".*"), ignore_case),
        Some(StringPattern::Suffix(text)) => Matcher::literal((".*", text, ""), ignore_case),
        Some(StringPattern::Contains(text)) => Matcher::literal((".*", text, ".*"), ignore_case),
        Some(StringPattern::SafeRegex(regex)) => self::regex(regex).within("safe_regex"),
    }
}

/// Compiles a regular expression, which is to match from end to end.
pub(super) fn regex(matcher: &RegexMatcher) -> Result<Matcher, Fault> {
    if matcher.regex.is_empty() || matcher.regex.len() > MAX_REGEX_BYTES {
        let why = format!("it is empty, or longer than {MAX_REGEX_BYTES} bytes");
        return Err(Fault::at("regex", why));
    }
    // Compiled alone first: what is no expression by itself could be one between brackets.
    compile(&matcher.regex)?;
    compile(&format!("^(?:{})$", matcher.regex)).map(Matcher::Regex)
}

fn compile(text: &str) -> Result<Regex, Fault> {
    let compiled = RegexBuilder::new(text)
        .size_limit(MAX_COMPILED_REGEX_BYTES)
        .build();
    compiled.map_err(|error| Fault::at("regex", error.to_string()))
}
