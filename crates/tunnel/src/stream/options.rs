//! Socket options of a stream that carries datagrams.
//!
//! The defaults differ from those of other connections in that delay counts for more than
//! throughput. What the kernel lacks stands in no tunnel's way.

use std::io;
use std::time::Duration;

use route::TcpOptions;
use socket2::{SockRef, TcpKeepalive};

/// Returns the options of a tunnel: BBR where the kernel has it, 64 KiB that wait in the kernel
/// (it advises at most 128, tcp(7)), 10 s until unacknowledged bytes end it, no keepalives.
pub(super) fn defaults() -> TcpOptions {
    TcpOptions {
        // Load balancers answer those for a peer that is gone; probes go through the tunnel.
        keepalive: Duration::ZERO,
        keepalive_interval: Duration::ZERO,
        keepalive_probes: 0,
        user_timeout: Duration::from_secs(10),
        congestion: "bbr".to_owned(),
        notsent_lowat: 64 * 1024,
        receive_buffer: 0,
        max_segment: 0,
    }
}

/// Sets the options, whatever the socket had before.
///
/// # Errors
///
/// The error of the first option that the kernel refuses, named in the error's text; a congestion
/// control it does not have, or does not let us have, is none.
pub(super) fn apply(socket: &std::net::TcpStream, options: &TcpOptions) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let named = |option: &'static str| {
        move |error: io::Error| io::Error::new(error.kind(), format!("setting {option}: {error}"))
    };
    // Writes are whole batches: more would be waited for in vain.
    socket.set_tcp_nodelay(true).map_err(named("TCP_NODELAY"))?;
    keepalive(&socket, options).map_err(named("TCP keepalive"))?;
    let timeout = Some(options.user_timeout).filter(|timeout| !timeout.is_zero());
    socket
        .set_tcp_user_timeout(timeout)
        .map_err(named("TCP_USER_TIMEOUT"))?;
    if options.notsent_lowat > 0 {
        let lowat = options.notsent_lowat;
        socket
            .set_tcp_notsent_lowat(lowat)
            .map_err(named("TCP_NOTSENT_LOWAT"))?;
    }
    if options.receive_buffer > 0 {
        let bytes = usize::try_from(options.receive_buffer).unwrap_or(usize::MAX);
        socket
            .set_recv_buffer_size(bytes)
            .map_err(named("SO_RCVBUF"))?;
    }
    let congestion = &options.congestion;
    if !congestion.is_empty()
        && let Err(error) = socket.set_tcp_congestion(congestion.as_bytes())
    {
        tracing::debug!(%congestion, %error, "the kernel's default stays");
    }
    Ok(())
}

fn keepalive(socket: &SockRef<'_>, options: &TcpOptions) -> io::Result<()> {
    if options.keepalive.is_zero() {
        return socket.set_keepalive(false);
    }
    let mut keepalive = TcpKeepalive::new().with_time(options.keepalive);
    if !options.keepalive_interval.is_zero() {
        keepalive = keepalive.with_interval(options.keepalive_interval);
    }
    if options.keepalive_probes > 0 {
        keepalive = keepalive.with_retries(options.keepalive_probes);
    }
    socket.set_tcp_keepalive(&keepalive)
}
