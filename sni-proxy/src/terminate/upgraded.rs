//! A connection that was upgraded: bytes both ways, as they are.

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use relay::{Peer, Pool, Timers, relay_streams};
use serve::Reason;

use super::exchange::Open;
use super::upstream::Active;

/// An upgrade that was agreed on.
pub(crate) struct Upgraded {
    pub(crate) down: OnUpgrade,
    pub(crate) up: OnUpgrade,
    pub(crate) _active: Active,
    pub(crate) open: Open,
}

/// Passes bytes until both sides have ended, or one fails or is silent for too long.
pub(crate) async fn relayed(upgraded: Upgraded, pool: &Pool, timers: Timers) -> Reason {
    let (Ok(down), Ok(up)) = tokio::join!(upgraded.down, upgraded.up) else {
        return Reason::UpstreamReset;
    };
    let (mut down, mut up) = (TokioIo::new(down), TokioIo::new(up));
    let (down, up) = (peer(&mut down), peer(&mut up));
    let meter = &**upgraded.open.exchange();
    let outcome = relay_streams(down, up, Bytes::new(), pool, meter, timers).await;
    Reason::from(&outcome)
}

/// hyper hides the socket under an upgraded stream: neither peer is reset, both are closed.
fn peer<S>(stream: &mut S) -> Peer<'_, S> {
    let socket = |_: &S| None;
    Peer { stream, socket }
}
