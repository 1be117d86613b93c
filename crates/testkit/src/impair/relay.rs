//! The thread between two devices: reads packets, gives them to a [`Line`], writes what is due.
//!
//! One thread does both directions, so nothing here is reordered that the lines do not reorder. It
//! sleeps until a packet comes or one is due (to some 0.1 ms), and reads at most [`BATCH`] packets
//! of a device before it looks at what is due.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tun_rs::SyncDevice;

use super::line::Line;
use super::{Counts, Direction, Impairment, too_big};
use crate::wait::Stopwatch;

/// What the thread shares with the value that stands for it.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: AtomicBool,
    stopped: AtomicBool,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    impairments: [Impairment; 2],
    counts: [Counts; 2],
}

impl Shared {
    pub(super) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            state: Mutex::default(),
            changed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            wake: eventfd(0, flags).context("making an eventfd")?,
        })
    }

    pub(super) fn set(&self, directions: &[Direction], impairment: Impairment) {
        let mut state = self.lock();
        for direction in directions {
            state.impairments[index(*direction)] = impairment;
        }
        drop(state);
        self.changed.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn impairment(&self, direction: Direction) -> Impairment {
        self.lock().impairments[index(direction)]
    }

    pub(super) fn counts(&self, direction: Direction) -> Counts {
        self.lock().counts[index(direction)]
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's own.
pub(super) struct Relay {
    devices: [SyncDevice; 2],
    lines: [Line; 2],
    impairments: [Impairment; 2],
    shared: Arc<Shared>,
    clock: Stopwatch,
    buffer: Vec<u8>,
}

impl Relay {
    pub(super) fn new(devices: [SyncDevice; 2], shared: Arc<Shared>, seed: u64) -> Self {
        let impairments = shared.lock().impairments;
        Self {
            devices,
            // Two sequences that differ, whatever the seed.
            lines: [Line::new(seed), Line::new(!seed)],
            impairments,
            shared,
            clock: Stopwatch::start(),
            buffer: vec![0; LARGEST],
        }
    }

    /// Relays until it is told to stop.
    pub(super) fn run(mut self) {
        let mut ready = [true; 2];
        while !self.shared.stopped.load(Ordering::Acquire) {
            if self.shared.changed.swap(false, Ordering::AcqRel) {
                self.impairments = self.shared.lock().impairments;
            }
            for (from, ready) in ready.iter().enumerate() {
                if *ready {
                    self.read(from);
                }
            }
            self.write();
            ready = self.sleep();
        }
    }

    /// Reads what has come from one device.
    fn read(&mut self, from: usize) {
        let now = self.clock.elapsed();
        for _ in 0..BATCH {
            // A device that is down says EIO, and has nothing to say.
            let Ok(length) = self.devices[from].recv(&mut self.buffer) else {
                return;
            };
            let (packet, how) = (&self.buffer[..length], &self.impairments[from]);
            self.lines[from].offer(now, packet, how);
            if let Some(largest) = how.largest.filter(|largest| how.tells && length > *largest)
                && let Some(answer) = too_big::answer(packet, largest)
            {
                // An answer that the device does not take is lost, as on any way.
                let _ = self.devices[from].send(&answer);
            }
        }
    }

    /// Writes what is due to the other device.
    fn write(&mut self) {
        let now = self.clock.elapsed();
        for (line, device) in self.lines.iter_mut().zip(self.devices.iter().rev()) {
            while let Some(packet) = line.take(now) {
                let accepted = device.send(&packet).is_ok();
                line.arrived(packet, accepted);
            }
        }
        self.shared.lock().counts = [self.lines[0].counts(), self.lines[1].counts()];
    }

    /// Sleeps until there is something to do, and tells which devices can be read.
    fn sleep(&self) -> [bool; 2] {
        let due = self.lines.iter().filter_map(Line::due).min();
        let timeout = due.map(|due| {
            let left = due.saturating_sub(self.clock.elapsed());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        let [one, other] = &self.devices;
        let mut polled = [one.as_fd(), other.as_fd(), self.shared.wake.as_fd()]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        // Interrupted is awake.
        let _ = poll(&mut polled, timeout.as_ref());
        if !polled[2].revents().is_empty() {
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
        [
            polled[0].revents().contains(PollFlags::IN),
            polled[1].revents().contains(PollFlags::IN),
        ]
    }
}

fn index(direction: Direction) -> usize {
    match direction {
        Direction::Forth => 0,
        Direction::Back => 1,
    }
}

/// Packets read of one device at a time: some 0.2 ms of work.
const BATCH: usize = 64;

/// The largest IP packet.
const LARGEST: usize = 65_535;
