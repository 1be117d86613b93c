//! Where the load goes behind what is measured: four listeners on a thread of their own.
//!
//! ```text
//! echo    sends back what comes
//! sink    reads a length (8 bytes, big endian) and so many bytes, then sends one byte
//! source  reads a length and sends so many bytes
//! hold    accepts and never reads
//! ```
//!
//! Each connection ends when its peer closes it, `hold`'s when they are released. The number of
//! open connections is known at any time: what is left open after a test has leaked.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use testkit::background::Background;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What a destination does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Behavior {
    Echo,
    Hold,
    Sink,
    Source,
}

/// The running listeners; dropping it stops them and closes what is open.
#[derive(Debug)]
pub(crate) struct Destination {
    addresses: BTreeMap<Behavior, SocketAddr>,
    open: Arc<AtomicUsize>,
    release: watch::Sender<u64>,
    _thread: Background,
}

impl Destination {
    /// Starts the listeners at `ip`, on ports the kernel picks.
    pub(crate) fn start(ip: IpAddr) -> Result<Self> {
        let bind = |behavior| {
            let listener = std::net::TcpListener::bind((ip, 0)).context("binding a destination")?;
            listener.set_nonblocking(true).context("a destination")?;
            let addr = listener.local_addr().context("a destination")?;
            Ok((behavior, addr, listener))
        };
        let all = [
            Behavior::Echo,
            Behavior::Hold,
            Behavior::Sink,
            Behavior::Source,
        ];
        let bound: Vec<_> = all.into_iter().map(bind).collect::<Result<_>>()?;
        let addresses = bound.iter().map(|(behavior, addr, _)| (*behavior, *addr));
        let addresses = addresses.collect();
        let open = Arc::new(AtomicUsize::new(0));
        let (release, released) = watch::channel(0);
        let counter = Arc::clone(&open);
        let thread = Background::spawn("destination", move || async move {
            for (behavior, _, listener) in bound {
                let accepting = accept(listener, behavior, Arc::clone(&counter), released.clone());
                tokio::spawn(accepting);
            }
            std::future::pending().await
        })?;
        Ok(Self {
            addresses,
            open,
            release,
            _thread: thread,
        })
    }

    /// Returns the address at which connections are treated like that.
    pub(crate) fn address(&self, behavior: Behavior) -> SocketAddr {
        self.addresses[&behavior]
    }

    /// Returns how many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Closes the connections that are held.
    pub(crate) fn release(&self) {
        self.release.send_modify(|generation| *generation += 1);
    }
}

async fn accept(
    listener: std::net::TcpListener,
    behavior: Behavior,
    open: Arc<AtomicUsize>,
    released: watch::Receiver<u64>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: let some be closed first.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            continue;
        };
        let count = Counted::new(&open);
        let released = released.clone();
        tokio::spawn(async move {
            let _count = count;
            // How the peer ends a connection is its own affair.
            let _ = serve(stream, behavior, released).await;
        });
    }
}

async fn serve(
    mut stream: TcpStream,
    behavior: Behavior,
    mut released: watch::Receiver<u64>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    match behavior {
        Behavior::Echo => echo(stream).await,
        Behavior::Hold => {
            released.borrow_and_update();
            let _ = released.changed().await;
            Ok(())
        }
        Behavior::Sink => {
            let length = stream.read_u64().await?;
            let mut buf = vec![0; CHUNK];
            let mut left = length;
            while left > 0 {
                match stream.read(&mut buf).await? {
                    0 => return Ok(()),
                    read => left = left.saturating_sub(read as u64),
                }
            }
            stream.write_all(&[1]).await?;
            until_closed(stream).await
        }
        Behavior::Source => {
            let length = stream.read_u64().await?;
            let chunk = vec![0x5a; CHUNK];
            let mut left = length;
            while left > 0 {
                let len = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
                stream.write_all(&chunk[..len]).await?;
                left -= len as u64;
            }
            until_closed(stream).await
        }
    }
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    // Small: thousands of connections may be open.
    let mut buf = [0; 1024];
    loop {
        match stream.read(&mut buf).await? {
            0 => return Ok(()),
            read => stream.write_all(&buf[..read]).await?,
        }
    }
}

async fn until_closed(mut stream: TcpStream) -> std::io::Result<()> {
    while stream.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}

/// Counts one open connection for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Larger than what a socket of loopback takes at once, so that system calls do not count.
const CHUNK: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use testkit::wait;

    use super::*;

    fn start() -> Destination {
        Destination::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()
    }

    #[tokio::test]
    async fn source_and_sink_move_bytes_asked_for() {
        let destination = start();
        let mut source = TcpStream::connect(destination.address(Behavior::Source))
            .await
            .unwrap();
        source.write_u64(300_000).await.unwrap();
        let mut got = vec![0; 300_000];
        source.read_exact(&mut got).await.unwrap();
        let mut sink = TcpStream::connect(destination.address(Behavior::Sink))
            .await
            .unwrap();
        sink.write_u64(300_000).await.unwrap();
        sink.write_all(&got).await.unwrap();
        assert_eq!(sink.read_u8().await.unwrap(), 1);
        assert_eq!(destination.open(), 2);
        drop((source, sink));
        wait::until("both to be closed", Duration::from_secs(20), || {
            destination.open() == 0
        })
        .unwrap();
    }

    #[tokio::test]
    async fn held_connection_ends_on_release() {
        let destination = start();
        let mut held = TcpStream::connect(destination.address(Behavior::Hold))
            .await
            .unwrap();
        wait::until("it to be open", Duration::from_secs(20), || {
            destination.open() == 1
        })
        .unwrap();
        // Accepted and counted is not yet waiting: release until it is seen.
        wait::until("it to be closed", Duration::from_secs(20), || {
            destination.release();
            destination.open() == 0
        })
        .unwrap();
        assert_eq!(held.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
