//! HAProxy as a sender of PROXY headers.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command;
use crate::netns::Place;
use crate::process::ChildGuard;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProxy {
    /// `send-proxy`.
    V1,
    /// `send-proxy-v2`.
    V2,
    /// `send-proxy-v2 proxy-v2-options crc32c`: with a checksum in a TLV.
    V2Crc32c,
}

/// Starts HAProxy, which takes TCP connections on `listen` and passes them to `server` behind a
/// header with the client's address and the one it connected to.
pub fn start(
    place: Place<'_>,
    dir: &Path,
    listen: SocketAddr,
    server: SocketAddr,
    send: SendProxy,
) -> Result<ChildGuard> {
    let haproxy = command::require("haproxy")?;
    let option = match send {
        SendProxy::V1 => "send-proxy",
        SendProxy::V2 => "send-proxy-v2",
        SendProxy::V2Crc32c => "send-proxy-v2 proxy-v2-options crc32c",
    };
    let config = format!(
        "global\n  maxconn 1000\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
         frontend in\n  bind {listen}\n  default_backend out\n\
         backend out\n  server gateway {server} {option}\n"
    );
    let path = dir.join(format!("haproxy-{}.cfg", listen.port()));
    std::fs::write(&path, config).with_context(|| format!("writing {}", path.display()))?;
    let mut command = place.command(haproxy);
    command.arg("-db").arg("-f").arg(&path);
    let mut child = ChildGuard::spawn("haproxy", &command, &path.with_extension("log"))?;
    child.wait_listening(listen, Duration::from_secs(20))?;
    Ok(child)
}
