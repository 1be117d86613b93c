//! What is asked of a gateway: a target, perhaps a client, perhaps a listener.
//!
//! ```text
//!     flags ─▶ Question ─▶ query string ══▶ Question ─▶ answer
//! ```
//!
//! Both ends read and write it here, so they cannot disagree. Knows no routes.

use std::net::{IpAddr, SocketAddr};

use route::{parse_public_key, public_key_text};
use telemetry::admin::parameter;

use super::report::Asked;
use crate::config::Protocol;

/// What is asked of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Where a connection wants to go.
    pub(crate) target: Target,
    /// The client's address.
    pub(crate) source: Option<IpAddr>,
    /// The subject of the certificate that the client shows, where TLS ends here.
    pub(crate) certificate: Option<Subject>,
    /// The listener it comes in by; the first that takes the target where none is named.
    pub(crate) listener: Option<String>,
}

/// Where a connection wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The value of the header that names a CONNECT request's destination.
    Connect(String),
    /// The destination in a node proxy's PROXY header.
    Destination(SocketAddr),
    /// The server name of a ClientHello; empty for one without.
    ServerName(String),
    /// A WireGuard server.
    WireGuard(WireGuardServer),
}

/// A certificate's subject, as far as it matters: `cn=NAME,o=GROUP,o=GROUP`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Common names; the last one is the user.
    pub(crate) names: Vec<String>,
    /// Organizations.
    pub(crate) groups: Vec<String>,
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.names.iter().map(|name| format!("cn={name}"));
        let groups = self.groups.iter().map(|group| format!("o={group}"));
        f.write_str(&names.chain(groups).collect::<Vec<_>>().join(","))
    }
}

impl std::str::FromStr for Subject {
    type Err = BadQuestion;

    /// Reads attributes between commas, which values cannot have; blanks are part of a value.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut subject = Self::default();
        for attribute in text.split(',') {
            match attribute.split_once('=') {
                Some(("cn" | "CN", name)) => subject.names.push(name.to_owned()),
                Some(("o" | "O", group)) => subject.groups.push(group.to_owned()),
                _ => {
                    let wanted = "a subject, as cn=NAME,o=GROUP";
                    return Err(BadQuestion::invalid("certificate", text, wanted));
                }
            }
        }
        Ok(subject)
    }
}

/// By what a WireGuard datagram says which server it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireGuardServer {
    /// The public key that a handshake was made for.
    PublicKey([u8; 32]),
    /// The number in its reserved bytes or in its receiver's index.
    RouteId(u32),
}

/// Why a question cannot be answered as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadQuestion(pub(super) String);

impl BadQuestion {
    /// A parameter has a value that it cannot have.
    fn invalid(name: &str, value: &str, wanted: &str) -> Self {
        Self(format!("{name}: {value:?} is not {wanted}"))
    }

    /// Nothing is asked for, or several things at once.
    pub(super) fn not_one_target() -> Self {
        Self("one of sni, destination, connect and wireguard must be given".to_owned())
    }
}

impl Target {
    /// Returns what kind of thing is asked for, for people.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Connect(_) => "CONNECT destination",
            Self::Destination(_) => "destination",
            Self::ServerName(_) => "server name",
            Self::WireGuard(WireGuardServer::PublicKey(_)) => "WireGuard public key",
            Self::WireGuard(WireGuardServer::RouteId(_)) => "WireGuard route id",
        }
    }

    /// Returns the parameter that carries it, and its text.
    pub(super) fn text(&self) -> (&'static str, String) {
        match self {
            Self::Connect(value) => ("connect", value.clone()),
            Self::Destination(address) => ("destination", address.to_string()),
            Self::ServerName(name) => ("sni", name.clone()),
            Self::WireGuard(server) => ("wireguard", server.to_string()),
        }
    }

    /// Tells whether connections of a listener may ask for it.
    pub(super) fn is_for(&self, protocol: Protocol) -> bool {
        match (self, protocol) {
            (Self::Connect(_), Protocol::Connect | Protocol::ProxyOrConnect)
            | (Self::Destination(_), Protocol::ProxyOrConnect)
            | (Self::ServerName(_), Protocol::Tls)
            | (Self::WireGuard(_), Protocol::WireGuard) => true,
            (
                Self::Connect(_) | Self::Destination(_) | Self::ServerName(_) | Self::WireGuard(_),
                Protocol::Connect | Protocol::ProxyOrConnect | Protocol::Tls | Protocol::WireGuard,
            ) => false,
        }
    }
}

impl std::fmt::Display for WireGuardServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PublicKey(key) => f.write_str(&public_key_text(key)),
            Self::RouteId(id) => id.fmt(f),
        }
    }
}

impl std::str::FromStr for WireGuardServer {
    type Err = BadQuestion;

    /// Reads a route id, as a number, or a public key, as base64.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(id) = text.parse() {
            return Ok(Self::RouteId(id));
        }
        let wanted = "a route id or a public key in base64";
        let key = parse_public_key(text);
        key.map(Self::PublicKey)
            .map_err(|_| BadQuestion::invalid("wireguard", text, wanted))
    }
}

impl Question {
    /// Reads a question from a query string.
    pub(crate) fn from_query(query: Option<&str>) -> Result<Self, BadQuestion> {
        let get = |name| parameter(query, name);
        let address = "an address with a port, as 10.1.2.3:443";
        let destination = read(get("destination"), "destination", address)?;
        let wireguard = get("wireguard").map(|text| text.parse()).transpose()?;
        let targets = [
            get("connect").map(Target::Connect),
            destination.map(Target::Destination),
            get("sni").map(Target::ServerName),
            wireguard.map(Target::WireGuard),
        ];
        let mut targets = targets.into_iter().flatten();
        let (Some(target), None) = (targets.next(), targets.next()) else {
            return Err(BadQuestion::not_one_target());
        };
        Ok(Self {
            target,
            source: read(get("source"), "source", "an IP address")?,
            certificate: get("certificate").map(|text| text.parse()).transpose()?,
            listener: get("listener"),
        })
    }

    /// Writes the question as a query string.
    pub(crate) fn to_query(&self) -> String {
        let (name, value) = self.target.text();
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair(name, &value);
        if let Some(source) = self.source {
            query.append_pair("source", &source.to_string());
        }
        if let Some(certificate) = &self.certificate {
            query.append_pair("certificate", &certificate.to_string());
        }
        if let Some(listener) = &self.listener {
            query.append_pair("listener", listener);
        }
        query.finish()
    }
}

impl From<&Question> for Asked {
    fn from(question: &Question) -> Self {
        Self {
            kind: question.target.kind().to_owned(),
            value: question.target.text().1,
            source: question.source,
        }
    }
}

fn read<T: std::str::FromStr>(
    value: Option<String>,
    name: &str,
    wanted: &str,
) -> Result<Option<T>, BadQuestion> {
    let read = |text: String| {
        let invalid = |_| BadQuestion::invalid(name, &text, wanted);
        text.parse().map_err(invalid)
    };
    value.map(read).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_way() {
        let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".parse();
        for target in [
            Target::ServerName("api.a.example.com".to_owned()),
            Target::ServerName(String::new()),
            Target::ServerName("100% & more=ü".to_owned()),
            Target::Connect("outbound|443||kube-apiserver.shoot--a--b.svc".to_owned()),
            Target::Destination("[2001:db8::1]:443".parse().unwrap()),
            Target::WireGuard(key.unwrap()),
            Target::WireGuard(WireGuardServer::RouteId(77)),
        ] {
            let plain = Question {
                target,
                source: None,
                certificate: None,
                listener: None,
            };
            let full = Question {
                source: Some("2001:db8::7".parse().unwrap()),
                certificate: Some("cn=jane = ü,o=devs,o=".parse().unwrap()),
                listener: Some("a b".to_owned()),
                ..plain.clone()
            };
            for asked in [plain, full] {
                let query = asked.to_query();
                assert_eq!(Question::from_query(Some(&query)), Ok(asked), "{query}");
            }
        }
    }

    #[test]
    fn malformed_questions_are_refused_with_reason() {
        for (query, why) in [
            (None, "one of sni, "),
            (Some("sni=a&connect=b"), "one of sni, "),
            (
                Some("destination=10.1.2.3"),
                "destination: \"10.1.2.3\" is not an address",
            ),
            (
                Some("wireguard=abc"),
                "wireguard: \"abc\" is not a route id",
            ),
            (Some("sni=a&source=b"), "source: \"b\" is not an IP"),
            (
                Some("sni=a&certificate=jane"),
                "certificate: \"jane\" is not a subject",
            ),
        ] {
            let refused = Question::from_query(query).unwrap_err().to_string();
            assert!(refused.starts_with(why), "{refused}");
        }
    }
}
