//! A bad line between two namespaces: delay, loss, reordering, a rate, holes, at the turn of a switch.
//!
//! ```text
//!     namespace a                    a thread of this process                   namespace b
//!     device ◀── TUN ──▶  Forth: Line { seed, queue } ──▶ due ──▶  TUN ──▶ device
//!                ◀── due ◀── Line { seed, queue } :Back  ◀── TUN
//! ```
//!
//! What is impaired are IP packets, so that a TCP connection across the line meets loss and delay
//! where it meets them in the field: below it. Kernels do the same with `netem`, which many do not
//! have. What is decided about a packet depends on the seed, on the packets before it and on the
//! active impairments, on nothing else.
//!
//! It does not look further into a packet than to its protocol, and what it drops vanishes, unless it
//! was told to answer what is too large.

mod line;
mod random;
mod relay;
mod too_big;

use std::io::PipeWriter;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::background::{Joined, locked};
use crate::netns::End;

use self::line::Line;
use self::relay::Relay;

/// What becomes of the packets of one direction. The default passes everything on at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    pub black_hole: BlackHole,
    pub delay: Duration,
    /// By how much the delay of a packet differs from that, at most, either way. Packets are not
    /// reordered by it.
    pub jitter: Duration,
    /// The share of packets that vanish, 0 to 1.
    pub loss: f64,
    /// The share of packets that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// The share of packets that are [`HELD_BACK`] longer on their way, so that later ones overtake
    /// them, 0 to 1.
    pub reorder: f64,
    /// Bits a second, IP headers included; without a limit if `None`.
    pub rate: Option<u64>,
    /// How many packets may wait for their turn under `rate`; without a rate, how many may be on
    /// their way. What comes above it is dropped.
    pub queue: usize,
    /// How long a packet may wait under `rate`; one that would wait longer is dropped.
    pub buffer: Duration,
    /// The largest packet that gets through, bytes; larger ones vanish.
    pub largest: Option<usize>,
    /// Whether their senders are told, by ICMP, as routers should and many do not.
    pub tells: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlackHole {
    Everything,
    #[default]
    Nothing,
    Tcp,
    /// UDP datagrams and their fragments: what a strict firewall does.
    Udp,
}

/// How much longer a reordered packet is on its way.
pub const HELD_BACK: Duration = Duration::from_millis(5);

impl Default for Impairment {
    fn default() -> Self {
        Self {
            black_hole: BlackHole::Nothing,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            rate: None,
            queue: 4096,
            buffer: Duration::MAX,
            largest: None,
            tells: false,
        }
    }
}

impl Impairment {
    /// Returns the impairment of a line that is nothing but long, and loses `loss` of its packets.
    pub fn long(delay: Duration, loss: f64) -> Self {
        Self {
            delay,
            loss,
            ..Self::default()
        }
    }

    pub fn swallowing(what: BlackHole) -> Self {
        Self {
            black_hole: what,
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first end to the second.
    Forth,
    /// From the second end to the first.
    Back,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Forth, Self::Back];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arrived at the other end, duplicates included.
    pub delivered: u64,
    /// Bytes of those, IP headers included.
    pub bytes: u64,
    /// Of those, what TCP segments had.
    pub tcp_bytes: u64,
    /// Of those, what UDP datagrams had.
    pub udp_bytes: u64,
    pub lost: u64,
    pub swallowed: u64,
    /// Larger than the line lets through.
    pub too_large: u64,
    /// Come while the queue was full.
    pub overflowed: u64,
    /// Refused by the device at the other end.
    pub refused: u64,
}

/// A line between two namespaces, with a TUN device at each end. Dropping it takes both away.
#[derive(Debug)]
pub struct Link {
    lines: Arc<Mutex<[Line; 2]>>,
    // Dropped in this order: the thread is told to end, then waited for.
    _stop: PipeWriter,
    _thread: Joined,
}

impl Link {
    /// Lays a line whose devices take packets of `mtu` bytes, without any impairment so far. The
    /// devices are up and have no addresses, not even of IPv6's own accord.
    pub fn lay(one: End<'_>, other: End<'_>, mtu: u16, seed: u64) -> Result<Self> {
        let devices = [device(one, mtu)?, device(other, mtu)?];
        let (stopped, stop) = std::io::pipe().context("making a pipe")?;
        // Two sequences that differ, whatever the seed.
        let lines = Arc::new(Mutex::new([Line::new(seed), Line::new(!seed)]));
        let relay = Relay::new(devices, Arc::clone(&lines), stopped);
        let thread = Joined::spawn("impair", move || relay.run())?;
        Ok(Self {
            lines,
            _stop: stop,
            _thread: thread,
        })
    }

    /// Impairs one direction from now on. Packets under way are not touched.
    pub fn set(&self, direction: Direction, impairment: Impairment) {
        locked(&self.lines)[direction as usize].impairment = impairment;
    }

    pub fn set_both(&self, impairment: Impairment) {
        for line in &mut *locked(&self.lines) {
            line.impairment = impairment;
        }
    }

    /// Returns what is active in one direction.
    pub fn impairment(&self, direction: Direction) -> Impairment {
        locked(&self.lines)[direction as usize].impairment
    }

    pub fn counts(&self, direction: Direction) -> Counts {
        locked(&self.lines)[direction as usize].counts()
    }
}

/// Makes the device of one end. Its segments are cut by the kernel, so that each packet that could
/// be lost is one.
fn device(end: End<'_>, mtu: u16) -> Result<SyncDevice> {
    let name = end.device;
    let make = || {
        let device = DeviceBuilder::new()
            .name(name)
            .mtu(mtu)
            .with(|builder| {
                builder.tx_queue_len(DEVICE_QUEUE);
            })
            .enable(false)
            .build_sync()?;
        device.set_nonblocking(true)?;
        std::io::Result::Ok(device)
    };
    let device = end.namespace.run(make)?;
    let device = device.with_context(|| format!("making the TUN device {name}"))?;
    // Router solicitations of the kernel's own would take their turns in the random sequence.
    let quiet = ["link", "set", "dev", name, "addrgenmode", "none"];
    end.namespace.ip(&quiet)?;
    end.namespace.ip(&["link", "set", "dev", name, "up"])?;
    Ok(device)
}

/// How many packets a device holds for us: a whole window of one connection, which is sent at once.
const DEVICE_QUEUE: u32 = 4096;

#[cfg(test)]
mod tests;
