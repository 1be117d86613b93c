//! The secrets of the client: in memory alone, apart from the resources that the cache keeps.
//!
//! A secret that was delivered stays until no route refers to it, also when the server has it no longer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::update::Update;
use crate::resource::ResourceType;

/// Most secrets that are held: six for each of 2,000 shoots.
const MAX_SECRETS: usize = 12_000;

#[derive(Debug, Default)]
pub(super) struct HeldSecrets {
    /// Whether they are asked for at all.
    pub(super) wanted: bool,
    /// By name, with the version.
    held: BTreeMap<Arc<str>, (String, Arc<tls::Secret>)>,
    /// Names that the server has answered for: with a secret, or that there is none.
    answered: BTreeSet<Arc<str>>,
    /// Whether these are all, as the sink knows.
    complete: bool,
    /// They differ from what the sink has.
    changed: bool,
}

impl HeldSecrets {
    /// Takes those of an update that are subscribed.
    pub(super) fn take(
        &mut self,
        update: &Update,
        subscribed: &BTreeSet<Arc<str>>,
    ) -> Result<(), String> {
        let named = update.set.iter().map(|(name, _)| name);
        self.answered.extend(named.chain(&update.removed).cloned());
        for (name, decoded) in &update.set {
            let Some(secret) = decoded.secret().filter(|_| subscribed.contains(name)) else {
                continue;
            };
            if self.held.len() >= MAX_SECRETS && !self.held.contains_key(name) {
                return Err(format!("more than {MAX_SECRETS} secrets"));
            }
            let version = decoded.received.as_ref().map(|own| own.version.clone());
            let entry = (version.unwrap_or_default(), secret);
            self.held.insert(Arc::clone(name), entry);
            self.changed = true;
        }
        Ok(())
    }

    /// Forgets all but those.
    pub(super) fn retain(&mut self, subscribed: &BTreeSet<Arc<str>>) {
        let before = self.held.len();
        self.held.retain(|name, _| subscribed.contains(name));
        self.answered.retain(|name| subscribed.contains(name));
        let complete = self.answered.len() == subscribed.len();
        self.changed |= complete != std::mem::replace(&mut self.complete, complete);
        self.changed |= self.held.len() != before;
    }

    /// Returns all, and whether the server has answered for each that is subscribed, if that has changed since.
    pub(super) fn changed(&mut self) -> Option<(tls::Secrets, bool)> {
        let all = self.held.iter();
        std::mem::take(&mut self.changed).then(|| {
            let all = all.map(|(name, (_, own))| (Arc::clone(name), Arc::clone(own)));
            (all.collect(), self.complete)
        })
    }

    pub(super) fn versions(&self) -> BTreeMap<String, String> {
        let all = self.held.iter();
        all.map(|(name, (version, _))| (name.to_string(), version.clone()))
            .collect()
    }
}

/// Whether an update is one of secrets.
pub(super) fn is_secret(update: &Update) -> bool {
    update.kind == ResourceType::Secret
}
