//! Images tried out: each program says its version, and checks the configuration of its manifest.
//!
//! ```text
//!     manifests' configurations ─┐
//!     certificates of this run ──┼─▶ files for the root file system ─▶ /NAME --version, /NAME --check
//!     vpn-provision ─────────────┘
//! ```
//!
//! What a pod would mount is copied to where it would be mounted. Nothing is served: that programs
//! work under their manifests is tried in the manifests' own tests.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::certs::Authority;
use testkit::command;

use crate::workspace;

use super::VERSION;
use super::engine::{Built, Engine};

/// How an image is tried out.
struct Trial {
    image: &'static str,
    /// A file of the manifests, and where a pod has it.
    file: (&'static str, &'static str),
    /// Words behind which `--check` stands.
    words: &'static [&'static str],
}

const TRIALS: [Trial; 8] = [
    Trial {
        image: "apiserver-proxy",
        file: (
            "deploy/shoot/apiserver-proxy/apiserver-proxy.yaml",
            "etc/rhizome/apiserver-proxy.yaml",
        ),
        words: &["--config=/etc/rhizome/apiserver-proxy.yaml"],
    },
    Trial {
        image: "konnectivity-agent",
        file: (
            "deploy/shoot/konnectivity-agent/konnectivity-agent.yaml",
            "etc/rhizome/konnectivity-agent.yaml",
        ),
        words: &[
            "--config=/etc/rhizome/konnectivity-agent.yaml",
            "--ca-cert=/tls/ca.crt",
            "--agent-cert=/tls/tls.crt",
            "--agent-key=/tls/tls.key",
        ],
    },
    Trial {
        image: "konnectivity-server",
        file: (
            "deploy/control-plane/konnectivity-server/shoot--foo--bar.yaml",
            "etc/konnectivity/clusters/shoot--foo--bar.yaml",
        ),
        words: &[
            "--registry=/etc/konnectivity/clusters",
            "--mode=http-connect",
            "--server-port=8090",
            "--server-cert=/tls/tls.crt",
            "--server-key=/tls/tls.key",
            "--cluster-cert=/tls/tls.crt",
            "--cluster-key=/tls/tls.key",
        ],
    },
    Trial {
        image: "netpol-controller",
        file: (
            "deploy/seed/controller/netpol-controller.yaml",
            "etc/rhizome/netpol-controller.yaml",
        ),
        words: &["--config=/etc/rhizome/netpol-controller.yaml"],
    },
    Trial {
        image: "sni-proxy",
        file: (
            "deploy/seed/gateway/base/sni-proxy.yaml",
            "etc/rhizome/sni-proxy.yaml",
        ),
        words: &["--config=/etc/rhizome/sni-proxy.yaml"],
    },
    Trial {
        image: "vpn-client",
        file: (PARAMETERS, "etc/rhizome/provision.yaml"),
        words: &["--config=/keys/vpn-shoot-0/vpn-client.yaml"],
    },
    Trial {
        image: "vpn-provision",
        file: (PARAMETERS, "etc/rhizome/provision.yaml"),
        words: &["--config=/etc/rhizome/provision.yaml"],
    },
    Trial {
        image: "vpn-server",
        file: (PARAMETERS, "etc/rhizome/provision.yaml"),
        words: &["--config=/keys/vpn-seed-server-0/vpn-server.yaml"],
    },
];

/// What the tunnel's manifests are provisioned from.
const PARAMETERS: &str = "deploy/control-plane/vpn-server/provision.yaml";

/// Files for every trial.
pub(super) struct Trials {
    dir: PathBuf,
}

impl Trials {
    /// Makes them anew.
    pub(super) fn prepare(dir: &Path, programs: &BTreeMap<String, PathBuf>) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir).context("clearing the trials of the last time")?;
        }
        let authority = Authority::new("trials")?;
        let identity = authority.server(&["trial.example.com"])?;
        for trial in &TRIALS {
            if !programs.contains_key(trial.image) {
                continue;
            }
            let material = dir.join(trial.image);
            let put = |inside: &str, text: &[u8]| put(&material.join(inside), text);
            put("tls/ca.crt", authority.pem().as_bytes())?;
            put("tls/tls.crt", identity.cert_pem.as_bytes())?;
            put("tls/tls.key", identity.key_pem.as_bytes())?;
            let (from, to) = trial.file;
            let source = workspace::root().join(from);
            let text = fs::read(&source).with_context(|| format!("reading {from}"))?;
            put(to, &text)?;
            // Where a pod has a volume that the program may write to.
            let writable = material.join("var/cache/rhizome");
            fs::create_dir_all(&writable)?;
            fs::set_permissions(&writable, fs::Permissions::from_mode(0o777))?;
            if from == PARAMETERS {
                provision(&material, &programs["vpn-provision"], &material.join(to))?;
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Tries an image out, and returns the version that it says.
    pub(super) fn run(&self, engine: &Engine, built: &Built, image: &str) -> Result<String> {
        let trial = TRIALS.iter().find(|trial| trial.image == image);
        let trial = trial.with_context(|| format!("no trial of {image}"))?;
        let material = self.dir.join(image);
        let said = engine.run(built, &material, &["--version"])?;
        let version = said.trim().to_owned();
        let expected = format!("{image} {VERSION}");
        ensure!(version == expected, "it says `{version}`, not `{expected}`");
        let mut words = trial.words.to_vec();
        words.push("--check");
        let shown = engine.run(built, &material, &words)?;
        ensure!(!shown.trim().is_empty(), "--check shows nothing");
        Ok(version)
    }
}

/// Makes keys and configurations of the tunnel, and lays them where pods mount them.
fn provision(material: &Path, program: &Path, parameters: &Path) -> Result<()> {
    // A cluster would choose them.
    let mut text = fs::read_to_string(parameters)?;
    text.push_str("routeIds: [17, 18]\n");
    fs::write(parameters, text)?;
    let manifests = material.with_extension("manifests");
    let mut run = Command::new(program);
    run.arg("--config").arg(parameters);
    command::run(run.arg("--out").arg(&manifests))?;
    for (secret, place) in [
        (
            "seed/secret-vpn-seed-server-0-keys.yaml",
            "keys/vpn-seed-server-0",
        ),
        ("shoot/secret-vpn-shoot-0-keys.yaml", "keys/vpn-shoot-0"),
    ] {
        let text = fs::read_to_string(manifests.join(secret))?;
        for (file, data) in data(&text) {
            let path = material.join(place).join(file);
            put(&path, data.as_bytes())?;
            let mut decode = Command::new("base64");
            let decoded = command::run(decode.arg("--decode").arg(&path))?;
            put(&path, decoded.as_bytes())?;
        }
    }
    Ok(())
}

/// Returns the files of a Secret, in base64, from a manifest as `provision` writes it.
fn data(manifest: &str) -> Vec<(String, String)> {
    let lines = manifest.lines().skip_while(|line| *line != "data:").skip(1);
    let entries = lines.map_while(|line| line.strip_prefix("  "));
    let bare = |text: &str| text.trim_matches('"').to_owned();
    let entries = entries.filter_map(|line| line.split_once(": "));
    entries
        .map(|(file, text)| (bare(file), bare(text)))
        .collect()
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_trial_of_every_image_with_a_file_that_is_there() {
        let images: Vec<_> = super::super::IMAGES
            .iter()
            .map(|image| image.name)
            .collect();
        let trials: Vec<_> = TRIALS.iter().map(|trial| trial.image).collect();
        assert_eq!(images, trials);
        for trial in &TRIALS {
            let path = workspace::root().join(trial.file.0);
            assert!(path.is_file(), "{}", path.display());
        }
    }

    #[test]
    fn files_are_found_in_a_manifest() {
        let text = "apiVersion: v1\ndata:\n  a.yaml: \"eA==\"\n  \"0\": eHh4\nkind: Secret\n";
        let expected = [("a.yaml", "eA=="), ("0", "eHh4")];
        assert_eq!(
            data(text),
            expected.map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
    }
}
