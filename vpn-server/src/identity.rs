//! Keys and peers as their files say, read again when they change; the configuration is only compared.
//!
//! ```text
//!   private keys, peers.yaml, preshared keys ──load──▶ checked ──▶ Identity ──▶ the tunnel
//!            ▲                                             └── refused: the last good ones stay
//!            └───── watched, SIGHUP ────── Keeper::run ── configuration file: says what is in effect?
//! ```
//!
//! Keys are never logged, nor are public ones, by which a server would answer any sender.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use settings::{ConfigErrors, FileWatcher, RelPath, WatchParams, yaml};
use telemetry::metrics::{CounterFamily, Gauge};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tunnel::keys::{KeyError, PresharedKey, PrivateKey, PublicKey};
use tunnel::settings::validate_name;
use tunnel::{Identity, PeerSpec};

use crate::config::{Config, KeyFiles, PeerFile, PeersFile};
use crate::error::ServerError;
use crate::link::Link;

/// Pairs of an own key and a peer's that there are numbers for.
const MAX_PAIRS: usize = 16;
/// Files that could not be used are tried again after this, whatever the file system tells.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// Reads keys and peers; `own` are our addresses, whose networks peers are on.
pub(crate) fn load(files: &KeyFiles, own: &[IpNet]) -> Result<Identity, ServerError> {
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
    check(&file.peers, own, &owners, &mut errors);
    let own_keys = keys.len();
    let peer_keys: usize = file.peers.iter().map(|peer| peer.public_keys.len()).sum();
    let pairs = own_keys.saturating_mul(peer_keys);
    if pairs > MAX_PAIRS {
        let why = format!(
            "{own_keys} own keys and {peer_keys} keys of peers make {pairs} pairs, more than \
             {MAX_PAIRS}"
        );
        errors.add("peers", why);
    }
    errors.into_result(&files.peers)?;
    let peers = file.peers.into_iter().map(|peer| {
        let preshared = peer.preshared_key.as_ref();
        let preshared = preshared.map(|path| PresharedKey::read(&path.resolve(&files.peers)));
        Ok(PeerSpec {
            name: peer.name,
            public_keys: peer.public_keys,
            preshared_key: preshared.transpose()?,
            addresses: peer.addresses,
            route: None,
        })
    });
    let peers = peers.collect::<Result<_, KeyError>>()?;
    Ok(Identity { keys, peers })
}

/// Adds to `errors` what is wrong with `peers`, beside our own addresses and keys.
fn check(
    peers: &[PeerFile],
    own: &[IpNet],
    own_keys: &BTreeMap<PublicKey, &Path>,
    errors: &mut ConfigErrors,
) {
    if peers.is_empty() {
        errors.add("peers", "at least one client is needed");
    }
    let (mut names, mut keys, mut addresses) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (at, peer) in peers.iter().enumerate() {
        let (name, place) = (peer.name.as_str(), format!("peers[{at}]"));
        validate_name(name, &format!("{place}.name"), errors);
        if let Some(first) = names.insert(name, at) {
            let why = format!("`{name}` is the name of `peers[{first}]` already");
            errors.add(format!("{place}.name"), why);
        }
        if peer.public_keys.is_empty() {
            let why = format!("{name} needs at least one key");
            errors.add(format!("{place}.publicKeys"), why);
        }
        if peer.preshared_key.as_ref().is_some_and(RelPath::is_empty) {
            errors.add(format!("{place}.presharedKey"), "not a file");
        }
        for (number, key) in peer.public_keys.iter().enumerate() {
            let place = format!("{place}.publicKeys[{number}]");
            if own_keys.contains_key(key) {
                errors.add(&place, format!("the key of {name} is one of our own"));
            }
            if let Some(first) = keys.insert(key, name) {
                let why = format!("the key of {name} is one of {first} already");
                errors.add(&place, why);
            }
        }
        if peer.addresses.is_empty() {
            let why = format!("{name} needs at least one address");
            errors.add(format!("{place}.addresses"), why);
        }
        for (number, address) in peer.addresses.iter().enumerate() {
            let place = format!("{place}.addresses[{number}]");
            if !own.iter().any(|own| own.contains(address)) {
                let why =
                    format!("{address} of {name} is on none of the networks of our `addresses`");
                errors.add(&place, why);
            }
            if own.iter().any(|own| own.addr() == *address) {
                errors.add(&place, format!("{address} of {name} is our own"));
            }
            if let Some(first) = addresses.insert(address, name) {
                let why = format!("{address} of {name} is one of {first} already");
                errors.add(&place, why);
            }
        }
    }
}

/// Returns every file that keys and peers are read from, as far as the file of peers can be read.
fn watched(files: &KeyFiles) -> Vec<PathBuf> {
    let mut all = files.private.clone();
    all.push(files.peers.clone());
    if let Ok(file) = yaml::load::<PeersFile>(&files.peers) {
        let peers = file.peers.iter();
        let keys = peers.filter_map(|peer| peer.preshared_key.as_ref());
        let keys = keys.filter(|path| !path.is_empty());
        all.extend(keys.map(|path| path.resolve(&files.peers)));
    }
    all.sort();
    all.dedup();
    all
}

/// Reads keys and peers again for as long as the process runs.
pub(crate) struct Keeper {
    /// The configuration in effect.
    pub(crate) config: Config,
    /// Keys and peers in effect.
    pub(crate) current: Identity,
    /// Has everything read again.
    pub(crate) asked: Arc<Notify>,
    /// Counts changed files, by what became of them.
    pub(crate) reloads: CounterFamily,
    /// Whether keys and peers in effect are what the files say.
    pub(crate) good: Gauge,
    /// Whether the configuration in effect is what its file says.
    pub(crate) config_good: Gauge,
}

/// The keys by which the configuration file differs from what is in effect, or why it is refused.
type Difference = Result<Vec<String>, String>;

impl Keeper {
    /// Hands what files say to `link` whenever they change or it is asked to. It never ends; drop
    /// it to stop.
    pub(crate) async fn run<L: Link>(mut self, link: L) {
        let mut refused: Option<String> = None;
        let mut difference: Difference = Ok(Vec::new());
        loop {
            // Watched before they are read, so that no change falls between.
            let files = watched(&self.config.key_files);
            let mut all = files.clone();
            all.push(self.config.origin.clone());
            let watcher = FileWatcher::new(all, WatchParams::default());
            let mut watcher = watcher
                .inspect_err(|error| tracing::warn!(%error, "files of keys are polled"))
                .ok();
            loop {
                self.compare(&mut difference);
                self.read(&link, &mut refused).await;
                // Other peers may have other files.
                if watched(&self.config.key_files) != files {
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

    /// Compares the configuration file with what is in effect. The same difference is logged once.
    fn compare(&self, logged: &mut Difference) {
        let fresh = self.config.read_again();
        let found = fresh.map(|fresh| self.config.restart_keys(&fresh));
        let found = found.map_err(|error| telemetry::chain(&error).to_string());
        let same = found.as_ref().is_ok_and(Vec::is_empty);
        self.config_good.set(i64::from(same));
        if found == *logged {
            return;
        }
        match &found {
            Ok(_) if same => {}
            Ok(keys) => tracing::warn!(
                keys = keys.join(", "),
                "configuration file changed; restart to apply it"
            ),
            Err(error) => tracing::error!(
                %error,
                "configuration file refused; keeping what is in effect"
            ),
        }
        *logged = found;
    }

    /// Reads once; the same refusal is logged and counted once.
    async fn read<L: Link>(&mut self, link: &L, refused: &mut Option<String>) {
        match self.renew(link).await {
            Ok(()) => {
                self.good.set(1);
                *refused = None;
            }
            Err(error) => {
                self.good.set(0);
                let error = telemetry::chain(&error).to_string();
                if refused.as_ref() != Some(&error) {
                    tracing::error!(%error, "keeping the previous keys and peers");
                    self.reloads.with(&["refused"]).inc();
                    *refused = Some(error);
                }
            }
        }
    }

    /// Hands what files say to `link`, if it is something else than before.
    async fn renew<L: Link>(&mut self, link: &L) -> Result<(), ServerError> {
        let identity = self.config.identity()?;
        if same(&identity, &self.current) {
            return Ok(());
        }
        link.replace(identity.clone()).await?;
        self.reloads.with(&["taken"]).inc();
        let (keys, peers) = (identity.keys.len(), identity.peers.len());
        tracing::info!(keys, peers, "keys and peers reloaded");
        self.current = identity;
        Ok(())
    }
}

/// Answers whether two say the same.
fn same(one: &Identity, other: &Identity) -> bool {
    let keys = |identity: &Identity| -> Vec<PublicKey> {
        identity.keys.iter().map(PrivateKey::public).collect()
    };
    keys(one) == keys(other) && one.peers == other.peers
}

#[cfg(test)]
mod tests;
