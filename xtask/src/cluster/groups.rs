//! Control groups of machines: below one of ours in each hierarchy, seen by the machine as its root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::{command, wait};

use super::machine::LIMIT;

/// Makes a machine's groups, and returns the files by which a process enters them.
pub(crate) fn make(machine: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for hierarchy in hierarchies()? {
        let ours = hierarchy.join(GROUP);
        let own = ours.join(machine);
        if unified() {
            enable(&hierarchy)?;
            make_group(&ours)?;
            enable(&ours)?;
        }
        for group in [&ours, &own] {
            make_group(group)?;
            // Without a set of processors a group takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let parent = group.parent().map(|parent| parent.join(file));
                let text = parent.and_then(|parent| fs::read_to_string(parent).ok());
                if let Some(text) = text.filter(|_| !unified()) {
                    write(&group.join(file), text.trim())?;
                }
            }
        }
        files.push(own.join("cgroup.procs").display().to_string());
    }
    Ok(files)
}

/// Moves the process that started a machine out of the group that the machine sees as its root: with version
/// 2 that must have no process of its own.
pub(crate) fn leave(machine: &str, pid: u32) -> Result<()> {
    if !unified() {
        return Ok(());
    }
    let outer = Path::new(ROOT).join(GROUP).join(format!("{machine}.outer"));
    make_group(&outer)?;
    write(&outer.join("cgroup.procs"), &pid.to_string())
}

/// Shows a machine its groups as the root of all, from within.
pub(crate) fn mount() -> Result<()> {
    let script = if unified() { UNIFIED } else { SEVERAL };
    command::run(
        Command::new("sh")
            .args(["-ec", script, "sh"])
            .args(CONTROLLERS),
    )?;
    Ok(())
}

/// Ends every process that is in a machine's groups.
pub(crate) fn kill(machine: &str) -> Result<()> {
    let Some(first) = hierarchies()?.into_iter().next() else {
        return Ok(());
    };
    let group = first.join(GROUP).join(machine);
    wait::until("the machine's processes to end", LIMIT, || {
        let pids = processes(&group);
        for pid in &pids {
            // It may have ended meanwhile.
            let _ = command::output(Command::new("kill").args(["-KILL", pid]));
        }
        pids.is_empty()
    })
}

fn processes(group: &Path) -> Vec<String> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<String> = text.lines().map(str::to_owned).collect();
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_dir()) {
        all.extend(processes(&entry.path()));
    }
    all
}

/// Takes away a machine's groups, which no process is in any more, and ours with the last one.
pub(crate) fn remove(machine: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let own = hierarchy.join(GROUP).join(machine);
        // The kernel takes a moment to forget what has ended.
        wait::until_ok("empty control groups", LIMIT, || remove_tree(&own))?;
        remove_tree(&hierarchy.join(GROUP).join(format!("{machine}.outer")))?;
        let _ = fs::remove_dir(hierarchy.join(GROUP));
    }
    Ok(())
}

fn remove_tree(group: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(group) else {
        return Ok(());
    };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        remove_tree(&entry.path())?;
    }
    fs::remove_dir(group).with_context(|| format!("removing {}", group.display()))
}

fn unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

fn hierarchies() -> Result<Vec<PathBuf>> {
    if unified() {
        return Ok(vec![PathBuf::from(ROOT)]);
    }
    let all = CONTROLLERS.map(|name| Path::new(ROOT).join(name));
    let missing = all.iter().find(|path| !path.is_dir() || path.is_symlink());
    ensure!(
        missing.is_none(),
        "{missing:?} is no hierarchy of one controller, and there is none of version 2"
    );
    Ok(all.to_vec())
}

/// Hands every controller that a kubelet wants on to the groups in `group`.
fn enable(group: &Path) -> Result<()> {
    let file = group.join("cgroup.subtree_control");
    write(&file, "+cpu +cpuset +memory +pids +io")
}

fn make_group(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {text} to {}", path.display()))
}

const ROOT: &str = "/sys/fs/cgroup";
const GROUP: &str = "rhizome-cluster";
const CONTROLLERS: [&str; 9] = [
    "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd",
];

const SEVERAL: &str = r#"
mount -t tmpfs cgroup /sys/fs/cgroup
for each in "$@"; do
  mkdir "/sys/fs/cgroup/$each"
  options=$each
  [ "$each" = systemd ] && options=none,name=systemd
  mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$each"
done
"#;

/// The machine's own processes leave its root, or no group below could have a controller.
const UNIFIED: &str = r#"
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir /sys/fs/cgroup/init
echo 1 > /sys/fs/cgroup/init/cgroup.procs
echo $$ > /sys/fs/cgroup/init/cgroup.procs
"#;
