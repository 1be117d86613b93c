//! One authority and what it vouches for, in files.

use std::path::PathBuf;

use testkit::certs::{Authority, Identity, IdentityFiles};
use testkit::konnectivity::AgentTarget;
use testkit::tempdir::TempDir;

/// The Service in front of servers, whose name every API server asks for
/// (`https://konnectivity-server:8090` in its egress selector).
pub(crate) const SERVICE: &str = "konnectivity-server";

/// An authority, a server's certificate and clients' ones, and the directory they are in.
#[derive(Debug)]
pub(crate) struct Pki {
    pub(crate) dir: TempDir,
    pub(crate) authority: Authority,
    pub(crate) ca: PathBuf,
    pub(crate) server: Identity,
    pub(crate) server_files: IdentityFiles,
    pub(crate) client: Identity,
    pub(crate) client_files: IdentityFiles,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new("konnectivity").unwrap();
        let authority = Authority::new("konnectivity").unwrap();
        let ca = authority.write(&dir.join("ca.crt")).unwrap();
        let names = ["127.0.0.1", "localhost", "*.kn.example.com", SERVICE];
        let server = authority.server(&names).unwrap();
        let client = authority.client("client", &[], &[]).unwrap();
        Self {
            server_files: server.write(dir.path(), "server").unwrap(),
            client_files: client.write(dir.path(), "client").unwrap(),
            dir,
            authority,
            ca,
            server,
            client,
        }
    }

    /// Returns where an agent of this authority connects to.
    pub(crate) fn target(&self, addr: std::net::SocketAddr) -> AgentTarget {
        AgentTarget::new(addr, self.authority.pem(), Some(&self.client))
    }
}
