//! Ports that are allowed: read from annotations, and as policies and their names have them.
//!
//! Which pods they belong to is no matter here.

use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::state::{Protocol, TargetPort, parse_items};

/// A port, or several, that pods may be reached at.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Port {
    /// The transport protocol; `None` where it is absent, which means TCP.
    pub(super) protocol: Option<Protocol>,
    /// The port of the pods; `None` is all of the protocol.
    pub(super) target: Option<TargetPort>,
    /// The last port of a range that starts with `target`, a number then.
    pub(super) end: Option<u16>,
}

impl Port {
    /// Returns one port of pods. A name of digits is a number.
    pub(super) fn one(protocol: Protocol, target: &TargetPort) -> Self {
        let number = match target {
            TargetPort::Name(name) => name.parse().ok(),
            TargetPort::Number(number) => Some(*number),
        };
        Self {
            protocol: Some(protocol),
            target: Some(number.map_or_else(|| target.clone(), TargetPort::Number)),
            end: None,
        }
    }

    /// Returns the part of names that says which port it is: `tcp-443`.
    pub(super) fn id(&self) -> String {
        let protocol = self.protocol.unwrap_or_default().as_str();
        let target = self
            .target
            .as_ref()
            .map_or_else(String::new, ToString::to_string);
        format!("{}-{target}", protocol.to_ascii_lowercase())
    }

    pub(super) fn to_json(&self) -> Value {
        let mut port = json!({"protocol": self.protocol.unwrap_or_default().as_str()});
        if let Some(target) = &self.target {
            port["port"] = json!(target);
        }
        if let Some(end) = self.end {
            port["endPort"] = json!(end);
        }
        port
    }

    fn parse(item: Value) -> Result<Self, String> {
        let item: Option<Item> = serde_json::from_value(item).map_err(|error| error.to_string())?;
        let item = item.unwrap_or_default();
        let port = Self {
            protocol: item.protocol,
            target: item.port.map(|port| target(&port)).transpose()?,
            end: item.end_port.map(|port| number(&port)).transpose()?,
        };
        port.checked()
    }

    fn checked(self) -> Result<Self, String> {
        match (&self.target, self.end) {
            (_, None) => Ok(self),
            (Some(TargetPort::Number(first)), Some(last)) if last >= *first => Ok(self),
            (Some(TargetPort::Number(first)), Some(last)) => {
                Err(format!("endPort {last} is below port {first}"))
            }
            (_, Some(_)) => Err("endPort needs a numeric port".to_owned()),
        }
    }
}

/// Writes the port alone, a range with a hyphen: `443`, `8000-8999`.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, self.end) {
            (None, _) => f.write_str("<nil>"),
            (Some(target), Some(end)) if *target != TargetPort::Number(end) => {
                write!(f, "{target}-{end}")
            }
            (Some(target), _) => target.fmt(f),
        }
    }
}

/// An item of a list, as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Item {
    end_port: Option<Value>,
    port: Option<Value>,
    protocol: Option<Protocol>,
}

/// Most ports in one list. Each port of an alias costs two policies in every namespace of clients;
/// Gardener's longest lists have five.
const MAX_PORTS: usize = 100;

/// Reads a list of ports, as annotations have it: JSON objects with `port`, `protocol`, `endPort`;
/// at most [`MAX_PORTS`].
///
/// # Errors
/// What is wrong, and at which column or in which item.
pub(super) fn parse_list(text: &str) -> Result<Vec<Port>, String> {
    let ports = parse_items(text, Port::parse)?;
    if ports.len() > MAX_PORTS {
        let count = ports.len();
        return Err(format!("{count} ports, there may be {MAX_PORTS}"));
    }
    Ok(ports)
}

fn number(value: &Value) -> Result<u16, String> {
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("{value} is not a port number"))
}

/// Reads a port's number, also in quotes, or its name (RFC 6335, section 5.1).
fn target(value: &Value) -> Result<TargetPort, String> {
    let Value::String(text) = value else {
        return number(value).map(TargetPort::Number);
    };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let parsed = text.parse().ok().filter(|number| *number > 0);
        return parsed
            .map(TargetPort::Number)
            .ok_or_else(|| format!("{value} is not a port number"));
    }
    let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let named = (1..=15).contains(&text.len())
        && text.bytes().all(inner)
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--");
    named
        .then(|| TargetPort::Name(text.clone()))
        .ok_or_else(|| format!("{value} is not a port name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(text: &str) -> Value {
        parse_list(text)
            .unwrap()
            .iter()
            .map(Port::to_json)
            .collect()
    }

    #[test]
    fn lists_become_ports_of_policies() {
        for (text, expected) in [
            ("[]", "[]"),
            ("null", "[]"),
            ("[{}]", r#"[{"protocol":"TCP"}]"#),
            ("[null]", r#"[{"protocol":"TCP"}]"#),
            (r#"[{"protocol":"UDP"}]"#, r#"[{"protocol":"UDP"}]"#),
            (
                r#"[{"port":"10250","protocol":"TCP"}]"#,
                r#"[{"port":10250,"protocol":"TCP"}]"#,
            ),
            (r#"[{"port":"080"}]"#, r#"[{"port":80,"protocol":"TCP"}]"#),
            (
                r#"[{"protocol":"SCTP","port":"m3ua"},{"port":1,"protocol":null,"endPort":9}]"#,
                r#"[{"port":"m3ua","protocol":"SCTP"},{"endPort":9,"port":1,"protocol":"TCP"}]"#,
            ),
        ] {
            let expected: Value = serde_json::from_str(expected).unwrap();
            assert_eq!(api(text), expected, "{text}");
        }
    }

    #[test]
    fn parse_errors_name_the_item() {
        for (text, reported) in [
            ("", "column 0"),
            ("{}", "not a list"),
            ("[{},", "column 4"),
            ("[[]]", "item 1: not an object"),
            (r#"[{},{"Port":1}]"#, "item 2: unknown field `Port`"),
            (r#"[{"port":0}]"#, "0 is not a port number"),
            (r#"[{"port":65536}]"#, "65536 is not a port number"),
            (r#"[{"port":80.5}]"#, "80.5 is not a port number"),
            (r#"[{"port":"65536"}]"#, r#""65536" is not a port number"#),
            (r#"[{"port":"0"}]"#, r#""0" is not a port number"#),
            (r#"[{"port":""}]"#, "is not a port name"),
            (r#"[{"port":"Https"}]"#, "is not a port name"),
            (r#"[{"port":"a--b"}]"#, "is not a port name"),
            (r#"[{"port":"a-name-too-long-"}]"#, "is not a port name"),
            (r#"[{"port":1,"protocol":"tcp"}]"#, "unknown variant `tcp`"),
            (r#"[{"port":9,"endPort":8}]"#, "endPort 8 is below port 9"),
            (r#"[{"port":"http","endPort":8}]"#, "needs a numeric port"),
            (r#"[{"endPort":8}]"#, "needs a numeric port"),
        ] {
            let error = parse_list(text).unwrap_err();
            assert!(error.contains(reported), "{text}: {error}");
        }
    }

    #[test]
    fn a_list_is_bounded() {
        let list = |count| format!("[{}]", vec!["{}"; count].join(","));
        assert_eq!(parse_list(&list(MAX_PORTS)).unwrap().len(), MAX_PORTS);
        let error = parse_list(&list(MAX_PORTS + 1)).unwrap_err();
        assert_eq!(error, "101 ports, there may be 100");
    }

    #[test]
    fn digits_as_a_target_are_a_number() {
        let named = |name: &str| Port::one(Protocol::Udp, &TargetPort::Name(name.to_owned()));
        assert_eq!(named("0443").id(), "udp-443");
        assert_eq!(named("https").id(), "udp-https");
    }
}
