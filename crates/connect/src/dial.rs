//! The seam between this frontend and what lies behind it.

use bytes::Bytes;

use crate::{Refusal, Request, Stream};

/// Opens tunnels, and moves a client's bytes through them.
///
/// The futures need not be `Send`: a connection stays on the thread that accepted it.
#[expect(
    async_fn_in_trait,
    reason = "callers run connections as local tasks and never need the futures to be Send"
)]
pub trait Dial {
    /// An open tunnel. Dropped without a relay when the client cannot be told about it, so
    /// dropping it must close it.
    type Tunnel;

    /// Opens a tunnel to what `request` asks for.
    ///
    /// Dropped, at any await, when the client goes away or [`Params::dial_limit`] passes: an
    /// attempt under way must end with the future.
    ///
    /// # Errors
    /// The answer that the client gets instead.
    ///
    /// [`Params::dial_limit`]: crate::Params::dial_limit
    async fn dial(&self, request: &Request) -> Result<Self::Tunnel, Refusal>;

    /// Moves bytes both ways until the tunnel ends, and closes both.
    ///
    /// Runs after the answer 200 has been written and flushed. `early` is what the client sent
    /// until then and goes into the tunnel first. Dropped with [`serve`](crate::serve) when that
    /// is; must bound its own waits.
    async fn relay<S>(&self, tunnel: Self::Tunnel, stream: S, early: Bytes) -> Ended
    where
        S: Stream;
}

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Bytes that came from the client, early ones among them.
    pub received: u64,
    /// Bytes that went to the client.
    pub sent: u64,
    /// A word from a closed set of the implementation's, for logs and metrics.
    pub reason: &'static str,
}
