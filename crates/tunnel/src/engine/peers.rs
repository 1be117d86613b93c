//! The peers: made from the configuration, and made anew when it changes.
//!
//! ```text
//!   Identity ── check ──▶ peers, pairs, indices, allowed addresses
//!                 └─ pairs of keys that were there before keep their sessions, peers their links
//! ```
//!
//! A change is applied whole, or refused and nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ipnet::IpNet;
use tunnel_proto::allowed::{AllowedIps, Builder, PeerIndex, Sharing};
use tunnel_proto::path::{LinkId, Selector};

use crate::handle::{Identity, IdentityError, PeerSpec};

use super::Engine;
use super::peer::{Pair, Peer, Remote, Steering, Told};

/// Pairs of keys that a server has numbers for, beside its route id.
const PAIRS: usize = 16;

impl Engine {
    /// Replaces keys and peers. Sessions of pairs of keys that stay are kept, and so are links and
    /// flows of peers whose names stay.
    ///
    /// # Errors
    ///
    /// Keys and peers that cannot be used together; nothing is changed.
    pub(crate) fn replace(
        &mut self,
        now: Instant,
        mut identity: Identity,
    ) -> Result<(), IdentityError> {
        let mut seen = Vec::new();
        identity.keys.retain(|key| {
            let public = key.public();
            let new = !seen.contains(&public);
            seen.push(public);
            new
        });
        check(&identity)?;
        let names = self.places(&identity.peers)?;
        let allowed = self.allowed_ips(&identity.peers, &names)?;
        self.keys.replace(&identity.keys);
        let mut used = self.retain_pairs(&identity.peers);
        let mut before = std::mem::take(&mut self.peers);
        self.by_index.clear();
        for (place, spec) in names.iter().zip(identity.peers) {
            let at = usize::from(place.get());
            if self.peers.len() <= at {
                self.peers.resize_with(at + 1, || None);
            }
            let same = |old: &mut Peer| old.name == spec.name;
            let old = before.get_mut(at).and_then(|old| old.take_if(same));
            let peer = self.peer(now, *place, spec, old, &mut used);
            if let Some(slot) = self.peers.get_mut(at) {
                *slot = Some(peer);
            }
        }
        self.allowed = allowed;
        for gone in before.into_iter().flatten() {
            tracing::info!(peer = %gone.name, "peer removed");
            if let Steering::Client(selector) = &gone.steering {
                // Its attempts may end once another peer of that name is there.
                let last = selector.last_link().0;
                self.shared.last_link = self.shared.last_link.max(last);
            }
            for link in &gone.links {
                if let Remote::Stream(stream) = link.remote {
                    self.shared.streams.remove(&stream);
                }
                self.shared.close(link.remote, "removed");
            }
        }
        self.index();
        Ok(())
    }

    /// Returns the place of each peer: the one it has, else a free one.
    fn places(&self, specs: &[PeerSpec]) -> Result<Vec<PeerIndex>, IdentityError> {
        let known = || self.peers.iter().flatten();
        let place_of = |spec: &PeerSpec| {
            let same = known().find(|peer| peer.name == spec.name);
            same.map(|peer| peer.place)
        };
        let mut taken: Vec<PeerIndex> = specs.iter().filter_map(place_of).collect();
        // Flows may still name the place of a peer that goes: it is the last to be given away.
        let going = known().map(|peer| peer.place);
        let going: Vec<PeerIndex> = going.filter(|place| !taken.contains(place)).collect();
        let mut places = Vec::with_capacity(specs.len());
        for spec in specs {
            let place = place_of(spec).or_else(|| {
                let all = (0..PeerIndex::COUNT).filter_map(PeerIndex::new);
                let free = all.filter(|place| !taken.contains(place));
                let first = free.min_by_key(|place| going.contains(place));
                taken.extend(first);
                first
            });
            let Some(place) = place else {
                let (peers, most) = (specs.len(), PeerIndex::COUNT);
                return Err(IdentityError(format!("{peers} peers are more than {most}")));
            };
            places.push(place);
        }
        Ok(places)
    }

    fn allowed_ips(
        &self,
        specs: &[PeerSpec],
        places: &[PeerIndex],
    ) -> Result<AllowedIps, IdentityError> {
        let mut builder = Builder::default();
        let mut give = |network: IpNet, place, sharing| {
            let given = builder.insert(network, place, sharing);
            given.map(|_| ()).map_err(|_| {
                let address = network.addr();
                let why = format!("{address} cannot be given to a peer, or is another's");
                IdentityError(why)
            })
        };
        for (spec, place) in specs.iter().zip(places) {
            for address in &spec.addresses {
                give((*address).into(), *place, Sharing::Exclusive)?;
            }
            if self.shared.server.is_some() {
                for network in &self.shared.networks {
                    give(*network, *place, Sharing::Shared)?;
                }
            }
        }
        Ok(builder.build())
    }

    fn peer(
        &self,
        now: Instant,
        place: PeerIndex,
        spec: PeerSpec,
        old: Option<Peer>,
        used: &mut Vec<u32>,
    ) -> Peer {
        let mut peer = old.unwrap_or_else(|| self.fresh(now, place, &spec));
        let mut kept = std::mem::take(&mut peer.pairs);
        let initiator = matches!(peer.steering, Steering::Client(_));
        for (number, own) in self.keys.own().iter().enumerate() {
            for theirs in &spec.public_keys {
                let same = |pair: &Pair| pair.own == *own && pair.theirs == *theirs;
                if let Some(at) = kept.iter().position(same) {
                    peer.pairs.push(kept.remove(at));
                    continue;
                }
                let index = self.free_index(place, used);
                used.push(index);
                let (keys, preshared) = (&self.keys, spec.preshared_key.clone());
                let noise = keys.pair(number, *theirs, preshared, index, initiator, now);
                // There is one: `own` is one of the keys that were just given.
                if let Some(noise) = noise {
                    peer.pairs.push(Pair::new(index, *own, *theirs, noise, now));
                }
            }
        }
        Peer {
            addresses: spec.addresses,
            route: spec.route,
            preshared: spec.preshared_key,
            ..peer
        }
    }

    fn fresh(&self, now: Instant, place: PeerIndex, spec: &PeerSpec) -> Peer {
        let steering = if self.shared.server.is_some() {
            Steering::Server {
                prober: None,
                last_healthy: None,
                told: Told::default(),
            }
        } else {
            let secret = self.shared.instance ^ u64::from(place.get()) << 40;
            let last = LinkId(self.shared.last_link);
            let selector = Selector::new(self.shared.path, secret, last, now);
            Steering::Client(Box::new(selector))
        };
        Peer {
            place,
            name: spec.name.clone(),
            addresses: Vec::new(),
            route: None,
            preshared: None,
            pairs: Vec::new(),
            links: Vec::new(),
            active: None,
            last_used: None,
            latest: None,
            steering,
            draining: false,
            ended: false,
            unsettled: false,
            sent_large: None,
            flows: None,
            instance: None,
        }
    }

    /// Returns an index that no pair has. A server's begin with its route id; a client's, which
    /// only servers see, with the place of the server.
    fn free_index(&self, place: PeerIndex, used: &[u32]) -> u32 {
        let server = self.shared.server.as_ref();
        let base = match server.and_then(|server| server.route) {
            Some(route) => route.get() << 4,
            None => {
                let random = u32::try_from(self.shared.instance & 0x3fff).unwrap_or(0);
                random << 10 | u32::from(place.get()) << 4
            }
        };
        // There is one: pairs are no more than numbers.
        let mut all = (0..16).map(|pair| base | pair);
        all.find(|index| !used.contains(index)).unwrap_or(base)
    }

    /// Removes the pairs that a change ends, and returns the indices of the others, whichever peer
    /// comes first.
    fn retain_pairs(&mut self, specs: &[PeerSpec]) -> Vec<u32> {
        let own = self.keys.own();
        for peer in self.peers.iter_mut().flatten() {
            let spec = specs.iter().find(|spec| spec.name == peer.name);
            let spec = spec.filter(|spec| spec.preshared_key == peer.preshared);
            peer.pairs.retain(|pair| {
                let theirs = spec.is_some_and(|spec| spec.public_keys.contains(&pair.theirs));
                theirs && own.contains(&pair.own)
            });
        }
        let pairs = self.peers.iter().flatten().flat_map(|peer| &peer.pairs);
        pairs.map(|pair| pair.index).collect()
    }

    /// Makes the table of indices anew.
    fn index(&mut self) {
        self.by_index.clear();
        for peer in self.peers.iter().flatten() {
            let pairs = peer.pairs.iter().enumerate();
            let entries = pairs.map(|(pair, entry)| (entry.index, peer.place, pair));
            self.by_index.extend(entries);
        }
    }
}

fn check(identity: &Identity) -> Result<(), IdentityError> {
    let refused = |why: String| Err(IdentityError(why));
    if identity.keys.is_empty() {
        return refused("there is no private key".to_owned());
    }
    let keys = identity.peers.iter().map(|peer| peer.public_keys.len());
    let pairs = keys.sum::<usize>() * identity.keys.len();
    if pairs > PAIRS {
        return refused(format!(
            "{pairs} pairs of an own key and a peer's key are more than {PAIRS}"
        ));
    }
    let (mut names, mut keys) = (BTreeSet::new(), BTreeMap::new());
    let mut addresses = BTreeMap::new();
    for peer in &identity.peers {
        let name = &peer.name;
        if !names.insert(name) {
            return refused(format!("two peers are named {name:?}"));
        }
        if peer.public_keys.is_empty() {
            return refused(format!("peer {name:?} has no public key"));
        }
        for key in &peer.public_keys {
            if let Some(first) = keys.insert(key, name) {
                return refused(format!("peers {first:?} and {name:?} have a key in common"));
            }
        }
        for address in &peer.addresses {
            if let Some(first) = addresses.insert(address, name) {
                return refused(format!(
                    "peers {first:?} and {name:?} both have the address {address}"
                ));
            }
        }
    }
    Ok(())
}
