//! What builds images: buildah, which needs no daemon.
//!
//! ```text
//!     context ─ bud ─▶ image ─ push ─▶ NAME.tar (OCI)
//!                        └─ from, mount ─▶ root file system ─ chroot, as the image's user ─▶ program
//! ```
//!
//! Buildah keeps everything in a store of ours below the target directory. It builds without
//! namespaces, and runs programs by chroot, which takes root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::command;
use testkit::netns::privileges;
use testkit::peers::packages::{self, Need, need};

use crate::workspace;

/// The one for all images, from the workspace's root.
pub(super) const DOCKERFILE: &str = "deploy/images/Dockerfile";

pub(crate) struct Buildah {
    pub(super) store: PathBuf,
}

pub(super) struct Built {
    tag: String,
    /// The user it runs as, as numbers.
    pub(super) user: String,
    entry: String,
    pub(super) archive: PathBuf,
}

impl Buildah {
    pub(crate) fn find(out: &Path, say: &dyn Fn(&str)) -> Result<Self> {
        ensure!(
            privileges::is_root(),
            "buildah is used as root, since trying an image out takes chroot"
        );
        packages::install(BUILDAH, say)?;
        let store = out.join("store");
        Ok(Self { store })
    }

    pub(super) fn build(
        &self,
        name: &str,
        version: &str,
        context: &Path,
        out: &Path,
    ) -> Result<Built> {
        let tag = format!("rhizome/{name}:{version}");
        let archive = out.join(format!("{name}.tar"));
        // It does not add to an archive that is there.
        let _ = fs::remove_file(&archive);
        let mut build = self.command("bud");
        // Nothing runs while it builds; no time of today, so that the same program gives the same
        // image.
        build.args(["--isolation", "chroot", "--timestamp", "0", "--no-cache"]);
        build.arg("--file").arg(workspace::root().join(DOCKERFILE));
        build.args(["--target", name, "--tag", &tag]);
        build.args(["--build-arg", &format!("VERSION={version}")]);
        command::run(build.arg(context))?;
        self.push(&tag, &archive)?;
        let (user, entry) = self.inspect(&tag)?;
        Ok(Built {
            tag,
            user,
            entry,
            archive,
        })
    }

    /// Builds the image of the Dockerfile in `context`, in which programs may run, as an archive.
    pub(crate) fn build_plain(&self, context: &Path, tag: &str, archive: &Path) -> Result<()> {
        let mut build = self.command("bud");
        build.args(["--isolation", "chroot", "--tag", tag]);
        command::run(build.arg(context))?;
        self.push(tag, archive)
    }

    /// Writes an image's archive, with the whole name, as a container runtime looks for it: an import
    /// takes it as it is.
    fn push(&self, tag: &str, archive: &Path) -> Result<()> {
        let mut push = self.command("push");
        let to = format!("oci-archive:{}:docker.io/{tag}", archive.display());
        command::run(push.args(["--quiet", tag, &to])).map(|_| ())
    }

    /// Runs the image's program as it would be run, in a root file system with nothing else, and
    /// returns what it printed.
    pub(super) fn run(&self, built: &Built, words: &[&str]) -> Result<String> {
        let mut from = self.command("from");
        let container = command::run(from.args(["--pull-never", &built.tag]))?;
        let container = container.trim();
        let ran = self.run_mounted(container, built, words);
        command::run(self.command("rm").arg(container))?;
        ran
    }

    fn run_mounted(&self, container: &str, built: &Built, words: &[&str]) -> Result<String> {
        let root = command::run(self.command("mount").arg(container))?;
        let mut run = Command::new(command::require("setpriv")?);
        // Not even what `chroot` would keep for root.
        run.env_clear()
            .args(["--no-new-privs", "--inh-caps=-all", "--"]);
        run.arg(command::require("chroot")?);
        run.arg(format!("--userspec={}", built.user))
            .arg("--groups=");
        run.arg(root.trim()).arg(&built.entry);
        command::run(run.args(words))
    }

    fn inspect(&self, tag: &str) -> Result<(String, String)> {
        let mut inspect = self.command("inspect");
        inspect.args(["--type", "image"]);
        let wanted = "{{.OCIv1.Config.User}} {{index .OCIv1.Config.Entrypoint 0}}";
        let told = command::run(inspect.args(["--format", wanted, tag]))?;
        let told = told.trim();
        let (user, entry) = told.split_once(' ').context("an image without a user")?;
        Ok((user.to_owned(), entry.to_owned()))
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new("buildah");
        command.arg("--root").arg(self.store.join("root"));
        command.arg("--runroot").arg(self.store.join("run"));
        command.args(["--storage-driver", "vfs", what]);
        command
    }
}

/// What Debian has for that; `chroot` is everywhere.
const BUILDAH: &[Need] = &[
    need("buildah", &["buildah"]),
    need("setpriv", &["util-linux"]),
];
