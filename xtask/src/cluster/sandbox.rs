//! What the kernel of each node says of the processes of our pods, beside what their manifests ask for: user,
//! capabilities, system calls, the root's file system; and that each pod has a priority.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::kubectl::Kubectl;
use super::machine::Machine;
use super::network;
use super::up::Clusters;

/// A process in a container.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    user: u64,
    /// Effective ones, a bit each (capabilities(7)).
    capabilities: u64,
    no_new_privileges: bool,
    /// System calls are filtered (seccomp(2)).
    filtered: bool,
    read_only_root: bool,
}

/// Compares every container of ours that runs.
pub(crate) fn check(clusters: &Clusters) -> Result<String> {
    let mut processes = BTreeMap::new();
    for node in network::SEED.iter().chain(&network::SHOOT) {
        let listed = Machine::at(&clusters.root, node.name).run(LIST)?;
        for line in listed.lines() {
            let (container, process) = parse(line).with_context(|| format!("reading: {line}"))?;
            let of_container: &mut Vec<_> = processes.entry(container).or_default();
            of_container.push(process);
        }
    }
    let mut count = 0;
    for kubectl in [&clusters.seed, &clusters.shoot] {
        count += compare(kubectl, &processes)?;
    }
    ensure!(count > 0, "there is no container of ours");
    Ok(format!(
        "{count} containers are what their manifests ask for"
    ))
}

fn compare(kubectl: &Kubectl, processes: &BTreeMap<String, Vec<Process>>) -> Result<usize> {
    let pods = kubectl.get(&["pods", "--all-namespaces"])?;
    let mut count = 0;
    for pod in pods["items"].as_array().context("no list of pods")? {
        let spec = &pod["spec"];
        let name = pod["metadata"]["name"].as_str().unwrap_or("?");
        let states = pod["status"]["containerStatuses"].as_array();
        for state in states.into_iter().flatten() {
            let container = spec["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|own| own["name"] == state["name"]);
            let container = container.with_context(|| format!("{name}: no such container"))?;
            let image = container["image"].as_str().unwrap_or_default();
            if !image.starts_with("rhizome/") || state["ready"] != true {
                continue;
            }
            let id = state["containerID"].as_str().unwrap_or_default();
            let id = id.trim_start_matches("containerd://");
            let wanted = wanted(spec, container)?;
            let found = processes.get(id);
            let found = found.with_context(|| format!("{name}: container {id} has no process"))?;
            for process in found {
                ensure!(
                    *process == wanted,
                    "{name}: {process:?} instead of {wanted:?}"
                );
            }
            ensure!(
                spec["priority"].as_i64().is_some_and(|own| own > 0),
                "{name} has no priority"
            );
            count += 1;
        }
    }
    Ok(count)
}

/// Returns what a manifest asks for. All ask for a filter, a root that is read-only, and no way to more
/// privileges, or this fails.
fn wanted(spec: &Value, container: &Value) -> Result<Process> {
    let (pod, own) = (&spec["securityContext"], &container["securityContext"]);
    let user = own["runAsUser"]
        .as_u64()
        .or_else(|| pod["runAsUser"].as_u64());
    let filter = [
        &own["seccompProfile"]["type"],
        &pod["seccompProfile"]["type"],
    ];
    ensure!(
        filter.contains(&&Value::from("RuntimeDefault"))
            && own["readOnlyRootFilesystem"] == true
            && own["allowPrivilegeEscalation"] == false
            && own["capabilities"]["drop"] == Value::from(vec!["ALL"]),
        "{} asks for too much",
        container["name"]
    );
    let mut capabilities = 0;
    for added in own["capabilities"]["add"].as_array().into_iter().flatten() {
        let known = CAPABILITIES.iter().find(|(name, _)| added == name);
        let (_, bit) = known.with_context(|| format!("which bit is {added}?"))?;
        capabilities |= 1 << bit;
    }
    Ok(Process {
        user: user.context("no user")?,
        capabilities,
        no_new_privileges: true,
        filtered: true,
        read_only_root: true,
    })
}

fn parse(line: &str) -> Option<(String, Process)> {
    let mut words = line.split_whitespace();
    let mut next = || words.next();
    let container = next()?.to_owned();
    let process = Process {
        user: next()?.parse().ok()?,
        capabilities: u64::from_str_radix(next()?, 16).ok()?,
        no_new_privileges: next()? == "1",
        filtered: next()? == "2",
        read_only_root: next()?.split(',').any(|option| option == "ro"),
    };
    Some((container, process))
}

/// Bits of `linux/capability.h`.
const CAPABILITIES: [(&str, u32); 3] =
    [("NET_BIND_SERVICE", 10), ("NET_ADMIN", 12), ("NET_RAW", 13)];

/// A line for each process in a container: its id, and what [`parse`] reads.
const LIST: &str = r#"
for each in /proc/[0-9]*; do
  id=$(sed -n 's|.*/kubepods.*/||p' "$each/cgroup" 2>/dev/null | head -n 1)
  [ "$id" ] || continue
  root=$(awk '$5 == "/" { print $6; exit }' "$each/mountinfo" 2>/dev/null)
  [ "$root" ] || continue
  awk -v id="$id" -v root="$root" '
    /^Uid:/ { user = $3 } /^CapEff:/ { capabilities = $2 } /^NoNewPrivs:/ { none = $2 } /^Seccomp:/ { filter = $2 }
    END { if (filter != "") print id, user, capabilities, none, filter, root }' "$each/status" 2>/dev/null
done
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_process_is_read() {
        let (container, process) = parse("ab12 0 0000000000001400 1 2 ro,relatime").unwrap();
        let expected = Process {
            user: 0,
            capabilities: (1 << 10) | (1 << 12),
            no_new_privileges: true,
            filtered: true,
            read_only_root: true,
        };
        assert_eq!((&*container, process), ("ab12", expected));
        assert!(!parse("ab12 0 0 1 2 rw,errors=ro").unwrap().1.read_only_root);
        assert!(parse("ab12 0 0 1").is_none());
    }
}
