//! Accept loops that wait for each other before any of them closes its socket.
//!
//! A loop that ends early, whatever for, is no longer waited for. Knows neither sockets nor phases.

use tokio::sync::watch;

/// Where the accept loops of a process meet.
#[derive(Clone, Debug, Default)]
pub struct Closing(watch::Sender<usize>);

/// One accept loop's part; dropping it is arriving.
#[derive(Debug)]
pub struct Member(watch::Sender<usize>);

impl Closing {
    /// Registers an accept loop.
    #[must_use]
    pub fn join(&self) -> Member {
        self.0.send_modify(|waiting| *waiting += 1);
        Member(self.0.clone())
    }
}

impl Member {
    /// Arrives, and waits until all others have arrived.
    pub async fn meet(self) {
        let mut others = self.0.subscribe();
        drop(self);
        // Fails only without a sender, and then nobody is waited for.
        let _ = others.wait_for(|waiting| *waiting == 0).await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_waits_for_everybody_who_is_still_there() {
        let closing = Closing::default();
        let (first, second, third) = (closing.join(), closing.join(), closing.join());
        let mut waiting = std::pin::pin!(first.meet());
        let mut ready = async || {
            let at_once = tokio::time::timeout(std::time::Duration::ZERO, waiting.as_mut());
            at_once.await.is_ok()
        };
        assert!(!ready().await);
        drop(second); // it failed
        assert!(!ready().await);
        third.meet().await;
        assert!(ready().await);
    }
}
