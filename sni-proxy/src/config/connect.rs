//! How CONNECT requests are read: the headers that name a destination, and what others get.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::ConfigErrors;

/// How CONNECT requests are understood.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "ConnectFile")]
pub(crate) struct ConnectSettings {
    /// Headers that name the destination; the target in the request line is ignored.
    pub(crate) headers: Vec<String>,
    /// What any other request gets.
    pub(crate) otherwise: Otherwise,
}

impl Default for ConnectSettings {
    fn default() -> Self {
        Self {
            headers: vec![
                "X-Gardener-Destination".to_owned(),
                "Reversed-VPN".to_owned(),
            ],
            otherwise: Otherwise::Redirect,
        }
    }
}

impl ConnectSettings {
    pub(super) fn validate(&self, errors: &mut ConfigErrors) {
        let mut headers = BTreeSet::new();
        for (index, header) in self.headers.iter().enumerate() {
            let key = format!("connect.headers[{index}]");
            if !is_header_name(header) {
                errors.add(&key, "not a header name");
            }
            if !headers.insert(header.to_ascii_lowercase()) {
                errors.add(&key, format!("{header} is there twice"));
            }
        }
        if self.headers.is_empty() {
            errors.add("connect.headers", "at least one is needed");
        }
    }
}

/// Tells whether `name` is a token (RFC 9110 §5.6.2).
fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// What a request that is no CONNECT to a destination gets.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Otherwise {
    /// The connection is closed.
    Close,
    /// A permanent redirect to https on the same host.
    Redirect,
}
