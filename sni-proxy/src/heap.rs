//! Has the allocator give memory that was freed back to the kernel.
//!
//! mimalloc 2 gives free pages back some time after they were freed, and only when it frees others,
//! which may never happen once a load is over. So workers and the control thread hold two large
//! allocations and renew them now and then (`rhizome-bench tls --cases idle`: *kept*). Measures
//! nothing, and knows no allocator's interface.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Reminds the allocator of the current thread's free pages for as long as it is polled: every
/// [`PERIOD`], and soon after a notice that much was `freed`.
pub(crate) async fn give_back(freed: Arc<Notify>) {
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut runs = take();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = freed.notified() => sleep(SOON).await,
        }
        // Freed first: taking one puts off what was to be given back around it.
        drop(runs);
        runs = take();
    }
}

fn take() -> [Vec<u8>; 2] {
    black_box([(); 2].map(|()| Vec::with_capacity(RUN_BYTES)))
}

const PERIOD: Duration = Duration::from_secs(2);

/// Longer than mimalloc leaves free pages of a thread alone (10 ms).
const SOON: Duration = Duration::from_millis(50);

/// Above 64 KiB mimalloc gives an allocation pages of its own.
const RUN_BYTES: usize = 256 * 1024;
