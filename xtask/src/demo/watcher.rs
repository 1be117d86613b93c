//! Follows a running watch on a thread, and notices when an event is missing.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::http::Connection;
use testkit::wait::Deadline;

#[derive(Debug)]
pub(super) struct Watcher {
    /// Numbers of events, and why there are no more.
    arrivals: Receiver<Result<u64, String>>,
    seen: Cell<(u64, u64)>,
}

impl Watcher {
    /// Starts to follow `path` on `connection`. The thread ends with the watch.
    pub(super) fn follow(connection: Connection, path: &str) -> Result<Self> {
        let mut watch = connection.watch(path)?;
        let (arrived, arrivals) = channel();
        let follow = move || loop {
            let arrival = match watch.next_event() {
                Ok(Some(event)) => Ok(event["sequence"].as_u64().unwrap_or_default()),
                Ok(None) => Err("the server ended it".to_owned()),
                Err(error) => Err(format!("{error:#}")),
            };
            let ended = arrival.is_err();
            if arrived.send(arrival).is_err() || ended {
                return;
            }
        };
        let thread = std::thread::Builder::new().name("watcher".to_owned());
        thread.spawn(follow).context("starting a thread")?;
        let seen = Cell::new((0, 0));
        let watcher = Self { arrivals, seen };
        watcher.wait_more(1)?;
        Ok(watcher)
    }

    /// Returns how many events have come, unless one is missing or the watch has ended.
    pub(super) fn events(&self) -> Result<u64> {
        for arrival in self.arrivals.try_iter() {
            self.count(arrival)?;
        }
        Ok(self.seen.get().0)
    }

    /// Waits for `count` further events, and returns how many there were in all.
    pub(super) fn wait_more(&self, count: u64) -> Result<u64> {
        self.events()?;
        let deadline = Deadline::after(LIMIT);
        for _ in 0..count {
            let arrival = self.arrivals.recv_timeout(deadline.left());
            self.count(arrival.context("no further events of the watch")?)?;
        }
        Ok(self.seen.get().0)
    }

    /// Waits for the watch to end, and returns how many events there were without a gap.
    pub(super) fn wait_end(&self, limit: Duration) -> Result<u64> {
        let deadline = Deadline::after(limit);
        loop {
            let arrival = self.arrivals.recv_timeout(deadline.left());
            match arrival.context("the watch does not end")? {
                Ok(number) => self.count(Ok(number))?,
                Err(_) => return Ok(self.seen.get().0),
            }
        }
    }

    fn count(&self, arrival: Result<u64, String>) -> Result<()> {
        let (events, last) = self.seen.get();
        match arrival {
            Ok(number) => {
                let next = events == 0 || number == last + 1;
                ensure!(next, "event {number} came after event {last}");
                self.seen.set((events + 1, number));
                Ok(())
            }
            Err(end) => bail!("the watch has ended after {events} events: {end}"),
        }
    }
}

const LIMIT: Duration = Duration::from_secs(5);
