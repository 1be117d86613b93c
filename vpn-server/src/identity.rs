//! Keys and peers as their files say, read again when they change.
//!
//! ```text
//!   private keys, peers.yaml, preshared keys ──load──▶ checked ──▶ Identity ──▶ the tunnel
//!            ▲                                             └── refused: the last good ones stay
//!            └───── watched, SIGHUP ────── Keeper::run
//! ```
//!
//! Keys are never logged, nor are public ones, by which a server would answer any sender.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use settings::{ConfigError, ConfigErrors, FileWatcher, WatchParams, yaml};
use telemetry::metrics::{Counter, CounterFamily};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tunnel::keys::{KeyError, PresharedKey, PrivateKey, PublicKey};
use tunnel::{Identity, PeerSpec};

use crate::config::{KeyFiles, PeerFile, PeersFile};
use crate::link::Link;

/// Pairs of an own key and a peer's that there are numbers for.
const MAX_PAIRS: usize = 16;
/// Files that could not be used are tried again after this, whatever the file system tells.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// Why keys and peers are refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file of a key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The file of peers cannot be used.
    #[error(transparent)]
    Peers(#[from] ConfigError),
}

/// Reads keys and peers; `own` are our addresses, whose networks peers are on.
///
/// # Errors
/// What is wrong, with its file.
pub(crate) fn load(files: &KeyFiles, own: &[IpNet]) -> Result<Identity, IdentityError> {
    let mut keys: Vec<PrivateKey> = Vec::new();
    let mut owners: BTreeMap<PublicKey, &Path> = BTreeMap::new();
    for path in &files.private {
        let key = PrivateKey::read(path)?;
        // Two files may hold one key: so they do before and after a rotation.
        if owners.insert(key.public(), path).is_none() {
            keys.push(key);
        }
    }
    let file: PeersFile = yaml::load(&files.peers)?;
    let mut errors = ConfigErrors::new();
    let mut checks = Checks {
        own,
        own_keys: owners.into_keys().collect(),
        names: BTreeMap::new(),
        keys: BTreeMap::new(),
        addresses: BTreeMap::new(),
    };
    let peers = file.peers.iter().enumerate();
    let peers: Vec<Option<PeerSpec>> = peers
        .map(|(at, peer)| checks.peer(at, peer, &mut errors))
        .collect();
    if peers.is_empty() {
        errors.add("peers", "at least one client is needed");
    }
    let (own_keys, peer_keys) = (keys.len(), checks.keys.len());
    if own_keys * peer_keys > MAX_PAIRS {
        let pairs = own_keys * peer_keys;
        let why = format!(
            "{own_keys} own keys and {peer_keys} keys of peers make {pairs} pairs, more than \
             {MAX_PAIRS}"
        );
        errors.add("peers", why);
    }
    errors.into_result(&files.peers)?;
    let mut specs: Vec<PeerSpec> = peers.into_iter().flatten().collect();
    for (spec, peer) in specs.iter_mut().zip(&file.peers) {
        let path = peer.preshared_key.as_ref();
        let path = path.map(|path| path.resolve(&files.peers));
        spec.preshared_key = path.map(|path| PresharedKey::read(&path)).transpose()?;
    }
    Ok(Identity { keys, peers: specs })
}

/// Returns every file that keys and peers are read from, as far as the file of peers can be read.
fn watched(files: &KeyFiles) -> Vec<PathBuf> {
    let mut all = files.private.clone();
    all.push(files.peers.clone());
    if let Ok(file) = yaml::load::<PeersFile>(&files.peers) {
        let keys = file
            .peers
            .iter()
            .filter_map(|peer| peer.preshared_key.as_ref());
        all.extend(
            keys.filter(|path| !path.is_empty())
                .map(|path| path.resolve(&files.peers)),
        );
    }
    all.sort();
    all.dedup();
    all
}

/// What is known of the peers before one.
struct Checks<'a> {
    own: &'a [IpNet],
    own_keys: Vec<PublicKey>,
    names: BTreeMap<String, usize>,
    keys: BTreeMap<PublicKey, String>,
    addresses: BTreeMap<IpAddr, String>,
}

impl Checks<'_> {
    fn peer(&mut self, at: usize, peer: &PeerFile, errors: &mut ConfigErrors) -> Option<PeerSpec> {
        let name = &peer.name;
        let proper = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.chars().all(proper) {
            let why = format!(
                "`{}` is not a name of letters, digits and -_.",
                name.escape_debug()
            );
            errors.add(format!("peers[{at}].name"), why);
        }
        if let Some(first) = self.names.insert(name.clone(), at) {
            let why = format!("`{name}` is the name of `peers[{first}]` already");
            errors.add(format!("peers[{at}].name"), why);
        }
        if peer.public_keys.is_empty() {
            let why = format!("{name} needs at least one key");
            errors.add(format!("peers[{at}].publicKeys"), why);
        }
        if peer
            .preshared_key
            .as_ref()
            .is_some_and(|path| path.is_empty())
        {
            errors.add(format!("peers[{at}].presharedKey"), "not a file");
        }
        let keys = peer.public_keys.iter().enumerate();
        let keys: Vec<_> = keys
            .filter_map(|(number, text)| {
                let place = format!("peers[{at}].publicKeys[{number}]");
                self.key(&place, text, name, errors)
            })
            .collect();
        if peer.addresses.is_empty() {
            let why = format!("{name} needs at least one address");
            errors.add(format!("peers[{at}].addresses"), why);
        }
        let addresses = peer.addresses.iter().enumerate();
        let addresses: Vec<_> = addresses
            .filter_map(|(number, text)| {
                let place = format!("peers[{at}].addresses[{number}]");
                self.address(&place, text, name, errors)
            })
            .collect();
        errors.is_empty().then(|| PeerSpec {
            name: name.clone(),
            public_keys: keys,
            preshared_key: None,
            addresses,
            route: None,
        })
    }

    fn key(
        &mut self,
        place: &str,
        text: &str,
        name: &str,
        errors: &mut ConfigErrors,
    ) -> Option<PublicKey> {
        let key: PublicKey = match text.parse() {
            Ok(key) => key,
            Err(error) => {
                errors.add(place, telemetry::chain(&error));
                return None;
            }
        };
        if self.own_keys.contains(&key) {
            errors.add(place, format!("the key of {name} is one of our own"));
        }
        if let Some(first) = self.keys.insert(key, name.to_owned()) {
            errors.add(
                place,
                format!("the key of {name} is one of {first} already"),
            );
        }
        Some(key)
    }

    fn address(
        &mut self,
        place: &str,
        text: &str,
        name: &str,
        errors: &mut ConfigErrors,
    ) -> Option<IpAddr> {
        let Ok(address) = text.parse::<IpAddr>() else {
            errors.add(
                place,
                format!("`{}` is not an address", text.escape_debug()),
            );
            return None;
        };
        if !self.own.iter().any(|own| own.contains(&address)) {
            let why = format!("{address} of {name} is on none of the networks of our `addresses`");
            errors.add(place, why);
        }
        if self.own.iter().any(|own| own.addr() == address) {
            errors.add(place, format!("{address} of {name} is our own"));
        }
        if let Some(first) = self.addresses.insert(address, name.to_owned()) {
            errors.add(
                place,
                format!("{address} of {name} is one of {first} already"),
            );
        }
        Some(address)
    }
}

/// Longest name of a peer; it is a label of metrics.
const MAX_NAME_BYTES: usize = 63;

/// Reads keys and peers again for as long as the process runs.
pub(crate) struct Keeper {
    files: KeyFiles,
    own: Vec<IpNet>,
    /// What is in effect.
    current: Identity,
    asked: Arc<Notify>,
    metrics: KeyMetrics,
}

/// What becomes of changed files.
#[derive(Clone, Debug)]
pub(crate) struct KeyMetrics {
    taken: Counter,
    refused: Counter,
}

impl KeyMetrics {
    /// Takes the series of `family`, whose label is the result.
    pub(crate) fn new(family: &CounterFamily) -> Self {
        Self {
            taken: family.with(&["taken"]),
            refused: family.with(&["refused"]),
        }
    }
}

impl Keeper {
    /// Returns it with what makes it read everything again; `current` is in effect.
    pub(crate) fn new(
        files: KeyFiles,
        own: Vec<IpNet>,
        current: Identity,
        metrics: KeyMetrics,
    ) -> (Self, Arc<Notify>) {
        let asked = Arc::new(Notify::new());
        let keeper = Self {
            files,
            own,
            current,
            asked: Arc::clone(&asked),
            metrics,
        };
        (keeper, asked)
    }

    /// Hands what files say to `link` whenever they change or it is asked to. It never ends; drop
    /// it to stop.
    pub(crate) async fn run<L: Link>(mut self, link: L) {
        let mut refused: Option<String> = None;
        loop {
            // Watched before they are read, so that no change falls between.
            let files = watched(&self.files);
            let watcher = FileWatcher::new(files.clone(), WatchParams::default());
            let mut watcher = watcher
                .inspect_err(|error| tracing::warn!(%error, "files of keys are polled"))
                .ok();
            loop {
                self.read(&link, &mut refused).await;
                // Other peers may have other files.
                if watched(&self.files) != files {
                    break;
                }
                self.change(watcher.as_mut(), refused.is_some()).await;
            }
        }
    }

    /// Waits until files have changed or may be better now. Cancel-safe.
    async fn change(&self, watcher: Option<&mut FileWatcher>, refused: bool) {
        let changed = async {
            match watcher {
                Some(watcher) if refused => drop(timeout(TRY_AGAIN, watcher.changed()).await),
                Some(watcher) => watcher.changed().await,
                None => sleep(TRY_AGAIN).await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = self.asked.notified() => {}
        }
    }

    /// Reads once; the same refusal is logged and counted once.
    async fn read<L: Link>(&mut self, link: &L, refused: &mut Option<String>) {
        match load(&self.files, &self.own) {
            Ok(identity) => {
                *refused = None;
                if same(&identity, &self.current) {
                    return;
                }
                self.metrics.taken.inc();
                self.current = identity.clone();
                let (keys, peers) = (identity.keys.len(), identity.peers.len());
                tracing::info!(keys, peers, "keys and peers reloaded");
                link.replace(identity).await;
            }
            Err(error) => {
                let error = telemetry::chain(&error).to_string();
                if refused.as_ref() != Some(&error) {
                    tracing::error!(%error, "keeping the previous keys and peers");
                    self.metrics.refused.inc();
                    *refused = Some(error);
                }
            }
        }
    }
}

/// Answers whether two say the same.
fn same(one: &Identity, other: &Identity) -> bool {
    let keys = |identity: &Identity| {
        identity
            .keys
            .iter()
            .map(PrivateKey::public)
            .collect::<Vec<_>>()
    };
    let alike = |(one, other): (&PeerSpec, &PeerSpec)| {
        one.name == other.name
            && one.public_keys == other.public_keys
            && one.preshared_key == other.preshared_key
            && one.addresses == other.addresses
    };
    keys(one) == keys(other)
        && one.peers.len() == other.peers.len()
        && one.peers.iter().zip(&other.peers).all(alike)
}

#[cfg(test)]
mod tests;
