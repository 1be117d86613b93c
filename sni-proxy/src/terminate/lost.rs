//! Whether a silent server of HTTP/2 lives.

use std::future::poll_fn;
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::timeout;

use super::wire::Driver;

/// A silent connection is asked whether it lives.
const PING: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(15);

/// Waits until a connection has been silent for long, and does not answer when it is asked whether it lives.
pub(crate) async fn lost(pings: Option<PingPong>, driver: &Driver) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        let received = driver.received();
        tokio::time::sleep(PING).await;
        if driver.received() != received {
            continue;
        }
        if pings.send_ping(Ping::opaque()).is_err() {
            return;
        }
        // An answer that is late while other bytes come is waited for: there is one at a time.
        loop {
            let received = driver.received();
            match timeout(PING_LIMIT, poll_fn(|cx| pings.poll_pong(cx))).await {
                Ok(Ok(_)) => break,
                Ok(Err(_)) => return,
                Err(_) if driver.received() == received => return,
                Err(_) => {}
            }
        }
    }
}
