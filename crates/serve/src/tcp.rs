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

/// Sets `options` on a listening socket that was set up before, by another process for example: what is off
/// gets the value that a new socket has. `SO_RCVBUF` cannot be put back. Returns whether one stays that is off in
/// `options`.
///
/// # Errors
/// As [`apply_tcp_options`].
pub(crate) fn replace_tcp_options(socket: SockRef<'_>, options: &TcpOptions) -> io::Result<bool> {
    let named = |option: &'static str| {
        move |error: io::Error| io::Error::new(error.kind(), format!("resetting {option}: {error}"))
    };
    let new = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let mut options = options.clone();
    if options.keepalive.is_zero() {
        socket.set_keepalive(false).map_err(named("SO_KEEPALIVE"))?;
    }
    if options.keepalive_interval.is_zero() {
        options.keepalive_interval = new.tcp_keepalive_interval()?;
    }
    if options.keepalive_probes == 0 {
        options.keepalive_probes = new.tcp_keepalive_retries()?;
    }
    if options.user_timeout.is_zero() {
        socket
            .set_tcp_user_timeout(None)
            .map_err(named("TCP_USER_TIMEOUT"))?;
    }
    if matches!(options.congestion.as_str(), "" | TcpOptions::AUTO) {
        socket
            .set_tcp_congestion(&new.tcp_congestion()?)
            .map_err(named("TCP_CONGESTION"))?;
    }
    if options.notsent_lowat == 0 {
        socket
            .set_tcp_notsent_lowat(0)
            .map_err(named("TCP_NOTSENT_LOWAT"))?;
    }
    let stays =
        options.receive_buffer == 0 && socket.recv_buffer_size()? != new.recv_buffer_size()?;
    apply_tcp_options(socket, &options)?;
    Ok(stays)
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn options_that_are_off_are_put_back() {
        let fresh = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let (set, new) = (fresh(), fresh());
        let mut options = TcpOptions {
            keepalive: Duration::from_secs(9),
            keepalive_interval: Duration::from_secs(8),
            keepalive_probes: 7,
            user_timeout: Duration::from_secs(6),
            congestion: "reno".to_owned(),
            notsent_lowat: 5000,
            ..TcpOptions::default()
        };
        apply_tcp_options(SockRef::from(&set), &options).unwrap();
        set.listen(1).unwrap();
        new.listen(1).unwrap();
        let of = |socket: &Socket| {
            (
                socket.keepalive().unwrap(),
                socket.tcp_keepalive_interval().unwrap(),
                socket.tcp_keepalive_retries().unwrap(),
                socket.tcp_user_timeout().unwrap(),
                socket.tcp_congestion().unwrap(),
                socket.tcp_notsent_lowat().unwrap(),
            )
        };
        assert_ne!(of(&set), of(&new));
        let off = TcpOptions {
            keepalive: Duration::ZERO,
            keepalive_interval: Duration::ZERO,
            keepalive_probes: 0,
            ..TcpOptions::default()
        };
        assert!(!replace_tcp_options(SockRef::from(&set), &off).unwrap());
        assert_eq!(of(&set).0, of(&new).0);
        let on = TcpOptions {
            keepalive: Duration::from_secs(9),
            ..off.clone()
        };
        apply_tcp_options(SockRef::from(&new), &on).unwrap();
        replace_tcp_options(SockRef::from(&set), &on).unwrap();
        assert_eq!(of(&set), of(&new));

        options.receive_buffer = 20_000;
        assert!(!replace_tcp_options(SockRef::from(&set), &options).unwrap());
        assert!(replace_tcp_options(SockRef::from(&set), &off).unwrap());
    }

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
