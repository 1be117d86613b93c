//! The sockets of this process in the `SO_REUSEPORT` group of one address, among those of others.
//!
//! ```text
//!     as they joined:   [ before | own | after ]
//!     a drain: new connections go to those after, else to those before, else stay
//!     the end: each accept loop leaves its socket here; all are closed with the last one
//! ```
//!
//! Reads no packets and knows no phases. Where the order is uncertain, the kernel's hash decides.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use telemetry::lock;
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::shared_address::{OwnSockets, pass_over, pass_to_all};

/// How often a process that is not alone at its address checks whether it is now.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What the accept loops of one listener share.
#[derive(Debug)]
pub(crate) struct ReusePortGroup {
    own: OwnSockets,
    /// The others that listened there before; `None` if unknown.
    before: Mutex<Option<BTreeSet<u64>>>,
    watched: AtomicBool,
    passed: AtomicBool,
    /// Another process has these very sockets, or is about to.
    shared: AtomicBool,
    /// The channels to those that go on with them: each has another end until its process has ended.
    sharers: Mutex<Vec<Arc<UnixStream>>>,
    left: Mutex<Vec<TcpListener>>,
}

impl ReusePortGroup {
    /// Remembers the bound sockets of one listener.
    pub(crate) fn new(address: SocketAddr, sockets: &[TcpListener]) -> io::Result<Self> {
        Ok(Self {
            own: OwnSockets::new(address, sockets)?,
            before: Mutex::new(None),
            watched: AtomicBool::new(false),
            passed: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            sharers: Mutex::default(),
            left: Mutex::default(),
        })
    }

    /// Returns the own sockets.
    pub(crate) fn own(&self) -> &OwnSockets {
        &self.own
    }

    /// Remembers whether another process has these very sockets.
    pub(crate) fn share(&self, shared: bool) {
        self.shared.store(shared, Ordering::Relaxed);
    }

    /// Remembers that both processes go on with these very sockets, if another one has them: this one, until
    /// the other end of the channel is closed, not only shut down.
    pub(crate) fn share_until_closed(&self, channel: &Arc<UnixStream>) {
        if self.shared.load(Ordering::Relaxed) {
            let mut sharers = lock(&self.sharers);
            sharers.retain(|sharer| !is_closed(sharer));
            sharers.push(Arc::clone(channel));
            self.share(false);
        }
    }

    /// Returns whether another process has these very sockets, with which it would lose its queue.
    pub(crate) fn is_shared(&self) -> bool {
        let sharers = lock(&self.sharers);
        self.shared.load(Ordering::Relaxed) || !sharers.iter().all(|sharer| is_closed(sharer))
    }

    /// Remembers the others; to be called before any of the sockets listens.
    pub(crate) fn arrive(&self) {
        match self.own.others() {
            Ok(others) => *lock(&self.before) = Some(others),
            Err(error) => tracing::debug!(%error, "other listeners at the address are unknown"),
        }
    }

    /// Checks once all of the sockets listen: a process that started in between may be before, behind or
    /// among them.
    pub(crate) fn arrived(&self) {
        let others = self.own.beside().ok().flatten();
        let mut before = lock(&self.before);
        if *before != others {
            *before = None;
        }
    }

    /// Waits until the others that were there before are gone: only then are later ones sure to join
    /// behind. Never completes; cancel-safe. One of the accept loops does it for all.
    pub(crate) async fn watch(&self, socket: &impl AsFd) -> Infallible {
        if self.watched.swap(true, Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let were_others = || !matches!(&*lock(&self.before), Some(before) if before.is_empty());
        while were_others() {
            sleep(POLL_INTERVAL).await;
            if let Ok(Some(others)) = self.own.beside()
                && others.is_empty()
            {
                *lock(&self.before) = Some(others);
                // Undoes what a process that is gone may have set, or one socket would get everything.
                let _ = pass_to_all(socket);
            }
        }
        std::future::pending().await
    }

    /// Directs new connections to others at the address, if there are any and their numbers are known.
    pub(crate) fn pass_over(&self, socket: &impl AsFd) -> io::Result<()> {
        let Some(others) = self.own.beside()? else {
            return Ok(());
        };
        let before = lock(&self.before);
        if let Some((first, among)) = successors(before.as_ref(), self.own.count(), &others) {
            pass_over(socket, first, among)?;
            self.passed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Keeps the socket of an accept loop that has ended, until all are here or their loops gone: if some
    /// were closed before others, numbers would change.
    pub(crate) fn leave(&self, socket: TcpListener) {
        lock(&self.left).push(socket);
    }
}

/// Returns whether the other end of a channel of which each process has shut down one direction is closed.
fn is_closed(channel: &UnixStream) -> bool {
    relay::is_gone(channel.as_fd(), false)
}

impl Drop for ReusePortGroup {
    fn drop(&mut self) {
        let mut left = lock(&self.left);
        left.truncate(1);
        if let Some(last) = left.first()
            && self.passed.load(Ordering::Relaxed)
        {
            // Without this process its numbers are those of other sockets.
            let _ = pass_to_all(last);
        }
    }
}

/// Returns the number of the first socket, and how many there are, that new connections go to.
fn successors(
    before: Option<&BTreeSet<u64>>,
    own: usize,
    others: &BTreeSet<u64>,
) -> Option<(u32, u32)> {
    // When one of those before has gone, the last socket of the group has its number.
    let before = before.filter(|before| before.is_subset(others))?.len();
    let after = others.len() - before;
    let (first, among) = match (before, after) {
        (0, 0) => return None,
        (_, 0) => (0, before),
        (_, _) => (before + own, after),
    };
    Some((u32::try_from(first).ok()?, u32::try_from(among).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use route::TcpOptions;
    use socket2::SockRef;

    use super::*;
    use crate::listener::{BoundListeners, ListenerParams, WorkerSocket, bind_all};

    /// Binds as a process with so many workers does.
    fn bind(address: SocketAddr, workers: usize) -> BoundListeners {
        let params = ListenerParams {
            name: "test".to_owned(),
            address,
            tcp: TcpOptions::default(),
        };
        bind_all(&[params], workers, Vec::new()).unwrap()
    }

    /// Starts to listen, likewise.
    fn join(address: SocketAddr, workers: usize) -> Vec<WorkerSocket> {
        let bound = bind(address, workers);
        bound.listen().unwrap();
        bound.per_worker.into_iter().flatten().collect()
    }

    fn first() -> (SocketAddr, Vec<WorkerSocket>) {
        let own = join(SocketAddr::from(([127, 0, 0, 1], 0)), 2);
        (own[0].local_addr().unwrap(), own)
    }

    fn pass(own: &[WorkerSocket]) {
        let group = own[0].group.as_ref().unwrap();
        group.pass_over(&own[0].socket).unwrap();
    }

    /// Leaves as accept loops do, one after the other.
    fn leave(own: Vec<WorkerSocket>) {
        for own in own {
            own.group.unwrap().leave(own.socket);
        }
    }

    /// Makes so many connections that chance leaves none of a few sockets out; returns how many each
    /// socket of each process got.
    fn spread(address: SocketAddr, all: &[&[WorkerSocket]]) -> Vec<Vec<usize>> {
        let _open: Vec<_> = (0..MANY)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let accepted =
            |own: &WorkerSocket| std::iter::from_fn(|| own.socket.accept().ok().map(drop)).count();
        all.iter()
            .map(|own| own.iter().map(accepted).collect())
            .collect()
    }

    fn got_all(own: &[usize]) {
        assert_eq!(own.iter().sum::<usize>(), MANY, "{own:?}");
        assert!(own.iter().all(|own| *own > 0), "{own:?}");
    }

    #[test]
    fn all_sockets_of_successor_get_connections() {
        let (address, older) = first();
        let newer = join(address, 3);
        pass(&older);
        got_all(&spread(address, &[&older, &newer])[1]);
        leave(older);
        got_all(&spread(address, &[&newer])[0]);
    }

    #[test]
    fn later_process_passes_to_the_earlier_one() {
        let (address, older) = first();
        let newer = join(address, 3);
        pass(&newer);
        got_all(&spread(address, &[&older, &newer])[0]);
        leave(newer);
        // A process that starts then has its share.
        let third = join(address, 2);
        let got = spread(address, &[&older, &third]);
        assert!(got.concat().iter().all(|own| *own > 0), "{got:?}");
    }

    #[test]
    fn process_in_the_middle_passes_to_the_last() {
        let (address, first) = first();
        let (second, third) = (join(address, 2), join(address, 2));
        pass(&second);
        got_all(&spread(address, &[&first, &second, &third])[2]);
    }

    #[test]
    fn hash_decides_while_the_order_is_unknown() {
        let (address, first) = first();
        let (second, third) = (join(address, 2), join(address, 2));
        leave(first);
        pass(&second);
        let got = spread(address, &[&second, &third]);
        assert!(got.concat().iter().all(|own| *own > 0), "{got:?}");
    }

    #[test]
    fn hash_decides_after_a_concurrent_start() {
        let slow = bind(SocketAddr::from(([127, 0, 0, 1], 0)), 2);
        let group = slow.per_worker[0][0].group.clone().unwrap();
        group.arrive();
        let quick = join(slow.addresses[0], 2);
        let slow: Vec<_> = slow.per_worker.into_iter().flatten().collect();
        for own in &slow {
            SockRef::from(&own.socket).listen(1024).unwrap();
        }
        group.arrived();
        pass(&slow);
        let got = spread(slow[0].local_addr().unwrap(), &[&quick, &slow]);
        assert!(got.concat().iter().all(|own| *own > 0), "{got:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn order_is_known_again_once_alone() {
        let (address, first) = first();
        let second = join(address, 2);
        pass(&first);
        drop(first); // killed: nothing is reset
        let group = second[0].group.as_ref().unwrap();
        let watch = group.watch(&second[0].socket);
        let watched = tokio::time::timeout(2 * POLL_INTERVAL, watch);
        assert!(watched.await.is_err());
        got_all(&spread(address, &[&second])[0]);
        let third = join(address, 2);
        pass(&second);
        got_all(&spread(address, &[&second, &third])[1]);
    }

    #[test]
    fn sockets_stay_open_until_the_last_loop_leaves() {
        let (address, mut own) = first();
        let last = own.pop().unwrap();
        leave(own);
        let group = last.group.as_ref().unwrap();
        assert_eq!(group.own().others().unwrap().len(), 0);
        assert!(group.own().beside().unwrap().is_some());
        leave(vec![last]);
        assert!(TcpStream::connect(address).is_err());
    }

    #[tokio::test]
    async fn sockets_are_shared_until_the_channel_closes() {
        let (_, own) = first();
        let group = own[0].group.as_ref().unwrap();
        let pair = || {
            let (here, there) = UnixStream::pair().unwrap();
            (Arc::new(here), there.into_std().unwrap())
        };
        let (earlier, gone) = pair();
        group.share(true);
        group.share_until_closed(&earlier);
        // As who gives ends the talk, and as who takes does.
        rustix::net::shutdown(&*earlier, rustix::net::Shutdown::Write).unwrap();
        gone.shutdown(std::net::Shutdown::Read).unwrap();
        assert!(group.is_shared());
        let (later, there) = pair();
        group.share(true);
        group.share_until_closed(&later);
        drop(gone);
        assert!(group.is_shared(), "the later one goes on");
        drop(there);
        assert!(!group.is_shared());
        // It has never had them.
        let (stranger, _there) = pair();
        group.share_until_closed(&stranger);
        assert!(!group.is_shared());
    }

    const MANY: usize = 64;
}
