//! The thread between two devices: reads packets, gives them to a [`Line`], writes what is due.
//!
//! One thread does both directions, so nothing here is reordered that the lines do not reorder. It
//! sleeps until a packet comes or one is due (to some 0.1 ms), and reads at most [`BATCH`] packets
//! of a device before it looks at what is due.

use std::io::PipeReader;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::SyncDevice;

use super::line::Line;
use super::too_big;
use crate::background::locked;
use crate::wait::Stopwatch;

pub(super) struct Relay {
    devices: [SyncDevice; 2],
    lines: Arc<Mutex<[Line; 2]>>,
    /// Ends when the thread is to stop.
    stopped: PipeReader,
    clock: Stopwatch,
    buffer: Vec<u8>,
}

impl Relay {
    pub(super) fn new(
        devices: [SyncDevice; 2],
        lines: Arc<Mutex<[Line; 2]>>,
        stopped: PipeReader,
    ) -> Self {
        Self {
            devices,
            lines,
            stopped,
            clock: Stopwatch::start(),
            buffer: vec![0; LARGEST],
        }
    }

    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.lines);
        let mut ready = [true; 2];
        loop {
            let mut lines = locked(&shared);
            for (from, ready) in ready.into_iter().enumerate() {
                if ready {
                    self.read(from, &mut lines[from]);
                }
            }
            self.write(&mut lines);
            let due = lines.iter().filter_map(Line::due).min();
            drop(lines);
            let Some(readable) = self.sleep(due) else {
                return;
            };
            ready = readable;
        }
    }

    fn read(&mut self, from: usize, line: &mut Line) {
        let now = self.clock.elapsed();
        for _ in 0..BATCH {
            // A device that is down says EIO, and has nothing to say.
            let Ok(length) = self.devices[from].recv(&mut self.buffer) else {
                return;
            };
            let (packet, how) = (&self.buffer[..length], line.impairment);
            line.offer(now, packet);
            if let Some(largest) = how.largest.filter(|largest| how.tells && length > *largest)
                && let Some(answer) = too_big::answer(packet, largest)
            {
                // An answer that the device does not take is lost, as on any way.
                let _ = self.devices[from].send(&answer);
            }
        }
    }

    fn write(&self, lines: &mut [Line; 2]) {
        let now = self.clock.elapsed();
        for (line, device) in lines.iter_mut().zip(self.devices.iter().rev()) {
            while let Some(packet) = line.take(now) {
                let accepted = device.send(&packet).is_ok();
                line.arrived(packet, accepted);
            }
        }
    }

    /// Sleeps until there is something to do, and tells which devices can be read; nothing when the
    /// thread is to stop.
    fn sleep(&self, due: Option<Duration>) -> Option<[bool; 2]> {
        let timeout = due.map(|due| {
            let left = due.saturating_sub(self.clock.elapsed());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        let [one, other] = &self.devices;
        let mut polled = [one.as_fd(), other.as_fd(), self.stopped.as_fd()]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        // Interrupted is awake.
        let _ = poll(&mut polled, timeout.as_ref());
        let [one, other, stopped] = polled.map(|own| own.revents());
        let readable = [one, other].map(|events| events.contains(PollFlags::IN));
        stopped.is_empty().then_some(readable)
    }
}

/// Packets read of one device at a time: some 0.2 ms of work.
const BATCH: usize = 64;

const LARGEST: usize = 65_535;
