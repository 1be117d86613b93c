//! Clients that read a large response slowly: a few hundred bytes each second.
//!
//! A small receive buffer and small segments keep what the kernels hold between both ends below
//! 100 KiB, so that a page of some hundred KiB keeps its server occupied.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

use super::Target;
use crate::background::Background;

/// Open connections that are read slowly. Dropping it closes them.
#[derive(Debug)]
pub struct SlowReaders {
    _reading: Background,
}

impl SlowReaders {
    /// Opens `count` connections to `addr`, asks for `path` on each and begins to read.
    pub fn open(addr: SocketAddr, path: &str, count: usize) -> Result<Self> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n");
        let readers = (0..count).map(|_| open(addr, &request));
        let mut readers = readers.collect::<Result<Vec<_>>>()?;
        let reading = Background::spawn("slow-readers", move || async move {
            let mut piece = [0; PIECE_BYTES];
            loop {
                for reader in &mut readers {
                    // One that the server has closed stays: as a peer that does not care.
                    let _ = reader.read(&mut piece);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })?;
        Ok(Self { _reading: reading })
    }
}

fn open(addr: SocketAddr, request: &str) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_recv_buffer_size(4096)?;
    socket.set_tcp_mss(536)?;
    let connected = socket.connect_timeout(&addr.into(), Duration::from_secs(5));
    connected.with_context(|| format!("connecting to {addr}"))?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(request.as_bytes())?;
    // The first byte of the answer, if it comes soon: this one then occupies the server.
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    match stream.read(&mut [0; 1]) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
        Err(error) => return Err(error).context("reading the first byte"),
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Asks `path` as a kubelet's probe does, on a connection of its own and within a second, and
/// returns the status.
pub fn kubelet_probe(addr: SocketAddr, path: &str) -> Result<u16> {
    let target = Target::plain(addr)
        .timeout(Duration::from_secs(1))
        .header("User-Agent", "kube-probe/1.36")
        .header("Accept", "*/*")
        .header("Connection", "close");
    Ok(super::get(&target, path)?.status)
}

const PIECE_BYTES: usize = 512;
