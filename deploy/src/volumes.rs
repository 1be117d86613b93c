//! A pod's volumes, put on disk as the kubelet does: contents, modes and groups.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::container::list;
use crate::objects::Objects;
use crate::pod::Pod;

/// Puts every volume of `pod` below `directory`, and returns where each is by its name. Paths of the
/// host are those below `host`, but for devices.
pub(crate) fn prepare(
    pod: &Pod,
    objects: &Objects,
    directory: &Path,
    host: &Path,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut all = BTreeMap::new();
    for volume in list(&pod.spec["volumes"]) {
        let name = volume["name"].as_str().context("a volume's name")?;
        let path = directory.join(name);
        let put = one(pod, objects, volume, &path, host);
        let put = put.with_context(|| format!("volume {name}"))?;
        all.insert(name.to_owned(), put);
    }
    Ok(all)
}

fn one(pod: &Pod, objects: &Objects, volume: &Value, path: &Path, host: &Path) -> Result<PathBuf> {
    let group = pod.fs_group();
    if let Some(name) = volume["configMap"]["name"].as_str() {
        let data = objects.files("ConfigMap", name)?;
        files(path, &data, mode(&volume["configMap"]), group)
    } else if let Some(name) = volume["secret"]["secretName"].as_str() {
        let data = objects.files("Secret", name)?;
        files(path, &data, mode(&volume["secret"]), group)
    } else if volume["projected"].is_object() {
        let mut data = BTreeMap::new();
        for source in list(&volume["projected"]["sources"]) {
            let source = &source["configMap"];
            let name = source["name"].as_str().context("no ConfigMap's name")?;
            match objects.files("ConfigMap", name) {
                Err(_) if source["optional"] == true => {}
                found => data.extend(found?),
            }
        }
        files(path, &data, mode(&volume["projected"]), group)
    } else if volume["emptyDir"].is_object() {
        directory(path, 0o777, group)
    } else if let Some(wanted) = volume["hostPath"]["path"].as_str() {
        of_host(wanted, volume["hostPath"]["type"].as_str(), host)
    } else {
        bail!("{volume} is of a kind that is not known here")
    }
}

/// As the kubelet has it where nothing is said: 0644.
fn mode(source: &Value) -> u32 {
    let mode = source["defaultMode"].as_u64();
    mode.and_then(|mode| u32::try_from(mode).ok())
        .unwrap_or(0o644)
}

/// Writes a directory of files; one that was written before is replaced file by file.
fn files(
    path: &Path,
    data: &BTreeMap<String, String>,
    mode: u32,
    group: Option<u64>,
) -> Result<PathBuf> {
    directory(path, 0o755, group)?;
    for (name, text) in data {
        let (file, fresh) = (path.join(name), path.join(format!("..{name}")));
        fs::write(&fresh, text).with_context(|| format!("writing {}", fresh.display()))?;
        give(&fresh, mode, group)?;
        fs::rename(&fresh, &file).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(path.to_owned())
}

fn directory(path: &Path, mode: u32, group: Option<u64>) -> Result<PathBuf> {
    fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
    // With a group, what is made inside is the group's as well.
    give(path, mode | group.map_or(0, |_| 0o2000), group)?;
    Ok(path.to_owned())
}

fn give(path: &Path, mode: u32, group: Option<u64>) -> Result<()> {
    let group = group.and_then(|group| u32::try_from(group).ok());
    if let Some(group) = group.filter(|group| crate::sandbox::is_mapped(*group)) {
        chown(path, None, Some(group)).with_context(|| format!("giving {}", path.display()))?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("changing the mode of {}", path.display()))
}

fn of_host(wanted: &str, kind: Option<&str>, host: &Path) -> Result<PathBuf> {
    let path = host.join(wanted.trim_start_matches('/'));
    match kind {
        Some("CharDevice") => {
            let there = fs::metadata(wanted).with_context(|| format!("looking at {wanted}"))?;
            ensure!(there.file_type().is_char_device(), "{wanted} is no device");
            return Ok(PathBuf::from(wanted));
        }
        Some("Directory") => ensure!(path.is_dir(), "the host has no directory {wanted}"),
        Some("DirectoryOrCreate") => {
            fs::create_dir_all(&path).with_context(|| format!("making {wanted}"))?;
        }
        other => bail!("a path of the host of type {other:?}"),
    }
    Ok(path)
}
