//! What real TLS connections end at: a server that answers each request with a kilobyte.
//!
//! ```text
//! client ══ TLS ══ proxy ══ TLS ══ rustls ──▶ request │ response, over and over
//! ```

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use rustls::{ClientConfig, ServerConfig};
use testkit::certs::{self, Authority};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Secure {
    address: SocketAddr,
    client: Arc<ClientConfig>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Secure {
    /// Listens on `address`, with a certificate for `name`, and starts a thread.
    ///
    /// # Errors
    /// When one of them is not to be had.
    pub(crate) fn start(address: SocketAddr, name: &str) -> Result<Self> {
        let authority = Authority::new("rhizome-bench")?;
        let identity = authority.server(&[name])?;
        let server = certs::server_config(&identity)?;
        // Every handshake is a whole one.
        let mut client = (*certs::client_config(authority.pem())?).clone();
        client.resumption = rustls::client::Resumption::disabled();
        let listener = super::backend::listen(address)?;
        let address = listener.local_addr().context("a server's address")?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let thread = thread::Builder::new()
            .name("tls server".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        () = accept(listener, server) => {}
                        _ = stopped => {}
                    }
                });
            })
            .context("starting the server's thread")?;
        Ok(Self {
            address,
            client: Arc::new(client),
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the settings of clients that trust it and resume no session.
    pub(crate) fn client(&self) -> &Arc<ClientConfig> {
        &self.client
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, config: Arc<ServerConfig>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let acceptor = TlsAcceptor::from(config);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: let some be closed first.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            continue;
        };
        let acceptor = acceptor.clone();
        // How a client ends a connection is its own affair.
        tokio::spawn(async move { drop(serve(&acceptor, stream).await) });
    }
}

async fn serve(acceptor: &TlsAcceptor, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let response = response();
    let mut bytes = [0; 4096];
    let mut last = [0; 4];
    loop {
        let count = stream.read(&mut bytes).await?;
        let Some(some) = bytes.get(..count).filter(|some| !some.is_empty()) else {
            return Ok(());
        };
        for byte in some {
            last.rotate_left(1);
            last[3] = *byte;
            if last == *b"\r\n\r\n" {
                stream.write_all(&response).await?;
            }
        }
        stream.flush().await?;
    }
}

/// Returns a request, as small ones to an API server are.
pub(crate) fn request(host: &str) -> Vec<u8> {
    format!(
        "GET /api/v1/namespaces/default HTTP/1.1\r\nHost: {host}\r\nUser-Agent: rhizome-bench\r\n\
         Accept: application/json\r\n\r\n"
    )
    .into_bytes()
}

/// Returns what each request is answered with.
pub(crate) fn response() -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n"
    );
    [head.as_bytes(), &[b' '; BODY]].concat()
}

const BODY: usize = 1024;
