//! Has the allocator give memory of connections that have ended back to the kernel.
//!
//! Its pages are free already when this is needed; this makes it look. It measures nothing, and knows
//! no allocator's interface: to one that needs no reminder it costs two blocks that nobody writes to.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, sleep};

/// How often.
const PERIOD: Duration = Duration::from_secs(2);

/// How long after much was freed at once: longer than mimalloc waits before it gives pages back.
const SOON: Duration = Duration::from_millis(50);

/// Octets that mimalloc gives pages of their own: more than 64 KiB.
const RUN_OF_PAGES: usize = 256 * 1024;

/// Reminds the allocator of the current thread's free pages, for as long as it is polled: every
/// [`PERIOD`], and soon after it was told that much was freed.
///
/// mimalloc 2 waits 10 ms before it gives free pages back, and looks again only when a run of pages
/// is freed, which may never happen once a load is over. So runs are held, and renewed now and then:
/// two, since the last one of its size is kept for the next who asks, and freed first, since taking
/// one puts off what was to be given back around it.
pub(crate) async fn give_back(freed: Arc<Notify>) {
    let mut tick = tokio::time::interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut runs = take();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = freed.notified() => sleep(SOON).await,
        }
        drop(runs);
        runs = take();
    }
}

fn take() -> [Vec<u8>; 2] {
    black_box([(); 2].map(|()| Vec::with_capacity(RUN_OF_PAGES)))
}
