//! What a cluster must have before the manifests are applied is in docs/deploy.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use deploy::Pod;

use crate::manifests::{items, pods, text};

/// Levels of the Pod Security Standards, the strictest first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Level {
    Restricted,
    Baseline,
    Privileged,
}

/// Returns the strictest level that admits a pod, as the standards document it (v1.33).
fn level(pod: &Pod) -> Level {
    let spec = &pod.spec;
    let host = ["hostNetwork", "hostPID", "hostIPC"];
    let volumes = || items(&spec["volumes"]);
    let mut level = Level::Restricted;
    let mut at_least = |other: Level, applies: bool| {
        if applies {
            level = level.max(other);
        }
    };
    at_least(
        Level::Privileged,
        host.iter().any(|field| spec[field] == true),
    );
    at_least(
        Level::Privileged,
        volumes().any(|volume| volume["hostPath"].is_object()),
    );
    for container in pod.containers() {
        let own = &container.spec["securityContext"];
        let set = |field: &str| {
            let of_container = Some(&own[field]).filter(|value| !value.is_null());
            of_container.unwrap_or_else(|| &spec["securityContext"][field])
        };
        let added: Vec<&str> = items(&own["capabilities"]["add"]).map(text).collect();
        let drops = items(&own["capabilities"]["drop"]).any(|own| own == "ALL");
        let mut ports = items(&container.spec["ports"]);
        at_least(Level::Privileged, own["privileged"] == true);
        at_least(
            Level::Privileged,
            ports.any(|port| port["hostPort"].is_u64()),
        );
        at_least(
            Level::Baseline,
            added.iter().any(|own| *own != "NET_BIND_SERVICE"),
        );
        // The baseline's list; what the manifests have no use for is left out.
        let usual = ["CHOWN", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"];
        at_least(
            Level::Privileged,
            added.iter().any(|own| !usual.contains(own)),
        );
        at_least(
            Level::Baseline,
            *set("runAsNonRoot") != true || *set("runAsUser") == 0,
        );
        at_least(
            Level::Baseline,
            own["allowPrivilegeEscalation"] != false || !drops,
        );
        at_least(
            Level::Baseline,
            set("seccompProfile")["type"] != "RuntimeDefault",
        );
    }
    level
}

fn page() -> String {
    let root = deploy::root().parent().unwrap();
    fs::read_to_string(root.join("docs/deploy.md")).unwrap()
}

#[test]
fn documented_prerequisites_match_manifests() {
    let page = page();
    let (_, section) = page.split_once("\n## What must be there\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut classes = BTreeSet::new();
    let mut levels: BTreeMap<(String, String), Level> = BTreeMap::new();
    for (directory, pod, _) in pods() {
        let class = text(&pod.spec["priorityClassName"]).to_owned();
        assert!(!class.is_empty(), "{directory}");
        // Kubernetes has its own.
        if !class.starts_with("system-") {
            classes.insert(class);
        }
        levels.insert((directory, pod.namespace.clone()), level(&pod));
    }
    for class in &classes {
        assert!(
            section.contains(&format!("`{class}` (")),
            "{class}: {section}"
        );
    }
    // As the page has it.
    let wording = "`garden`, `istio-ingress`: `restricted`; a shoot's namespace in the seed: `privileged` for \
        `vpn-server` (its device, `NET_ADMIN`), else `restricted`; `kube-system`: `privileged`. With `node-cache` \
        or `node-handover`, `istio-ingress` is `privileged`";
    let words: Vec<&str> = section.split_whitespace().collect();
    assert!(words.join(" ").contains(wording), "{section}");
    for ((directory, namespace), level) in levels {
        if namespace == "kube-system" {
            continue;
        }
        let privileged = [
            "control-plane/vpn-server",
            "seed/gateway/overlays/node-cache",
            "seed/gateway/overlays/node-handover",
        ];
        let documented = if privileged.contains(&directory.as_str()) {
            Level::Privileged
        } else {
            Level::Restricted
        };
        assert_eq!(level, documented, "{directory}");
    }
}
