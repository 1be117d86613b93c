//! Namespaces, the programs `ip` and `nft`, and what they tell.

use std::{net::IpAddr, net::SocketAddr, process::Command, thread, time::Duration};

use net_config::{AddressKeeper, AddressParams, Change, DeviceKind};
use rustix::thread::UnshareFlags;
use tokio::time::timeout;

pub(crate) const DEVICE: &str = "apiserver-proxy";
pub(crate) const V4: &str = "10.1.2.3";
pub(crate) const V6: &str = "fd00:10::3";

/// A hang is a failure; nothing here takes a tenth of this.
const HANG: Duration = Duration::from_secs(30);

/// Runs `body` on a thread in a new network namespace, on a runtime of its own.
pub(crate) fn in_namespace(body: impl Future<Output = ()> + Send + 'static) {
    let ran = thread::spawn(|| {
        leave_namespace();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { timeout(HANG, body).await.expect("the test hangs") });
    })
    .join();
    if let Err(panic) = ran {
        std::panic::resume_unwind(panic);
    }
}

#[expect(
    deprecated,
    reason = "the replacement is unsafe because of descriptor tables, which are not unshared here"
)]
fn leave_namespace() {
    rustix::thread::unshare(UnshareFlags::NEWNET)
        .expect("a network namespace: run as root or under `unshare --user --map-root-user`");
}

pub(crate) fn params(addresses: &[&str]) -> AddressParams {
    AddressParams {
        device: DEVICE.to_owned(),
        kind: DeviceKind::Auto,
        addresses: addresses
            .iter()
            .map(|text| text.parse::<IpAddr>().unwrap())
            .collect(),
        manage: true,
    }
}

pub(crate) fn keeper(addresses: &[&str]) -> AddressKeeper {
    AddressKeeper::new(params(addresses))
}

pub(crate) fn sockets(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub(crate) fn labels(changes: &[Change]) -> Vec<&'static str> {
    changes.iter().map(Change::label).collect()
}

/// The first kind that `ip` can create here.
pub(crate) fn best_kind() -> DeviceKind {
    *DeviceKind::Auto
        .candidates()
        .iter()
        .find(|kind| {
            let script = format!("ip link add probe0 type {kind} && ip link del probe0");
            Command::new("unshare")
                .args(["-n", "sh", "-c", &script])
                .output()
                .unwrap()
                .status
                .success()
        })
        .expect("one of the kinds")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn ip(arguments: &[&str]) -> String {
    run(Command::new("ip").args(arguments))
}

pub(crate) fn ip_batch(lines: &str) {
    use std::io::Write;

    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
}

pub(crate) fn nft(arguments: &[&str]) -> String {
    run(Command::new("nft").args(arguments))
}

pub(crate) fn exists(device: &str) -> bool {
    Command::new("ip")
        .args(["link", "show", device])
        .output()
        .unwrap()
        .status
        .success()
}

/// `address/prefix` of everything on `device` but what the kernel puts there by itself.
pub(crate) fn addresses_of(device: &str) -> Vec<String> {
    ip(&["-o", "addr", "show", "dev", device])
        .lines()
        .filter(|line| !line.contains("scope link"))
        .filter_map(|line| line.split_whitespace().nth(3))
        .map(|address| {
            if address.contains('/') {
                address.to_owned()
            } else {
                format!("{address}/32")
            }
        })
        .collect()
}

/// Takes the capability from this thread, for good.
pub(crate) fn drop_net_admin() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    let mut sets = capabilities(None).unwrap();
    sets.effective -= CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets).unwrap();
}

/// Takes every other capability from this thread, for good: what a pod of ours has.
pub(crate) fn keep_net_admin_alone() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    let mut sets = capabilities(None).unwrap();
    sets.effective = CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets).unwrap();
}
