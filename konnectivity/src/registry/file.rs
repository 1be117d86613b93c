//! The file of one tenant, `<cluster-id>.yaml`.
//!
//! ```text
//!   a.yaml ─settings::yaml─▶ TenantFile ──┬─ values in order? ─┬─▶ TenantSpec
//!   a-ca.crt, a.jwks, a.kubeconfig ───────┴─ read whole ───────┘   or file: key: what is wrong
//! ```
//!
//! Every fault of a file is found in one go. What two files must not share is judged elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use knp_proto::{Strategy, TenantId, TenantLimits};
use schemars::JsonSchema;
use serde::Deserialize;
use settings::text::is_label;
use settings::{ByteSize, ConfigError, ConfigErrors, RelPath};

use super::authorities::{Authorities, digest, read_bounded};
use super::spec::{CertificateSpec, FrontendMode, TenantSpec, TokenSpec, UdsSpec};
use super::values;
use crate::api_server::check_kubeconfig;
use crate::token::{KeySet, TokenRules};

/// A tenant of konnectivity-server's registry.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TenantFile {
    /// Server names (SNI) that mean this tenant. What an agent asks for must agree with what its
    /// certificate or token says. An API server may ask for any name: a name here selects this
    /// tenant if the API server's certificate fits it, and refuses nothing.
    #[serde(default)]
    server_names: Vec<String>,
    /// How the tenant's agents are known: by certificates, tokens, or both.
    agents: AgentsFile,
    /// How the tenant's API servers are known: by certificates, a socket, or both.
    frontends: FrontendsFile,
    /// How an agent is chosen for a dial, in order.
    #[serde(default = "default_strategies")]
    strategies: Vec<StrategyName>,
    /// How many servers the agents should connect to.
    #[serde(default = "one")]
    server_count: u32,
    /// The tenant's bounds.
    #[serde(default)]
    limits: LimitsFile,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AgentsFile {
    /// Client certificates.
    certificates: Option<CertificatesFile>,
    /// Service account tokens.
    tokens: Option<TokensFile>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FrontendsFile {
    /// Client certificates.
    certificates: Option<CertificatesFile>,
    /// A socket for this tenant alone.
    uds: Option<UdsFile>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CertificatesFile {
    /// The authorities, PEM; several during a rotation.
    ca: RelPath,
    /// URIs of which a certificate has one among its alternative names.
    identities: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TokensFile {
    /// Who signs the tokens (`iss`).
    issuer: String,
    /// Whom they are for (one of `aud`).
    audience: String,
    /// The issuer's public keys, a JSON Web Key Set.
    jwks: Option<RelPath>,
    /// How to reach an API server for reviews of tokens.
    kubeconfig: Option<RelPath>,
    /// The namespace of the agents' service account.
    #[serde(default = "default_namespace")]
    namespace: String,
    /// The agents' service account.
    #[serde(default = "default_account")]
    service_account: String,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UdsFile {
    /// Where the socket is.
    path: RelPath,
    /// What is spoken there.
    mode: FrontendMode,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
enum StrategyName {
    /// Any agent.
    #[serde(rename = "default")]
    Default,
    /// Any agent that takes what no other is meant for.
    #[serde(rename = "defaultRoute")]
    DefaultRoute,
    /// The agent of the smallest range that holds the address.
    #[serde(rename = "destCIDR")]
    DestCidr,
    /// An agent that named the very host or address.
    #[serde(rename = "destHost")]
    DestHost,
}

/// Above any of these a dial, or an agent, is refused.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct LimitsFile {
    /// Streams from agents.
    agents: u32,
    /// Tunnels, those being dialed or closed included.
    tunnels: u32,
    /// Dials that wait for an answer.
    pending_dials: u32,
    /// Dials begun per second, with as many at once; 0 for any number.
    dials_per_second: u32,
    /// Bytes held for, and promised to, tunnels.
    buffered_bytes: ByteSize,
}

impl Default for LimitsFile {
    fn default() -> Self {
        Self {
            agents: 1000,
            tunnels: 10_000,
            pending_dials: 1000,
            dials_per_second: 200,
            buffered_bytes: ByteSize(64 << 20),
        }
    }
}

fn default_strategies() -> Vec<StrategyName> {
    vec![StrategyName::Default]
}

fn one() -> u32 {
    1
}

fn default_namespace() -> String {
    "kube-system".to_owned()
}

fn default_account() -> String {
    "konnectivity-agent".to_owned()
}

/// Reads the file of the tenant `id` and the files it names, which are added to `named` also
/// when something is wrong.
///
/// # Errors
/// Everything that is wrong, with file and key.
pub(super) fn read(
    id: &TenantId,
    path: &Path,
    named: &mut Vec<PathBuf>,
) -> Result<TenantSpec, ConfigError> {
    let file: TenantFile = settings::yaml::load(path)?;
    let mut reading = Reading {
        path,
        named,
        bundles: BTreeMap::new(),
        errors: ConfigErrors::new(),
    };
    let spec = file.resolve(id, &mut reading);
    reading.errors.into_result(path)?;
    Ok(spec)
}

/// One file being read, with what was found so far.
struct Reading<'a> {
    path: &'a Path,
    named: &'a mut Vec<PathBuf>,
    /// Bundles that were read, for agents and frontends often have the same one.
    bundles: BTreeMap<PathBuf, Option<Arc<Authorities>>>,
    errors: ConfigErrors,
}

impl Reading<'_> {
    fn refuse(&mut self, key: &str, fault: impl std::fmt::Display) {
        self.errors.add(key, fault);
    }

    fn expect<E: std::fmt::Display>(&mut self, key: &str, verdict: Result<(), E>) {
        if let Err(fault) = verdict {
            self.refuse(key, fault);
        }
    }

    /// Returns what the file at `path`, which `key` names, was parsed to.
    fn accept<T, E>(&mut self, key: &str, path: &Path, parsed: Result<T, E>) -> Option<T>
    where
        E: std::error::Error + 'static,
    {
        parsed
            .inspect_err(|error| {
                let error = telemetry::chain(error);
                self.errors.add(key, format!("{}: {error}", path.display()));
            })
            .ok()
    }

    /// Returns where a named file is, and keeps in mind to look at it.
    fn name(&mut self, path: &RelPath) -> PathBuf {
        let path = path.resolve(self.path);
        if !self.named.contains(&path) {
            self.named.push(path.clone());
        }
        path
    }

    fn authorities(&mut self, key: &str, path: &RelPath) -> Option<Arc<Authorities>> {
        let path = self.name(path);
        if let Some(read) = self.bundles.get(&path) {
            return read.clone();
        }
        let read = Authorities::read(&path)
            .inspect_err(|error| self.refuse(key, telemetry::chain(error)))
            .ok()
            .map(Arc::new);
        self.bundles.insert(path, read.clone());
        read
    }
}

impl TenantFile {
    fn resolve(self, id: &TenantId, reading: &mut Reading<'_>) -> TenantSpec {
        let agents = self.agents;
        if agents.certificates.is_none() && agents.tokens.is_none() {
            reading.refuse("agents", "needs `certificates`, `tokens`, or both");
        }
        let frontends = self.frontends;
        if frontends.certificates.is_none() && frontends.uds.is_none() {
            reading.refuse("frontends", "needs `certificates`, `uds`, or both");
        }
        reading.expect(
            "serverCount",
            values::within(self.server_count.into(), 1, MAX_SERVERS),
        );
        TenantSpec {
            id: id.clone(),
            server_names: server_names(self.server_names, reading),
            strategies: strategies(&self.strategies, reading),
            server_count: self.server_count,
            limits: self.limits.resolve(reading),
            agent_certificates: agents
                .certificates
                .and_then(|file| file.resolve("agents.certificates", reading)),
            tokens: agents.tokens.map(|tokens| tokens.resolve(reading)),
            frontend_certificates: frontends
                .certificates
                .and_then(|file| file.resolve("frontends.certificates", reading)),
            uds: frontends.uds.map(|uds| uds.resolve(reading)),
        }
    }
}

fn server_names(names: Vec<String>, reading: &mut Reading<'_>) -> Vec<String> {
    reading.expect("serverNames", at_most(names.len(), MAX_NAMES));
    let mut good = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let key = format!("serverNames[{index}]");
        match values::server_name(name) {
            Ok(name) if good.contains(&name) => reading.refuse(&key, "is there twice"),
            Ok(name) => good.push(name),
            Err(fault) => reading.refuse(&key, fault),
        }
    }
    good.sort();
    good
}

fn strategies(names: &[StrategyName], reading: &mut Reading<'_>) -> Vec<Strategy> {
    if names.is_empty() {
        reading.refuse("strategies", "at least one strategy is needed");
    }
    let mut good = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let strategy = match name {
            StrategyName::Default => Strategy::Default,
            StrategyName::DefaultRoute => Strategy::DefaultRoute,
            StrategyName::DestCidr => Strategy::DestCidr,
            StrategyName::DestHost => Strategy::DestHost,
        };
        if good.contains(&strategy) {
            reading.refuse(&format!("strategies[{index}]"), "is there twice");
        } else {
            good.push(strategy);
        }
    }
    good
}

impl CertificatesFile {
    fn resolve(self, key: &str, reading: &mut Reading<'_>) -> Option<CertificateSpec> {
        let authorities = reading.authorities(&format!("{key}.ca"), &self.ca);
        let list = format!("{key}.identities");
        if self.identities.is_empty() {
            reading.refuse(&list, "at least one URI is needed");
        }
        reading.expect(&list, at_most(self.identities.len(), MAX_NAMES));
        for (index, uri) in self.identities.iter().enumerate() {
            reading.expect(&format!("{list}[{index}]"), values::identity(uri));
        }
        Some(CertificateSpec {
            authorities: authorities?,
            identities: Some(self.identities.into_iter().collect()),
        })
    }
}

impl TokensFile {
    fn resolve(self, reading: &mut Reading<'_>) -> TokenSpec {
        reading.expect("agents.tokens.issuer", values::claim(&self.issuer));
        reading.expect("agents.tokens.audience", values::claim(&self.audience));
        reading.expect("agents.tokens.namespace", account(&self.namespace));
        reading.expect(
            "agents.tokens.serviceAccount",
            account(&self.service_account),
        );
        if self.jwks.is_none() && self.kubeconfig.is_none() {
            reading.refuse("agents.tokens", "needs `jwks`, `kubeconfig`, or both");
        }
        let keys = self.jwks.and_then(|path| {
            let (key, path) = ("agents.tokens.jwks", reading.name(&path));
            let bytes = reading.accept(key, &path, read_bounded(&path))?;
            reading.accept(key, &path, KeySet::parse(&bytes))
        });
        let kubeconfig = self.kubeconfig.map(|path| reading.name(&path));
        let kubeconfig_digest = kubeconfig.as_ref().and_then(|path| {
            let key = "agents.tokens.kubeconfig";
            let bytes = reading.accept(key, path, read_bounded(path))?;
            reading.accept(key, path, check_kubeconfig(&bytes))?;
            Some(digest(&bytes))
        });
        TokenSpec {
            rules: TokenRules {
                issuer: Some(self.issuer),
                audience: self.audience,
                namespace: self.namespace,
                service_account: self.service_account,
            },
            keys,
            kubeconfig,
            kubeconfig_digest,
        }
    }
}

impl UdsFile {
    fn resolve(self, reading: &mut Reading<'_>) -> UdsSpec {
        // Without `.` and doubled slashes, so that the same place reads the same.
        let path: PathBuf = self.path.resolve(reading.path).components().collect();
        reading.expect("frontends.uds.path", values::socket(&path));
        UdsSpec {
            path,
            mode: self.mode,
        }
    }
}

impl LimitsFile {
    fn resolve(self, reading: &mut Reading<'_>) -> TenantLimits {
        let mut expect = |key: &str, value: u64, least, most| {
            reading.expect(&format!("limits.{key}"), values::within(value, least, most));
        };
        expect("agents", self.agents.into(), 1, 1_000_000);
        expect("tunnels", self.tunnels.into(), 1, 10_000_000);
        expect("pendingDials", self.pending_dials.into(), 1, 1_000_000);
        expect("dialsPerSecond", self.dials_per_second.into(), 0, 1_000_000);
        // One tunnel's first window and what is on its way, and what a process can address.
        expect("bufferedBytes", self.buffered_bytes.0, 1 << 20, 1 << 40);
        let count = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        TenantLimits {
            agents: count(self.agents),
            buffered_bytes: usize::try_from(self.buffered_bytes.0).unwrap_or(usize::MAX),
            dials_per_second: self.dials_per_second,
            pending_dials: count(self.pending_dials),
            tunnels: count(self.tunnels),
        }
    }
}

fn account(name: &str) -> Result<(), &'static str> {
    let good = name.len() <= 253 && name.split('.').all(is_label);
    good.then_some(()).ok_or("must be a Kubernetes name")
}

fn at_most(count: usize, most: usize) -> Result<(), String> {
    (count <= most)
        .then_some(())
        .ok_or_else(|| format!("must not have more than {most} entries"))
}

/// Server names, or identities, of one tenant.
const MAX_NAMES: usize = 64;
/// Agents connect to every server, so more is a mistake.
const MAX_SERVERS: u64 = 1000;
