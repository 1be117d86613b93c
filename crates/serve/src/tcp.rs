//! TCP options of listeners and dialed sockets.
//!
//! Only translates plain parameters into socket options; which values apply is configuration.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use route::TcpOptions;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Whether this host has BBR and permits it. Asked once: a kernel without it looks for a module.
static HAS_BBR: OnceLock<bool> = OnceLock::new();

/// Does not take every lost packet for congestion, which on long paths is what decides.
const BBR: &[u8] = b"bbr";

/// Sets `options` on a TCP socket; accepted sockets inherit what their listener has.
///
/// `TCP_NODELAY` is always set: a relay writes whole reads and must not wait for more.
///
/// # Errors
/// The kernel's error for the first option it refuses, named in the error's text.
pub fn apply_tcp_options(socket: SockRef<'_>, options: &TcpOptions) -> io::Result<()> {
    let named = |option: &'static str| {
        move |error: io::Error| io::Error::new(error.kind(), format!("setting {option}: {error}"))
    };
    socket.set_tcp_nodelay(true).map_err(named("TCP_NODELAY"))?;
    if !options.keepalive.is_zero() {
        let mut keepalive = TcpKeepalive::new().with_time(options.keepalive);
        if !options.keepalive_interval.is_zero() {
            keepalive = keepalive.with_interval(options.keepalive_interval);
        }
        if options.keepalive_probes > 0 {
            keepalive = keepalive.with_retries(options.keepalive_probes);
        }
        socket
            .set_tcp_keepalive(&keepalive)
            .map_err(named("TCP keepalive"))?;
    }
    if !options.user_timeout.is_zero() {
        let timeout = Some(options.user_timeout);
        socket
            .set_tcp_user_timeout(timeout)
            .map_err(named("TCP_USER_TIMEOUT"))?;
    }
    let has_bbr = || {
        let has_bbr = socket.set_tcp_congestion(BBR).is_ok();
        tracing::info!(has_bbr, "congestion control `auto`");
        has_bbr
    };
    let congestion = match options.congestion.as_str() {
        TcpOptions::AUTO if *HAS_BBR.get_or_init(has_bbr) => BBR,
        TcpOptions::AUTO => &[],
        named => named.as_bytes(),
    };
    if !congestion.is_empty() {
        socket
            .set_tcp_congestion(congestion)
            .map_err(named("TCP_CONGESTION"))?;
    }
    if options.max_segment > 0 {
        // Refused once connected, where it would change nothing.
        socket.set_tcp_mss(options.max_segment)?;
    }
    if options.notsent_lowat > 0 {
        let lowat = options.notsent_lowat;
        socket
            .set_tcp_notsent_lowat(lowat)
            .map_err(named("TCP_NOTSENT_LOWAT"))?;
    }
    if options.receive_buffer > 0 {
        // Before connecting or listening, since the window's scale is fixed by the first segment.
        let bytes = usize::try_from(options.receive_buffer).unwrap_or(usize::MAX);
        socket
            .set_recv_buffer_size(bytes)
            .map_err(named("SO_RCVBUF"))?;
    }
    Ok(())
}

/// Checks that this host accepts `options`, by setting them on a socket that is dropped. If no socket
/// can be opened, for want of descriptors say, the options count as accepted.
///
/// # Errors
/// The first option that is refused, named in the error's text.
pub fn try_tcp_options(options: &TcpOptions) -> io::Result<()> {
    let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)) else {
        return Ok(());
    };
    apply_tcp_options(SockRef::from(&socket), options)
}

/// Returns `addr` with an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2) as the IPv4 address it
/// stands for, which is how dual-stack listeners report IPv4 peers.
pub fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_bbr_where_the_kernel_has_it() {
        let fresh = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let (named, auto, plain) = (fresh(), fresh(), fresh());
        let expected = match named.set_tcp_congestion(b"bbr") {
            Ok(()) => &named,
            Err(_) => &plain,
        };
        let options = TcpOptions {
            congestion: TcpOptions::AUTO.to_owned(),
            ..TcpOptions::default()
        };
        apply_tcp_options(SockRef::from(&auto), &options).unwrap();
        let of = |socket: &Socket| socket.tcp_congestion().unwrap();
        assert_eq!(of(&auto), of(expected));
    }
}
