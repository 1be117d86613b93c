//! `EnvoyFilter`s: the few shapes in which Gardener writes routes with them, recognised.
//!
//! ```text
//!   FILTER_CHAIN ADD, destination prefixes ─▶ tcp_proxy ───────────▶ Chain     a shoot's 8443 by PROXY header
//!   NETWORK_FILTER, HTTP connection manager, CONNECT and a header ─▶ Connect   8443 and 8132 today
//!   CLUSTER ADD <id>--kube-apiserver-socket ───────────────────────▶ Socket    a shoot whose TLS ends in Envoy
//!   NETWORK_FILTER, HTTP_FILTER, RBAC ─────────────────────────────▶ Restrict  who may connect
//!   listener filters, buffers, HTTP options ───────────────────────▶ Nothing   nothing to do here
//!   anything else ─────────────────────────────────────────────────▶ Unknown
//! ```
//!
//! Fields are read in both spellings that Envoy's JSON has (`prefix_len`, `prefixLen`). What a
//! patch means for routes is the translation's matter.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use regex_lite::{Regex, RegexBuilder};
use route::IpPrefix;
use serde::Deserialize;

use super::istio::service_of_host;
use super::{Labels, Mention, Mentions, Object, ObjectKey};

mod access;
mod matcher;
mod read;
mod restriction;
mod sources;

pub use self::access::{Access, Visit};
pub use self::restriction::{Restriction, Scope};
pub use self::sources::Sources;

/// What stands behind a shoot's technical id in the name of the cluster that leads to its listener.
const SOCKET: &str = "--kube-apiserver-socket";

/// Most regular expressions of one filter; as gateways take of one listener.
const MAX_PATTERNS: usize = 64;

/// Bytes of the longest regular expression; as in gateways.
const MAX_PATTERN_BYTES: usize = 4096;

/// Bytes of the largest compiled regular expression; as in gateways.
const MAX_COMPILED_PATTERN_BYTES: usize = 1 << 20;

/// An `EnvoyFilter`.
pub type EnvoyFilter = Object<EnvoyFilterSpec>;

/// What an `EnvoyFilter` says.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvoyFilterSpec {
    /// Which of the gateway's pods it is for.
    pub workload_selector: WorkloadSelector,
    /// Its patches, in order; one that has several routes is several here.
    #[serde(rename = "configPatches", deserialize_with = "read::patches")]
    pub patches: Vec<FilterPatch>,
}

/// Selects the gateway's pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct WorkloadSelector {
    /// Their labels; empty selects all in the namespace.
    pub labels: Labels,
}

/// What a patch of an `EnvoyFilter` comes to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FilterPatch {
    /// Connections to some destinations lead to a cluster.
    Chain(ChainPatch),
    /// CONNECT requests with some value of a header lead to a cluster.
    Connect(ConnectPatch),
    /// A change of HTTP, which does not pass here in the clear.
    Http,
    /// Nothing that concerns routes.
    Nothing,
    /// A restriction of who may connect.
    Restrict(Restriction),
    /// The cluster in front of an inner listener that ends TLS for a shoot: the shoot's technical
    /// id, which is its namespace.
    Socket(Arc<str>),
    /// Something else; what.
    Unknown(String),
}

/// A filter chain that is matched by destination.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChainPatch {
    /// Its name, by which other filters find it.
    pub name: Option<String>,
    /// Clients that may connect: those that all of these admit; or what of it is not understood.
    pub access: Result<Vec<Access>, String>,
    /// Port of the listener; `None` = all.
    pub listener: Option<u16>,
    /// Where it leads.
    pub cluster: ClusterName,
    /// Prefixes of the destination address; at least one.
    pub prefixes: Vec<IpPrefix>,
    /// Destination port; `None` = any.
    pub port: Option<u16>,
    /// How long a connection may be idle.
    pub idle_timeout: Option<Duration>,
    /// How long a connection may last.
    pub max_connection_age: Option<Duration>,
}

/// A route of CONNECT requests.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectPatch {
    /// Port of the listener; `None` = all.
    pub listener: Option<u16>,
    /// Header that names the destination.
    pub header: String,
    /// Its values.
    pub value: ConnectValue,
    /// Where it leads; `None` = to the cluster that the header names.
    pub cluster: Option<ClusterName>,
}

/// Values of a header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ConnectValue {
    /// Any.
    Any,
    /// This one.
    Exact(String),
    /// Those that a pattern matches.
    Matches(ValuePattern),
}

/// A regular expression that matches whole values; equal when its text is.
///
/// Compiled it takes up to a thousand times as much memory as its text. So it is kept as text until
/// a value is looked at: filters that are for no gateway, which any author may write, cost their size.
#[derive(Clone, Debug)]
pub struct ValuePattern {
    text: Arc<str>,
    matches_empty: bool,
    compiled: Arc<OnceLock<Option<Regex>>>,
}

impl ValuePattern {
    /// Checks an expression, which must match values from the first byte to the last.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN_BYTES {
            let why = format!("a regular expression of more than {MAX_PATTERN_BYTES} bytes");
            return Err(why);
        }
        let regex = compile(text).map_err(|error| error.to_string())?;
        Ok(Self {
            text: text.into(),
            matches_empty: regex.is_match(""),
            compiled: Arc::default(),
        })
    }

    /// Returns whether the whole value matches.
    pub fn matches(&self, value: &str) -> bool {
        // The one value that is asked about of every filter, as it is read.
        if value.is_empty() {
            return self.matches_empty;
        }
        let compiled = self.compiled.get_or_init(|| compile(&self.text).ok());
        compiled.as_ref().is_some_and(|own| own.is_match(value))
    }
}

impl PartialEq for ValuePattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for ValuePattern {}

fn compile(text: &str) -> Result<Regex, regex_lite::Error> {
    RegexBuilder::new(&format!("^(?:{text})$"))
        .size_limit(MAX_COMPILED_PATTERN_BYTES)
        .build()
}

/// The regular expressions that one filter may still have.
pub(super) struct Patterns(Cell<usize>);

impl Patterns {
    /// Those of a filter that is read from its beginning.
    fn all() -> Self {
        Self(Cell::new(MAX_PATTERNS))
    }

    /// None, where what they are does not matter.
    fn none() -> Self {
        Self(Cell::new(0))
    }

    fn compile(&self, text: &str) -> Result<ValuePattern, String> {
        let left = self.0.get().checked_sub(1);
        let left = left.ok_or_else(|| format!("more than {MAX_PATTERNS} regular expressions"))?;
        self.0.set(left);
        ValuePattern::new(text)
    }
}

/// The name by which Istio calls the cluster of a Service's port:
/// `outbound|443||name.namespace.svc.cluster.local`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ClusterName {
    /// The Service.
    pub service: ObjectKey,
    /// Its port.
    pub port: u16,
}

impl ClusterName {
    /// Reads a name; `None` when it is another cluster's, or a subset's.
    pub fn parse(text: &str) -> Option<Self> {
        let (port, rest) = text.strip_prefix("outbound|")?.split_once('|')?;
        let host = rest.strip_prefix('|')?;
        let service = host.contains('.').then(|| service_of_host(host, ""))??;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Self { service, port })
    }
}

impl Mentions for EnvoyFilter {
    /// Mentions the namespaces that it leads into or restricts, the one that owns it, and the
    /// server names that it restricts; what is about other things, or cannot be followed, mentions
    /// its own.
    fn mentions(&self, own: &ObjectKey) -> BTreeSet<Mention> {
        let mut names: BTreeSet<Arc<str>> = self.owner.iter().cloned().collect();
        let mut mentions = BTreeSet::new();
        for patch in &self.patches {
            let name = match patch {
                FilterPatch::Chain(chain) => &chain.cluster.service.namespace,
                FilterPatch::Connect(connect) => match &connect.cluster {
                    Some(cluster) => &cluster.service.namespace,
                    None => &own.namespace,
                },
                FilterPatch::Restrict(restriction) => {
                    names.extend(restriction.namespaces.iter().cloned());
                    match &restriction.scope {
                        Scope::Namespaces => continue,
                        Scope::ServerName(name) => {
                            mentions.insert(Mention::ServerName(Arc::clone(name)));
                            if restriction.access.is_ok() {
                                continue;
                            }
                        }
                        Scope::Chain(_) | Scope::Listener => {}
                    }
                    &own.namespace
                }
                FilterPatch::Socket(id) => id,
                FilterPatch::Http | FilterPatch::Nothing | FilterPatch::Unknown(_) => continue,
            };
            names.insert(Arc::clone(name));
        }
        if names.is_empty() && !self.patches.iter().all(is_of_names) {
            names.insert(Arc::clone(&own.namespace));
        }
        mentions.extend(names.into_iter().map(Mention::Namespace));
        mentions
    }
}

/// Returns whether a patch is followed where server names are, and nowhere else.
fn is_of_names(patch: &FilterPatch) -> bool {
    matches!(
        patch,
        FilterPatch::Restrict(Restriction {
            scope: Scope::ServerName(_),
            access: Ok(_),
            ..
        })
    )
}

/// Returns the shoot whose inner listener a cluster is for.
fn socket_of(cluster: &str) -> Option<Arc<str>> {
    let id = cluster.strip_suffix(SOCKET)?;
    (!id.is_empty()).then(|| id.into())
}

#[cfg(test)]
mod tests;
