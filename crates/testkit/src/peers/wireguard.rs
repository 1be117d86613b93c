//! WireGuard in user space, by others: the far end of a tunnel of ours, and what ours is measured by.
//!
//! ```text
//!     wg (wireguard-tools) ── /var/run/wireguard/DEVICE.sock ──▶ program ── TUN DEVICE, UDP port
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{apt, cache, crates};
use crate::command;
use crate::netns::Namespace;
use crate::process::ChildGuard;
use crate::tempdir::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Cloudflare's, in Rust.
    BoringTun,
    /// Mullvad's, which began as the one above.
    GotaTun,
    /// The protocol's author's, in Go, of Debian 12: a system call for each packet.
    WireguardGo2022,
    /// The same of Debian 13, with segmentation offloads: the fastest there is.
    WireguardGo2023,
}

impl Program {
    pub const ALL: [Self; 4] = [
        Self::BoringTun,
        Self::GotaTun,
        Self::WireguardGo2022,
        Self::WireguardGo2023,
    ];

    /// Returns what tables and errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::BoringTun => "boringtun",
            Self::GotaTun => "gotatun",
            Self::WireguardGo2022 => "wireguard-go 2022",
            Self::WireguardGo2023 => "wireguard-go 2023",
        }
    }

    pub fn binary(self) -> Result<PathBuf> {
        match self {
            Self::BoringTun => BORINGTUN.binary(),
            Self::GotaTun => GOTATUN.binary(),
            Self::WireguardGo2022 => command::require("wireguard-go"),
            Self::WireguardGo2023 => cache::find(FILE_2023)
                .context("wireguard-go of Debian 13 is missing; `cargo xtask test` fetches it"),
        }
    }

    /// Starts it in `namespace` with a device that has no addresses, keys or peers yet, and waits
    /// until it can be told some. Logs go into `dir`.
    pub fn start(self, namespace: &Namespace, dir: &Path) -> Result<Wireguard> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        // The sockets of all namespaces lie in one directory: so a name that is unique.
        let device = format!("wg{}-{number}", std::process::id());
        let mut command = namespace.command(self.binary()?);
        command.arg("--foreground");
        match self {
            // Without these it gives up the right to its own device.
            Self::BoringTun | Self::GotaTun => command.arg("--disable-drop-privileges"),
            Self::WireguardGo2022 | Self::WireguardGo2023 => &mut command,
        };
        command.arg(&device);
        let log = dir.join(format!("{device}.log"));
        let mut child = ChildGuard::spawn(self.name(), &command, &log)?;
        let listens = || listens(namespace, &device);
        child.wait_ready(Duration::from_secs(20), listens)?;
        Ok(Wireguard { child, device })
    }
}

/// A running WireGuard. Dropping it ends the program, and the device with it.
#[derive(Debug)]
pub struct Wireguard {
    child: ChildGuard,
    device: String,
}

impl Wireguard {
    pub fn device(&self) -> &str {
        &self.device
    }

    pub fn child(&mut self) -> &mut ChildGuard {
        &mut self.child
    }

    /// Runs `wg set DEVICE` with `words`, as wg(8) has them.
    pub fn set(&self, words: &[&str]) -> Result<()> {
        let mut wg = Command::new(command::require("wg")?);
        command::run(wg.args(["set", &self.device]).args(words))?;
        Ok(())
    }
}

/// A key pair as `wg genkey` and `wg pubkey` write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    pub private: String,
    pub public: String,
}

impl KeyPair {
    pub fn generate() -> Result<Self> {
        let wg = command::require("wg")?;
        let dir = TempDir::new("wg-key")?;
        let private = command::run(Command::new(&wg).arg("genkey"))?;
        let path = dir.write("private", &private)?;
        let mut pubkey = Command::new("sh");
        pubkey.args(["-c", r#""$1" pubkey < "$2""#, "sh"]);
        let public = command::run(pubkey.arg(&wg).arg(&path))?;
        Ok(Self {
            private: private.trim().to_owned(),
            public: public.trim().to_owned(),
        })
    }
}

/// Installs what is missing of those that Debian 12 has no package for.
pub fn install(say: &dyn Fn(&str)) -> Result<()> {
    BORINGTUN.install(say)?;
    GOTATUN.install(say)?;
    install_2023(say)
}

/// Fetches wireguard-go of Debian 13 with apt, which checks its signature, by lists and a cache of
/// their own: what this machine has installed, and from where, stays as it is.
fn install_2023(say: &dyn Fn(&str)) -> Result<()> {
    cache::fill(FILE_2023, |path| {
        say("apt-get download wireguard-go, of Debian 13, to be unpacked beside");
        let dir = TempDir::new("apt")?;
        let sources = format!("deb {KEYRING} {} trixie main\n", apt::archive()?);
        let sources = dir.write("sources.list", sources)?;
        for directory in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(dir.join(directory)).context("making apt's directories")?;
        }
        let set = |key: &str, value: &Path| format!("--option={key}={}", value.display());
        let options = [
            set("Dir::Etc::SourceList", &sources),
            set("Dir::Etc::SourceParts", Path::new("/dev/null")),
            set("Dir::State::Lists", &dir.join("lists")),
            set("Dir::Cache", &dir.join("cache")),
            "--quiet".to_owned(),
        ];
        for words in [&["update"][..], &["download", "wireguard-go"]] {
            let mut apt = Command::new("apt-get");
            command::run(apt.current_dir(dir.path()).args(&options).args(words))?;
        }
        let mut unpack = Command::new("sh");
        unpack.current_dir(dir.path());
        command::run(unpack.args(["-c", "dpkg-deb --extract wireguard-go_*.deb unpacked"]))?;
        cache::install(&dir.join("unpacked/usr/bin/wireguard-go"), path)
    })
    .map(drop)
}

/// Returns whether a device can be configured. `wg` is not asked for this: it deletes a
/// socket that is bound and does not listen yet, and boringtun ends when its socket is deleted.
fn listens(namespace: &Namespace, device: &str) -> bool {
    // proc_net_unix(5): the fourth word is flags, of which this one says that it listens.
    let table = || std::fs::read_to_string("/proc/thread-self/net/unix");
    let Ok(Ok(table)) = namespace.run(table) else {
        return false;
    };
    let socket = format!("/{device}.sock");
    let mut lines = table.lines().filter(|line| line.ends_with(&socket));
    lines.any(|line| line.split_whitespace().nth(3) == Some("00010000"))
}

const FILE_2023: &str = "wireguard-go-0.0.20231211";
const KEYRING: &str = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";

const BORINGTUN: crates::Program = crates::Program {
    name: "boringtun-cli",
    package: "boringtun-cli",
    version: "0.7.1",
    optimised: true,
};

const GOTATUN: crates::Program = crates::Program {
    name: "gotatun",
    package: "gotatun-cli",
    version: "0.10.2",
    optimised: true,
};
