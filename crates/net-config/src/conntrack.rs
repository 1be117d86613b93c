//! Whether connections of this network namespace are tracked.
//!
//! The facts: without the module there is no `nf_conntrack_count`. With it, tracking starts in a
//! namespace only when a rule there requires it (a match on connection state, NAT); until then the
//! count stays 0. A count above 0 proves tracking; at 0 one datagram sent to ourselves over the
//! loopback device settles it, as a tracked one is counted before it is delivered and stays for
//! the 30 s of `nf_conntrack_udp_timeout`.
//!
//! The kernel's own list of hooks (`nft list hooks`) would tell too, but many kernels are built
//! without it.

use std::{
    fs, io,
    net::{Ipv4Addr, UdpSocket},
};

/// Tracked connections of the reading task's network namespace.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Returns whether connection tracking is active in this network namespace, now.
///
/// The answer changes when a firewall comes or goes: ask again from time to time. Does not block
/// and needs no privilege.
///
/// # Errors
/// When the count is there but cannot be read, or is not a number.
pub fn conntrack_active() -> io::Result<bool> {
    let Some(count) = tracked()? else {
        return Ok(false);
    };
    if count > 0 {
        return Ok(true);
    }
    // Loopback down or a firewall that drops it: nothing of ours is tracked there either.
    if send_to_self().is_err() {
        return Ok(false);
    }
    Ok(tracked()?.is_some_and(|count| count > 0))
}

fn tracked() -> io::Result<Option<u64>> {
    match fs::read_to_string(COUNT) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn send_to_self() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(&[0], socket.local_addr()?)?;
    Ok(())
}
