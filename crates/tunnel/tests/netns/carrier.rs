//! Carries packets between two devices on a thread of its own: what an engine does, without the
//! tunnel between.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use tunnel::device::{Batch, Device, Port, READ_BUFFER, Written};
use tunnel_proto::ip::segment::Segments;

/// The thread.
pub(crate) struct Carrier {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Carried>,
}

/// What it has carried toward the second device.
pub(crate) struct Carried {
    pub(crate) reads: u64,
    pub(crate) written: Written,
}

impl Carrier {
    pub(crate) fn start(one: Device, other: Device, joins: bool) -> Self {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(carry(one, other, joins, stopped))
        });
        Self { stop, thread }
    }

    pub(crate) fn stop(self) -> Carried {
        let _ = self.stop.send(());
        self.thread.join().unwrap()
    }
}

/// One direction.
struct Way {
    buffer: Vec<u8>,
    batch: Batch,
    reads: u64,
}

impl Way {
    fn new(to: &Port, joins: bool) -> Self {
        let mut abilities = to.abilities();
        abilities.join_tcp &= joins;
        abilities.join_udp &= joins;
        Self {
            buffer: vec![0; READ_BUFFER],
            batch: Batch::new(abilities),
            reads: 0,
        }
    }

    /// Carries what there is; waits for more.
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut Port, to: &Port) -> Poll<()> {
        loop {
            while let Some(packet) = from.read(&mut self.buffer).unwrap() {
                self.reads += 1;
                let mut segments = Segments::new(&packet.vnet, packet.bytes).unwrap();
                while let Some(packet) = segments.next() {
                    if self.batch.slot(packet.len()).is_none() {
                        self.batch.flush(to);
                    }
                    let buf = self.batch.slot(packet.len()).unwrap();
                    buf.copy_from_slice(packet);
                    self.batch.commit(packet.len());
                }
            }
            self.batch.flush(to);
            if from.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

async fn carry(one: Device, other: Device, joins: bool, stopped: oneshot::Receiver<()>) -> Carried {
    let (mut one, mut other) = (Port::new(one).unwrap(), Port::new(other).unwrap());
    let (mut there, mut back) = (Way::new(&other, joins), Way::new(&one, joins));
    let forever = poll_fn(|cx| {
        let there = there.poll(cx, &mut one, &other);
        let back = back.poll(cx, &mut other, &one);
        if there.is_ready() || back.is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    });
    tokio::select! {
        () = forever => {}
        _ = stopped => {}
    }
    Carried {
        reads: there.reads,
        written: there.batch.take_written(),
    }
}
