//! A loop that copies and does nothing else: what whatever copies costs on this machine at least.
//!
//! ```text
//! accept ─▶ connect ─▶ readable: recv of 1 MiB ─▶ send; what is not taken waits, and reading with it
//! ```
//!
//! Started as a target like any proxy (`profiles/copy-loop.yaml`), it says how much of a figure is the
//! machine's. It looks at no byte, times nothing out and bounds nothing: never use it as a proxy.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::ready;

use anyhow::{Context, Result};
use clap::Args;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Copies what comes to one address to another one and back, on one thread, until it is ended.
#[derive(Debug, Args)]
pub(crate) struct CopyLoop {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// Where to connect to.
    #[arg(long)]
    to: SocketAddr,
}

/// One for all connections, so that it stays in the processor's caches.
type Scratch = Arc<Mutex<Vec<u8>>>;

pub(crate) fn run(asked: &CopyLoop) -> Result<ExitCode> {
    let scratch = Arc::new(Mutex::new(vec![0; SCRATCH]));
    crate::tls::runtime()?.block_on(async {
        let listener = TcpListener::bind(asked.listen).await;
        let listener = listener.with_context(|| format!("listening at {}", asked.listen))?;
        loop {
            // A connection that cannot be served is closed, and missed by the load.
            let (client, _) = listener.accept().await.context("accepting")?;
            tokio::spawn(serve(client, asked.to, Arc::clone(&scratch)));
        }
    })
}

async fn serve(mut client: TcpStream, to: SocketAddr, scratch: Scratch) -> io::Result<()> {
    let mut server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    tokio::select! {
        ended = copy(from_client, to_server, &scratch) => ended,
        ended = copy(from_server, to_client, &scratch) => ended,
    }
}

async fn copy(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, scratch: &Scratch) -> io::Result<()> {
    loop {
        let rest = poll_fn(|cx| {
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            let mut read = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut from).poll_read(cx, &mut read))?;
            let read = read.filled();
            let sent = match to.try_write(read) {
                _ if read.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()).into(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                sent => sent?,
            };
            io::Result::Ok(read[sent..].to_vec()).into()
        });
        let rest = rest.await?;
        to.write_all(&rest).await?;
    }
}

/// Bytes of one read, as many as the gateway copies at once: 16 KiB cost twice as much.
const SCRATCH: usize = 1024 * 1024;
