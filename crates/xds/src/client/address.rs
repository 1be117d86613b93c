//! Where a discovery server is.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;

/// The address of a server: `https://host:port`, or `http://host:port` without TLS.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServerAddress(Uri);

impl ServerAddress {
    /// Whether it is reached by TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// The host name or IP address, without the brackets that an IPv6 address has in a URL.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.0.host().unwrap_or_default();
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or_default()
    }

    /// Whether it is on this host: `localhost`, or an address of the loopback interface.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let addr = self.host().parse::<IpAddr>();
        self.host() == "localhost" || addr.is_ok_and(|addr| addr.is_loopback())
    }

    pub(crate) fn origin(&self) -> Uri {
        self.0.clone()
    }
}

/// Why a text is no address of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ServerAddressError(&'static str);

const MALFORMED: ServerAddressError = ServerAddressError("it is not a URL like https://host:port");
const NO_PORT: ServerAddressError = ServerAddressError("it names no port");
const PATH: ServerAddressError = ServerAddressError("it has more than scheme, host and port");
const SCHEME: ServerAddressError =
    ServerAddressError("it begins with neither https:// nor http://");

impl FromStr for ServerAddress {
    type Err = ServerAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri = Uri::from_str(text).map_err(|_| MALFORMED)?;
        if !matches!(uri.scheme_str(), Some("https" | "http")) {
            return Err(SCHEME);
        }
        let authority = uri.authority().ok_or(MALFORMED)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(PATH);
        }
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(MALFORMED);
        }
        match authority.port_u16() {
            None | Some(0) => Err(NO_PORT),
            Some(_) => Ok(Self(uri)),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or_default();
        let authority = self
            .0
            .authority()
            .map_or("", |authority| authority.as_str());
        write!(f, "{scheme}://{authority}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in [
            "https://netpol-controller:15010",
            "http://127.0.0.1:1",
            "https://[2001:db8::1]:65535",
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.origin(), text);
        }
        let address: ServerAddress = "https://[::1]:7/".parse().unwrap();
        assert_eq!(
            (address.host(), address.port(), address.is_tls()),
            ("::1", 7, true)
        );
    }

    #[test]
    fn invalid_address_reports_the_cause() {
        for (text, why) in [
            ("", MALFORMED),
            ("host:1", SCHEME),
            ("grpc://host:1", SCHEME),
            ("https://host", NO_PORT),
            ("https://host:0", NO_PORT),
            ("https://host:1/path", PATH),
            ("https://host:1?q", PATH),
            ("https://user@host:1", MALFORMED),
            ("https://", MALFORMED),
        ] {
            assert_eq!(text.parse::<ServerAddress>(), Err(why), "{text}");
        }
    }
}
