//! A patch that restricts clients, and where.

use std::collections::BTreeSet;
use std::sync::Arc;

use route::normal_server_name;
use serde_json::Value;

use super::Patterns;
use super::access::{Access, Named, Visit};

/// A restriction of who may connect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Restriction {
    /// Port of the listener; `None` = all.
    pub listener: Option<u16>,
    /// What of the listener it is about.
    pub scope: Scope,
    /// Who may connect, or what of it is not understood.
    pub access: Result<Access, String>,
    /// Namespaces that its headers spell out: those of the shoots it is about.
    pub namespaces: BTreeSet<Arc<str>>,
}

/// What of a listener a restriction is about.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Scope {
    /// The filter chain of this name.
    Chain(String),
    /// Everything.
    Listener,
    /// What leads into the namespaces alone: others are let in as if it were not there.
    Namespaces,
    /// Chains for this server name, or names within this pattern.
    ServerName(Arc<str>),
}

impl Restriction {
    /// Reads a patch; `None` when it restricts nothing. `whole` says why the configuration is not
    /// all of the filter's, if it is not.
    pub(super) fn read(
        listener: Option<u16>,
        matches: &Value,
        config: &Value,
        whole: Result<(), String>,
        patterns: &Patterns,
    ) -> Option<Self> {
        let named = Named::find(config);
        let access = whole
            .and_then(|()| Access::read(config, patterns))
            .transpose()?;
        let part = |name: &str| matches["listener"]["filter_chain"][name].as_str();
        let scope = if let Some(name) = part("sni") {
            let name = normal_server_name(name).unwrap_or_else(|_| name.to_lowercase());
            Scope::ServerName(name.into())
        } else if let Some(name) = part("name") {
            Scope::Chain(name.to_owned())
        } else if access
            .as_ref()
            .map_or(true, |access| named.alone && opens(access))
        {
            Scope::Namespaces
        } else {
            Scope::Listener
        };
        Some(Self {
            listener,
            scope,
            access,
            namespaces: named.namespaces,
        })
    }
}

/// Returns whether what no header names is open.
fn opens(access: &Access) -> bool {
    let other = Visit {
        value: Some(""),
        ..Visit::default()
    };
    access
        .allowed(&other)
        .is_ok_and(|sources| sources.is_open())
}
