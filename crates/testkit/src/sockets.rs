//! What the kernel says of open TCP sockets, by `ss`. Opens none.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;

use crate::command;

/// Returns what `ss` tells of the established connections toward `addr`: memory, timers, options.
pub fn toward(addr: SocketAddr) -> Result<String> {
    let mut ss = Command::new("ss");
    ss.args(["-tmonH", "state", "established", "dst", &addr.to_string()]);
    command::run(&mut ss)
}

/// Tells whether a connection toward `addr` sends keepalive probes.
pub fn keeps_alive(addr: SocketAddr) -> Result<bool> {
    Ok(toward(addr)?.contains("timer:(keepalive,"))
}
