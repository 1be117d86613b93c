//! What `--check` finds in the files that a configuration names.

use testkit::certs::Authority;
use testkit::tempdir::TempDir;

use super::{agent, server};
use crate::flags::ServerConfig;
use crate::process::Verify;

/// A certificate for agents' port, and a registry of clusters `a` and `b`.
struct Site {
    dir: TempDir,
    line: String,
}

impl Site {
    fn new() -> Self {
        let dir = TempDir::new("verified").unwrap();
        let authority = Authority::new("server").unwrap();
        let pair = authority.server(&["kn.example.com"]).unwrap();
        let pair = pair.write(dir.path(), "server").unwrap();
        let clusters = dir.join("clusters");
        std::fs::create_dir(&clusters).unwrap();
        let site = Self {
            line: format!(
                "--registry={} --server-port=0 --cluster-cert={} --cluster-key={}",
                clusters.display(),
                pair.cert.display(),
                pair.key.display()
            ),
            dir,
        };
        for id in ["a", "b"] {
            site.write(&format!("{id}.crt"), authority.pem());
            site.write(&format!("{id}.yaml"), &definition(id));
        }
        site
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join("clusters").join(name), text).unwrap();
    }

    fn config(&self) -> ServerConfig {
        server(&self.line).unwrap().config
    }
}

fn definition(id: &str) -> String {
    format!(
        "agents: {{ certificates: {{ ca: {id}.crt, identities: [\"urn:{id}\"] }} }}\n\
         frontends: {{ uds: {{ path: {id}.sock, mode: grpc }} }}\n"
    )
}

#[test]
fn check_reports_all_registry_faults() {
    let site = Site::new();
    site.config().verify().unwrap();
    site.write("a.crt", "no PEM");
    site.write("b.yaml", &definition("b").replace("grpc", "smoke"));
    let error = site.config().verify().unwrap_err().error().to_string();
    for expected in ["a.yaml", "agents.certificates.ca", "b.yaml", "smoke"] {
        assert!(error.contains(expected), "{expected} in {error}");
    }
}

#[test]
fn check_reports_missing_registry() {
    let site = Site::new();
    std::fs::remove_dir_all(site.dir.join("clusters")).unwrap();
    let error = site.config().verify().unwrap_err();
    assert!(
        error
            .error()
            .to_string()
            .starts_with("reading the registry"),
        "{error:?}"
    );
}

#[test]
fn check_rejects_kubeconfig_with_program() {
    let site = Site::new();
    let path = site.dir.join("kubeconfig");
    let text = |user: &str| {
        format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}],
               clusters: [{{name: a, cluster: {{server: \"https://127.0.0.1:1\"}}}}],
               users: [{{name: a, user: {{{user}}}}}]}}"
        )
    };
    let line = format!("--count-server-leases --kubeconfig={}", path.display());
    let ca = site.dir.join("clusters/a.crt");
    let line = format!("{line} --ca-cert={}", ca.display());
    std::fs::write(&path, text("token: t")).unwrap();
    agent(&line).unwrap().config.verify().unwrap();
    std::fs::write(&path, text("exec: {command: /bin/true}")).unwrap();
    let error = agent(&line).unwrap().config.verify().unwrap_err();
    let text = telemetry::chain(error.error()).to_string();
    assert!(text.contains("`exec`"), "{text}");
}
