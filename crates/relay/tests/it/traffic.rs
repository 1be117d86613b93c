//! Two peers that send, pause, read and end as a seed says, and check what they read.
//!
//! ```text
//!     Player ─Flow─▶ (whatever is between) ─Flow─▶ Player
//! ```
//!
//! Times are the kernel's and the runtime's: the same seed does not repeat them.

use std::borrow::Cow;
use std::cell::Cell;
use std::future::pending;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::LazyLock;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Most that a small read brings.
pub(crate) const SMALL_BYTES: usize = 16 * 1024;

const URGENT: u8 = 0;

/// One direction from peer to peer.
pub(crate) struct Flow {
    offset: usize,
    sent: Cell<usize>,
    received: Cell<usize>,
    /// With the urgent bytes that the kernel did not drop.
    pub(crate) arrived: Cell<u64>,
}

impl Flow {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            offset: random.below(PERIOD),
            sent: Cell::new(0),
            received: Cell::new(0),
            arrived: Cell::new(0),
        }
    }

    pub(crate) fn assert_whole(&self, counted: u64) {
        assert_eq!(self.received.get(), self.sent.get());
        assert_eq!(self.arrived.get(), counted);
    }

    /// The bytes from `position` on, none of them the urgent one.
    fn bytes(&self, position: usize, len: usize) -> &'static [u8] {
        let start = (self.offset + position) % PERIOD;
        &BYTES[start..start + len]
    }
}

/// A prime: whole buffers, pipes and pages are no multiple of it.
const PERIOD: usize = (1 << 20) - 3;

/// Most bytes of one `Act`.
const MAX_BYTES: usize = 2 << 20;

static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random(7);
    let period: Vec<u8> = (0..PERIOD)
        .map(|_| random.below(128) as u8 | 0x80)
        .collect();
    period
        .into_iter()
        .cycle()
        .take(PERIOD + MAX_BYTES)
        .collect()
});

/// What one peer does.
#[derive(Debug)]
pub(crate) struct Plan {
    acts: Vec<Act>,
    pub(crate) end: End,
    /// Begins to read late, and slowly.
    lazy: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Send(usize),
    SendUrgent,
    /// Milliseconds.
    Pause(usize),
    /// Until the other peer has read all.
    AwaitDelivery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Shutdown,
    /// Of its own direction, once the other one has ended.
    ShutdownLast,
    Reset(When),
}

/// When a peer that has done everything resets its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    AtOnce,
    /// The other peer has read all.
    Delivered,
    /// The same, after its own end.
    Ended,
}

impl Plan {
    pub(crate) fn both(random: &mut Random) -> [Self; 2] {
        let urgent = random.one_in(4);
        let mut plans = [(); 2].map(|()| {
            let acts = (0..=random.below(8)).map(|_| match urgent && random.one_in(3) {
                true => Act::SendUrgent,
                false => Act::any(random),
            });
            Self {
                acts: acts.collect(),
                end: End::Shutdown,
                lazy: random.one_in(3),
            }
        });
        let when = match random.below(3) {
            0 => When::AtOnce,
            1 => When::Delivered,
            _ => When::Ended,
        };
        plans[random.below(2)].end = match random.below(3) {
            0 => End::Reset(when),
            1 => End::ShutdownLast,
            _ => End::Shutdown,
        };
        plans
    }
}

impl Act {
    fn any(random: &mut Random) -> Self {
        match random.below(20) {
            0..=7 => Self::Send(1 + random.below(3000)),
            8..=12 => Self::Send(SMALL_BYTES + random.below(300_000)),
            13..=14 => Self::Send(1 + random.below(MAX_BYTES)),
            15..=17 => Self::Pause(random.below(5)),
            _ => Self::AwaitDelivery,
        }
    }
}

pub(crate) type Ended = Result<(), ErrorKind>;

pub(crate) struct Player<'a> {
    stream: TcpStream,
    plan: Plan,
    out: &'a Flow,
    back: &'a Flow,
    random: Random,
    /// Nothing more arrives.
    ended: Cell<bool>,
}

impl<'a> Player<'a> {
    pub(crate) fn new(
        stream: TcpStream,
        plan: Plan,
        out: &'a Flow,
        back: &'a Flow,
        random: &mut Random,
    ) -> Self {
        Self {
            stream,
            plan,
            out,
            back,
            random: random.fork(),
            ended: Cell::new(false),
        }
    }

    /// Returns how sending and receiving ended; `None` for a peer that reset the connection.
    pub(crate) async fn play(self) -> Option<(Ended, Ended)> {
        if matches!(self.plan.end, End::Reset(_)) {
            let receive = async {
                self.receive().await.unwrap();
                pending().await
            };
            tokio::select! {
                sent = self.send() => sent.unwrap(),
                () = receive => {}
            }
            let socket = SockRef::from(&self.stream);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
            return None;
        }
        let (sent, received) = tokio::join!(self.send(), self.receive());
        Some((
            sent.map_err(|error| error.kind()),
            received.map_err(|error| error.kind()),
        ))
    }

    async fn send(&self) -> io::Result<()> {
        for act in &self.plan.acts {
            match *act {
                Act::Send(len) => self.write(len).await?,
                Act::SendUrgent => {
                    let send = || SockRef::from(&self.stream).send_out_of_band(&[URGENT]);
                    self.stream.async_io(Interest::WRITABLE, send).await?;
                }
                Act::Pause(millis) => sleep(Duration::from_millis(millis as u64)).await,
                // What has ended may reset the connection next.
                Act::AwaitDelivery => until(|| self.is_delivered() || self.ended.get()).await,
            }
        }
        match self.plan.end {
            End::Reset(When::AtOnce) => {}
            End::Reset(When::Delivered) => until(|| self.is_delivered()).await,
            End::Reset(When::Ended) => {
                self.shut_down();
                until(|| self.is_delivered()).await;
            }
            End::Shutdown => self.shut_down(),
            End::ShutdownLast => {
                until(|| self.ended.get()).await;
                self.shut_down();
            }
        }
        Ok(())
    }

    /// Fails only on a connection that was reset.
    fn shut_down(&self) {
        drop(SockRef::from(&self.stream).shutdown(Shutdown::Write));
    }

    async fn write(&self, len: usize) -> io::Result<()> {
        let end = self.out.sent.get() + len;
        while self.out.sent.get() < end {
            let sent = self.out.sent.get();
            let bytes = self.out.bytes(sent, end - sent);
            let write = || self.stream.try_write(bytes);
            self.stream.writable().await?;
            match write() {
                Ok(written) => self.out.sent.set(sent + written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_delivered(&self) -> bool {
        self.out.received.get() == self.out.sent.get()
    }

    async fn receive(&self) -> io::Result<()> {
        let received = self.read_to_end().await;
        self.ended.set(true);
        received
    }

    async fn read_to_end(&self) -> io::Result<()> {
        let mut random = self.random.clone();
        let mut buf = vec![0; 128 * 1024];
        if self.plan.lazy {
            sleep(random.millis(150)).await;
        }
        loop {
            if self.plan.lazy && random.one_in(4) {
                sleep(random.millis(8)).await;
            }
            let len = 1 + random.below(buf.len());
            self.stream.readable().await?;
            let bytes = match self.stream.try_read(&mut buf[..len]) {
                Ok(0) => return Ok(()),
                Ok(read) => &buf[..read],
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let data = match bytes.contains(&URGENT) {
                true => Cow::from_iter(bytes.iter().copied().filter(|byte| *byte != URGENT)),
                false => Cow::from(bytes),
            };
            let position = self.back.received.get();
            let is_same = *data == *self.back.bytes(position, data.len());
            assert!(is_same, "{} bytes at {position} differ", data.len());
            self.back.received.set(position + data.len());
            self.back
                .arrived
                .set(self.back.arrived.get() + bytes.len() as u64);
        }
    }
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// `splitmix64` (public domain).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub(crate) fn millis(&mut self, bound: usize) -> Duration {
        Duration::from_millis(self.below(bound) as u64)
    }

    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
