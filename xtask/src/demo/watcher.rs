//! Follows a running watch on a thread, and notices when an event is missing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use testkit::http::Connection;
use testkit::wait;

/// A watch that is being followed.
#[derive(Debug)]
pub(super) struct Watcher {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    events: u64,
    last: Option<u64>,
    missing: Option<String>,
    end: Option<String>,
}

impl Watcher {
    /// Starts to follow `path` on `connection`; `sequence` reads an event's number. The thread ends
    /// with the watch.
    pub(super) fn follow(
        connection: Connection,
        path: &str,
        sequence: impl Fn(&Value) -> Option<u64> + Send + 'static,
    ) -> Result<Self> {
        let mut watch = connection.watch(path)?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        std::thread::Builder::new()
            .name("watcher".to_owned())
            .spawn(move || {
                let end = loop {
                    match watch.next_event() {
                        Ok(Some(event)) => lock(&shared).take(&event, sequence(&event)),
                        Ok(None) => break "the server ended it".to_owned(),
                        Err(error) => break format!("{error:#}"),
                    }
                };
                lock(&shared).end = Some(end);
            })
            .context("starting a thread")?;
        let watcher = Self { seen };
        watcher.wait_more(1)?;
        Ok(watcher)
    }

    /// Returns how many events have come, unless one is missing or the watch has ended.
    pub(super) fn events(&self) -> Result<u64> {
        let seen = lock(&self.seen);
        if let Some(missing) = &seen.missing {
            bail!("{missing}");
        }
        if let Some(end) = &seen.end {
            bail!("the watch has ended after {} events: {end}", seen.events);
        }
        Ok(seen.events)
    }

    /// Waits for `count` further events, and returns how many there were in all.
    pub(super) fn wait_more(&self, count: u64) -> Result<u64> {
        let goal = lock(&self.seen).events + count;
        wait::until("further events of the watch", LIMIT, || {
            !self.events().is_ok_and(|events| events < goal)
        })?;
        self.events()
    }

    /// Waits for the watch to end, and returns how many events there were without a gap.
    pub(super) fn wait_end(&self, limit: Duration) -> Result<u64> {
        wait::until("the watch to end", limit, || lock(&self.seen).end.is_some())?;
        let seen = lock(&self.seen);
        match &seen.missing {
            Some(missing) => bail!("{missing}"),
            None => Ok(seen.events),
        }
    }
}

impl Seen {
    fn take(&mut self, event: &Value, sequence: Option<u64>) {
        self.events += 1;
        match (self.last, sequence) {
            (_, None) => self.missing = Some(format!("an event without a number: {event}")),
            (Some(last), Some(number)) if number != last + 1 => {
                self.missing = Some(format!("event {number} came after event {last}"));
            }
            _ => self.last = sequence,
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

const LIMIT: Duration = Duration::from_secs(5);
