//! nginx with its stream module, as a sender of PROXY headers (version 1 is what it knows).

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command;
use crate::netns::Place;
use crate::process::ChildGuard;

/// Starts nginx, which takes TCP connections on `listen` and passes them to `server` behind a
/// header with the client's address and the one it connected to.
pub fn start(
    place: Place<'_>,
    dir: &Path,
    listen: SocketAddr,
    server: SocketAddr,
) -> Result<ChildGuard> {
    let nginx = command::require("nginx")?;
    let there = Path::new(STREAM_MODULE).exists();
    let module = there.then(|| format!("load_module {STREAM_MODULE};\n"));
    let module = module.unwrap_or_default();
    let pid = dir.join(format!("nginx-{}.pid", listen.port()));
    let config = format!(
        "{module}daemon off;\nmaster_process off;\npid {};\nerror_log stderr notice;\n\
         events {{ worker_connections 1024; }}\n\
         stream {{\n  server {{\n    listen {listen};\n    proxy_pass {server};\n    \
         proxy_protocol on;\n    proxy_timeout 1h;\n  }}\n}}\n",
        pid.display()
    );
    let path = dir.join(format!("nginx-{}.conf", listen.port()));
    std::fs::write(&path, config).with_context(|| format!("writing {}", path.display()))?;
    let mut command = place.command(nginx);
    command.args(["-e", "stderr", "-p"]).arg(dir);
    command.arg("-c").arg(&path);
    let mut child = ChildGuard::spawn("nginx", &command, &path.with_extension("log"))?;
    child.wait_listening(listen, Duration::from_secs(20))?;
    Ok(child)
}

/// Where Debian's `libnginx-mod-stream` puts the module.
pub(super) const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
