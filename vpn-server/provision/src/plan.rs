//! What is to be remembered next: a pure function of what is remembered, the parameters, the time
//! and random numbers.
//!
//! ```text
//!   State? ─ ensure ─▶ State, everything there ─ advance ─▶ State of the next step, or a wait
//! ```
//!
//! `ensure` makes what is missing or runs out and leaves alone what is there, whatever phase a
//! rotation is in. `advance` takes one step of a rotation, at the earliest when all pods may have
//! read what the step before wrote. Nothing is read or written here.

use std::time::Duration;

use rcgen::KeyPair;
use tunnel::RouteId;

use super::certificates::{self, CertificateError, Use};
use super::state::{
    Authority, Keys, Leaf, Moment, Phase, Secret, ServerState, State, VERSION, Which,
};
use crate::config::{Rotate, Wanted};

/// The source of secrets: returns 32 random bytes.
pub(super) type Random<'a> = &'a mut dyn FnMut() -> Result<[u8; 32], PlanError>;

/// Why there is no next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PlanError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("the last rotation is being completed: end it with `rotate complete` first")]
    Completing,
    #[error("no rotation is under way: begin one with `rotate start`")]
    NotStarted,
    #[error("the rotation is not prepared yet: go on with `rotate start` first")]
    NotPrepared,
    #[error("the system has no random numbers")]
    Random,
    #[error("routeIds[{server}] is {wanted}, but this server has {has} and is known by it")]
    RouteId {
        server: usize,
        wanted: u32,
        has: u32,
    },
    #[error(
        "vpn-seed-server-{server} needs a route id: give routeIds, or --kubeconfig to claim one"
    )]
    RouteIdMissing { server: usize },
    #[error("the state is of version {found}, this program knows {VERSION}")]
    Version { found: u32 },
}

/// Returns which servers have no route id yet, by number.
pub(super) fn without_route_id(state: Option<&State>, wanted: &Wanted) -> Vec<usize> {
    let known = state.map_or(0, |state| state.servers.len());
    let first = known.max(wanted.route_ids.len());
    (first..wanted.servers.len()).collect()
}

/// Returns `state` with everything in it that `wanted` asks for. `claimed` are route ids for the
/// servers of [`without_route_id`].
pub(super) fn ensure(
    state: Option<State>,
    wanted: &Wanted,
    claimed: &[RouteId],
    now: Moment,
    random: Random<'_>,
) -> Result<State, PlanError> {
    let mut state = match state {
        Some(state) if state.version != VERSION => {
            return Err(PlanError::Version {
                found: state.version,
            });
        }
        Some(state) => state,
        None => first(wanted, now, random)?,
    };
    ends(&mut state, wanted, claimed, random)?;
    renew(&mut state, wanted, now)?;
    Ok(state)
}

/// Takes a step toward the end of a phase, if it may be taken at `now`; returns after how long
/// another one is to follow.
pub(super) fn advance(
    state: &mut State,
    rotate: Rotate,
    wanted: &Wanted,
    settle: Duration,
    now: Moment,
    random: Random<'_>,
) -> Result<Option<Duration>, PlanError> {
    // A clock that went back would have every run wait until it is there again.
    state.since = state.since.min(now);
    let left = settle.saturating_sub(state.since.age(now));
    let (phase, then) = match (rotate, state.phase) {
        (Rotate::Start, Phase::Completed) => {
            begin(state, wanted, now, random)?;
            (Phase::Preparing, Some(settle))
        }
        (Rotate::Start, Phase::Preparing) if left.is_zero() => (Phase::Prepared, None),
        (Rotate::Start, Phase::Prepared) => return Ok(None),
        (Rotate::Start, Phase::Completing) => return Err(PlanError::Completing),
        (Rotate::Complete, Phase::Prepared) if left.is_zero() => (Phase::Completing, Some(settle)),
        (Rotate::Complete, Phase::Completing) if left.is_zero() => {
            forget(state);
            state.last_completion = Some(now);
            (Phase::Completed, None)
        }
        (Rotate::Complete, Phase::Completed) if state.last_completion.is_some() => {
            return Ok(None);
        }
        (Rotate::Complete, Phase::Completed) => return Err(PlanError::NotStarted),
        (Rotate::Complete, Phase::Preparing) => return Err(PlanError::NotPrepared),
        (Rotate::Start, Phase::Preparing)
        | (Rotate::Complete, Phase::Prepared | Phase::Completing) => return Ok(Some(left)),
    };
    state.phase = phase;
    state.since = now;
    // Certificates follow the phase.
    renew(state, wanted, now)?;
    Ok(then)
}

fn first(wanted: &Wanted, now: Moment, random: Random<'_>) -> Result<State, PlanError> {
    let authority = new_authority(wanted, now, random)?;
    let server_certificate = new_leaf(&authority, Use::Server, wanted, now)?;
    let client_certificate = new_leaf(&authority, Use::Client, wanted, now)?;
    Ok(State {
        version: VERSION,
        phase: Phase::Completed,
        since: now,
        last_completion: None,
        servers: Vec::new(),
        clients: Vec::new(),
        preshared: Vec::new(),
        authorities: Keys::one(authority),
        server_certificate,
        client_certificate,
    })
}

/// Adds servers and clients that are missing, and forgets those that are too many.
fn ends(
    state: &mut State,
    wanted: &Wanted,
    claimed: &[RouteId],
    random: Random<'_>,
) -> Result<(), PlanError> {
    let given = wanted.route_ids.iter().enumerate();
    for ((server, wanted), has) in given.zip(&state.servers) {
        let (wanted, has) = (wanted.get(), has.route_id);
        if wanted != has {
            return Err(PlanError::RouteId {
                server,
                wanted,
                has,
            });
        }
    }
    let mut claimed = claimed.iter();
    state.servers.truncate(wanted.servers.len());
    for server in state.servers.len()..wanted.servers.len() {
        let id = wanted.route_ids.get(server).or_else(|| claimed.next());
        state.servers.push(ServerState {
            route_id: id.ok_or(PlanError::RouteIdMissing { server })?.get(),
            keys: Keys::one(Secret::from_bytes(random()?)),
        });
    }
    state.clients.truncate(wanted.clients.len());
    while state.clients.len() < wanted.clients.len() {
        let key = Secret::from_bytes(random()?);
        state.clients.push(Keys::one(key));
    }
    let (servers, clients) = if wanted.file.preshared_keys {
        (state.servers.len(), state.clients.len())
    } else {
        (0, 0)
    };
    state.preshared.resize_with(servers, Vec::new);
    for row in &mut state.preshared {
        row.truncate(clients);
        while row.len() < clients {
            row.push(Secret::from_bytes(random()?));
        }
    }
    Ok(())
}

/// Makes everything new that the first phase brings.
fn begin(
    state: &mut State,
    wanted: &Wanted,
    now: Moment,
    random: Random<'_>,
) -> Result<(), PlanError> {
    let servers = state.servers.iter_mut().map(|server| &mut server.keys);
    for keys in servers.chain(&mut state.clients) {
        keys.next = Some(Secret::from_bytes(random()?));
    }
    state.authorities.next = Some(new_authority(wanted, now, random)?);
    Ok(())
}

/// Forgets everything old.
fn forget(state: &mut State) {
    let servers = state.servers.iter_mut().map(|server| &mut server.keys);
    for keys in servers.chain(&mut state.clients) {
        keys.settle();
    }
    state.authorities.settle();
}

/// Has certificates signed anew by whom the phase says, and those that run out or are for others.
fn renew(state: &mut State, wanted: &Wanted, now: Moment) -> Result<(), PlanError> {
    let (server, client) = signers(state.phase);
    for (what, which) in [(Use::Server, server), (Use::Client, client)] {
        let authority = match which {
            Which::Old => &state.authorities.current,
            Which::Both | Which::New => state.authorities.newest(),
        };
        let leaf = match what {
            Use::Client => &mut state.client_certificate,
            Use::Server => &mut state.server_certificate,
        };
        let fits = leaf.issuer == authority.name && leaf.names == names(what, wanted);
        if !fits || runs_out(leaf.from, leaf.until, now) {
            *leaf = new_leaf(authority, what, wanted, now)?;
        }
    }
    Ok(())
}

/// Who signs what servers and what API servers show.
fn signers(phase: Phase) -> (Which, Which) {
    match phase {
        Phase::Completed | Phase::Preparing => (Which::Old, Which::Old),
        Phase::Prepared => (Which::Old, Which::New),
        Phase::Completing => (Which::New, Which::New),
    }
}

/// Whether the authority that signs has less than a fifth of its time left.
pub(super) fn authority_runs_out(state: &State, now: Moment) -> bool {
    let authority = state.authorities.newest();
    runs_out(authority.from, authority.until, now)
}

/// Whether less than a fifth of the time from one to the other is left.
fn runs_out(from: Moment, until: Moment, now: Moment) -> bool {
    let whole = until.0.saturating_sub(from.0);
    now.0.saturating_sub(from.0) >= whole - whole / 5
}

fn new_authority(wanted: &Wanted, now: Moment, random: Random<'_>) -> Result<Authority, PlanError> {
    // Two of one subject could not be distinguished in a bundle.
    let [a, b, c, d, ..] = random()?;
    let number = u32::from_be_bytes([a, b, c, d]);
    let name = format!("vpn-seed-server-ca-{number:08x}");
    let key = key_pair()?;
    let days = wanted.file.certificate_days;
    Ok(certificates::authority(&key, name, now, days)?)
}

fn new_leaf(
    authority: &Authority,
    what: Use,
    wanted: &Wanted,
    now: Moment,
) -> Result<Leaf, PlanError> {
    let key = key_pair()?;
    let (names, days) = (names(what, wanted), wanted.file.certificate_days);
    Ok(certificates::leaf(authority, &key, what, names, now, days)?)
}

fn key_pair() -> Result<KeyPair, PlanError> {
    Ok(KeyPair::generate().map_err(CertificateError::from)?)
}

/// The names that API servers may ask for the proxy by: of the Service of all servers, and of each.
fn names(what: Use, wanted: &Wanted) -> Vec<String> {
    if what == Use::Client {
        return Vec::new();
    }
    let each = (0..wanted.servers.len()).map(|number| format!("vpn-seed-server-{number}"));
    let services = std::iter::once("vpn-seed-server".to_owned()).chain(each);
    let namespace = &wanted.file.namespace;
    let mut names: Vec<String> = services
        .flat_map(|name| {
            [
                name.clone(),
                format!("{name}.{namespace}"),
                format!("{name}.{namespace}.svc"),
                format!("{name}.{namespace}.svc.cluster.local"),
            ]
        })
        .collect();
    names.extend(wanted.file.proxy_names.iter().cloned());
    names
}

#[cfg(test)]
mod tests;
