//! HAProxy on either side of us: it sends PROXY headers, or takes ours and says what they told.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use testkit::certs::Identity;
use testkit::command;
use testkit::process::ChildGuard;

use crate::ours::LIMIT;

/// One port of HAProxy, and where its connections go.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    listen: SocketAddr,
    server: SocketAddr,
    bind: String,
    options: String,
}

impl Hop {
    /// A hop whose line for the server ends with `options`, such as `send-proxy`.
    pub(crate) fn new(listen: SocketAddr, server: SocketAddr, options: &str) -> Self {
        Self {
            listen,
            server,
            bind: String::new(),
            options: options.to_owned(),
        }
    }

    /// The same, ending the clients' TLS.
    pub(crate) fn ending_tls(mut self, dir: &Path, identity: &Identity) -> Self {
        self.bind = format!("ssl crt {}", certificate(dir, self.listen, identity));
        self
    }

    fn sections(&self, index: usize) -> String {
        let Self {
            listen,
            server,
            bind,
            options,
        } = self;
        format!(
            "frontend in{index}\n  mode tcp\n  bind {listen} {bind}\n  \
             unique-id-format %ci:%cp-%rt\n  default_backend out{index}\n\
             backend out{index}\n  mode tcp\n  server gateway {server} {options}\n"
        )
    }
}

/// Starts one HAProxy with `hops`.
pub(crate) fn sender(dir: &Path, hops: &[Hop]) -> ChildGuard {
    let numbered = hops.iter().enumerate();
    let sections: String = numbered.map(|(index, hop)| hop.sections(index)).collect();
    let mut child = start(dir, hops[0].listen, &sections);
    for hop in hops {
        child.wait_listening(hop.listen, LIMIT).unwrap();
    }
    child
}

/// Starts an HAProxy that answers HTTPS behind a PROXY header with the four words of
/// [`crate::who`], as the header told them.
pub(crate) fn receiver(dir: &Path, listen: SocketAddr, identity: &Identity) -> ChildGuard {
    let certificate = certificate(dir, listen, identity);
    let sections = format!(
        "frontend in\n  mode http\n  bind {listen} accept-proxy ssl crt {certificate}\n  \
         http-request return status 200 content-type text/plain \
         lf-string \"%[src] %[src_port] %[dst] %[dst_port]\"\n"
    );
    start(dir, listen, &sections)
}

fn certificate(dir: &Path, listen: SocketAddr, identity: &Identity) -> String {
    let path = dir.join(format!("haproxy-{}-{}.pem", listen.ip(), listen.port()));
    let both = format!("{}{}", identity.cert_pem, identity.key_pem);
    fs::write(&path, both).unwrap();
    path.display().to_string()
}

fn start(dir: &Path, listen: SocketAddr, sections: &str) -> ChildGuard {
    let haproxy = command::require("haproxy").unwrap_or_else(|error| panic!("{error:#}"));
    let path = dir.join(format!("haproxy-{}-{}.cfg", listen.ip(), listen.port()));
    let config = format!(
        "global\n  maxconn 1000\n\
         defaults\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n{sections}"
    );
    fs::write(&path, config).unwrap();
    let mut command = Command::new(haproxy);
    command.arg("-db").arg("-f").arg(&path);
    let mut child = ChildGuard::spawn("haproxy", &command, &path.with_extension("log")).unwrap();
    child.wait_listening(listen, LIMIT).unwrap();
    child
}
