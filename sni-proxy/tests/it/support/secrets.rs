//! The secrets of a terminating route: authorities, and the files that its `terminate` names.

use testkit::certs::Authority;
use testkit::tempdir::TempDir;

/// Every authority but that of the API servers, and who has the front proxy's key.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(crate) clients: Authority,
    pub(crate) front: Authority,
    pub(crate) serving: Authority,
}

impl Secrets {
    /// Makes them, and writes the files into `dir`: a certificate for `name` and below it, and all else but `cluster.crt`.
    pub(crate) fn write(dir: &TempDir, name: &str) -> Self {
        let [clients, front, serving] =
            ["clients", "front", "serving"].map(|name| Authority::new(name).unwrap());
        clients.write(&dir.join("clients.crt")).unwrap();
        front.write(&dir.join("front-ca.crt")).unwrap();
        let own = serving.server(&[name, &format!("*.{name}")]).unwrap();
        own.write(dir.path(), "own").unwrap();
        let secrets = Self {
            clients,
            front,
            serving,
        };
        secrets.write_identity(dir);
        secrets
    }

    /// Writes the front proxy's certificate and key.
    pub(crate) fn write_identity(&self, dir: &TempDir) {
        let identity = self.front.client("system:istio-gateway", &[], &[]).unwrap();
        identity.write(dir.path(), "front").unwrap();
    }
}
