//! nginx as the server behind the gateway: HTTPS with HTTP/1.1 and HTTP/2, files down and up.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::certs::{Authority, Identity};
use testkit::command;
use testkit::process::ChildGuard;

use crate::gateway::NAME;
use crate::ours::LIMIT;
use crate::programs::free;

/// What the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTTPS.
    Tls,
    /// HTTPS behind a PROXY header.
    TlsBehindHeader,
    /// HTTP without TLS.
    Plain,
}

/// A running nginx.
///
/// | path | answer |
/// |---|---|
/// | `/who` | the four words of [`crate::who`], as the PROXY header told them |
/// | `/slow/FILE` | the file, 4 MB a second |
/// | `/FILE` | the file; `PUT` stores one |
pub(crate) struct Web {
    pub(crate) child: ChildGuard,
    pub(crate) addr: SocketAddr,
    /// Where the authority's certificate is.
    pub(crate) authority: PathBuf,
    root: PathBuf,
}

impl Web {
    /// Starts nginx at a free port of `127.0.0.1`, with a certificate for [`NAME`].
    pub(crate) fn start(dir: &Path, kind: Kind) -> Self {
        let authority = Authority::new("web").unwrap();
        let identity = authority.server(&[NAME, "127.0.0.1"]).unwrap();
        let path = authority.write(&dir.join("web-ca.crt")).unwrap();
        let addr = free("127.0.0.1");
        let child = start(dir, addr, kind, &identity);
        let root = dir.join("www");
        Self {
            child,
            addr,
            authority: path,
            root,
        }
    }

    /// Makes a file of random bytes that is served as `/NAME`.
    pub(crate) fn random_file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.file(name);
        let mut random = File::open("/dev/urandom").unwrap().take(bytes);
        io::copy(&mut random, &mut File::create(&path).unwrap()).unwrap();
        path
    }

    /// Returns where `/NAME` is kept.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

/// Starts nginx at `listen` with files in `dir`.
pub(crate) fn start(dir: &Path, listen: SocketAddr, kind: Kind, identity: &Identity) -> ChildGuard {
    let name = format!("web-{}", listen.port());
    let files = identity.write(dir, &name).unwrap();
    fs::create_dir_all(dir.join("www")).unwrap();
    let options = match kind {
        Kind::Tls => "ssl http2",
        Kind::TlsBehindHeader => "ssl http2 proxy_protocol",
        Kind::Plain => "",
    };
    let certificate = match kind {
        Kind::Plain => String::new(),
        Kind::Tls | Kind::TlsBehindHeader => format!(
            "ssl_certificate {}; ssl_certificate_key {};\n    ssl_protocols TLSv1.2 TLSv1.3;\n    \
             ssl_session_cache shared:sessions:1m; ssl_session_tickets on;",
            files.cert.display(),
            files.key.display()
        ),
    };
    let here = dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("  {what}_temp_path {here}/{name}-{what};\n"))
        .concat();
    let config = format!(
        "daemon off;\nmaster_process off;\npid {here}/{name}.pid;\nerror_log stderr notice;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n{temporary}  server {{\n    listen {listen} {options};\n    \
         {certificate}\n    root {here}/www;\n    client_max_body_size 0;\n    sendfile on;\n    \
         location / {{ dav_methods PUT; }}\n    \
         location /slow/ {{ alias {here}/www/; limit_rate 4m; }}\n    \
         location = /who {{\n      default_type text/plain;\n      return 200 \
         \"$proxy_protocol_addr $proxy_protocol_port \
         $proxy_protocol_server_addr $proxy_protocol_server_port\";\n    }}\n  }}\n}}\n"
    );
    let path = dir.join(format!("{name}.conf"));
    fs::write(&path, config).unwrap();
    let mut command = Command::new(command::require("nginx").unwrap());
    command
        .args(["-e", "stderr", "-p"])
        .arg(dir)
        .arg("-c")
        .arg(&path);
    let mut child = ChildGuard::spawn(&name, &command, &path.with_extension("log")).unwrap();
    child.wait_listening(listen, LIMIT).unwrap();
    child
}
