//! The shell script that makes a container's root file system and becomes its program.
//!
//! Everything it is told is quoted: nothing in a manifest is a word of the shell's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::container::Rights;
use crate::sandbox::is_mapped;

/// A directory or device that a container finds in its file system.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    source: PathBuf,
    target: String,
    read_only: bool,
}

impl Mount {
    pub(crate) fn new(source: &Path, target: &str, read_only: bool) -> Self {
        Self {
            source: source.to_owned(),
            target: target.to_owned(),
            read_only,
        }
    }
}

pub(crate) struct Run<'a> {
    pub(crate) root: &'a Path,
    pub(crate) etc: &'a Path,
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [String],
    pub(crate) environment: &'a BTreeMap<String, String>,
    pub(crate) mounts: &'a [Mount],
    pub(crate) rights: &'a Rights,
    pub(crate) fs_group: Option<u64>,
    pub(crate) sysctls: &'a [(String, String)],
}

pub(crate) fn write(run: &Run<'_>) -> String {
    let root = quoted(&run.root.display().to_string());
    let mut text = format!("set -eu\nroot={root}\n{BASE}");
    let etc = quoted(&run.etc.display().to_string());
    let _ = writeln!(text, "cp {etc}/* etc/");
    let program = quoted(&run.program.display().to_string());
    let _ = writeln!(text, "mount --bind -o ro {program} image/program");
    for (name, value) in run.sysctls {
        let path = name.replace('.', "/");
        let _ = writeln!(text, "echo {} > /proc/sys/{}", quoted(value), quoted(&path));
    }
    for mount in run.mounts {
        mount_line(&mut text, mount);
    }
    if !run.rights.privileged {
        text.push_str("mount --bind proc/sys proc/sys\nmount -o remount,bind,ro proc/sys\n");
    }
    if run.rights.read_only {
        text.push_str("mount -o remount,ro \"$root\"\n");
    }
    text.push_str("exec chroot \"$root\" /usr/bin/env -i");
    for (name, value) in run.environment {
        let _ = write!(text, " {}", quoted(&format!("{name}={value}")));
    }
    let flags = flags(run.rights, run.fs_group);
    let _ = write!(text, " /usr/bin/setpriv --pdeathsig KILL {flags}");
    let _ = write!(text, " -- {PROGRAM}");
    for word in run.arguments {
        let _ = write!(text, " {}", quoted(word));
    }
    text.push('\n');
    text
}

fn mount_line(text: &mut String, mount: &Mount) {
    let source = quoted(&mount.source.display().to_string());
    let target = quoted(mount.target.trim_start_matches('/'));
    let make = if mount.source.is_dir() {
        format!("mkdir -p {target}")
    } else {
        format!("mkdir -p \"$(dirname {target})\" && touch {target}")
    };
    let option = if mount.read_only { "-o ro " } else { "" };
    let _ = writeln!(text, "{make}\nmount --bind {option}{source} {target}");
}

/// Returns the flags of `setpriv` that leave these rights and no others. Where only root exists, the
/// program stays root in name, with no more rights.
pub(crate) fn flags(rights: &Rights, fs_group: Option<u64>) -> String {
    let mapped = |id: u64| u32::try_from(id).is_ok_and(is_mapped);
    let mut flags = String::new();
    // A namespace with a user beside root is one in which users and groups can be changed.
    if mapped(UNPRIVILEGED) && mapped(rights.uid) && mapped(rights.gid) {
        let _ = write!(flags, "--reuid {} --regid {} ", rights.uid, rights.gid);
        match fs_group {
            Some(group) => {
                let _ = write!(flags, "--groups {group} ");
            }
            None => flags.push_str("--clear-groups "),
        }
    }
    if !rights.privileged {
        let mut set = "-all".to_owned();
        for capability in &rights.capabilities {
            let _ = write!(set, ",+{}", capability.to_lowercase());
        }
        let _ = write!(flags, "--bounding-set {set} --inh-caps {set} ");
    }
    if rights.no_new_privileges {
        flags.push_str("--no-new-privs");
    }
    flags
}

/// Returns a word that the shell takes as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Where the program is in a container's file system.
pub(crate) const PROGRAM: &str = "/image/program";

/// A user that is not root: Linux's own for users that do not exist.
const UNPRIVILEGED: u64 = 65534;

/// What every container has: libraries, for programs of tests are not static; `/proc`; the devices of
/// the OCI runtime specification.
const BASE: &str = r#"mount -t tmpfs -o mode=0755 tmpfs "$root"
cd "$root"
mkdir usr proc dev etc image
touch image/program
mount --bind -o ro /usr usr
for old in bin lib lib64 sbin; do
  if [ -L "/$old" ]; then cp -P "/$old" "$old"
  elif [ -d "/$old" ]; then mkdir "$old" && mount --bind -o ro "/$old" "$old"; fi
done
mount --rbind /proc proc
for device in full null random urandom zero; do
  touch "dev/$device" && mount --bind "/dev/$device" "dev/$device"
done
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(capabilities: &[&str]) -> Rights {
        Rights {
            uid: 0,
            gid: 0,
            privileged: false,
            capabilities: capabilities.iter().map(|own| (*own).to_owned()).collect(),
            no_new_privileges: true,
            read_only: true,
            seccomp: "RuntimeDefault".to_owned(),
        }
    }

    #[test]
    fn only_named_capabilities_remain() {
        let flags = flags(&rights(&["NET_ADMIN"]), None);
        assert!(flags.contains("--bounding-set -all,+net_admin --inh-caps -all,+net_admin"));
        assert!(flags.ends_with("--no-new-privs"), "{flags}");
    }

    #[test]
    fn words_of_a_manifest_are_words_for_the_shell() {
        assert_eq!(quoted("a'$(b)"), r"'a'\''$(b)'");
    }
}
