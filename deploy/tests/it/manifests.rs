//! What every manifest must keep to, and that none is left out by the tests that start them.

use std::collections::{BTreeMap, BTreeSet};

use deploy::{Container, Objects, Pod, kustomizations};
use serde_json::Value;

use crate::{path, sidecars, starts};

const WORKLOADS: [&str; 3] = ["DaemonSet", "Deployment", "StatefulSet"];

/// Programs that change the kernel's network.
const OF_THE_NETWORK: [&str; 3] = ["apiserver-proxy", "vpn-client", "vpn-server"];

/// Every kustomization with what it builds.
fn built() -> Vec<(String, Objects)> {
    let all = kustomizations().unwrap();
    assert!(all.len() > 9, "{all:?}");
    let build = |directory: String| {
        let objects = Objects::build(&directory).unwrap_or_else(|error| panic!("{error:#}"));
        (directory, objects)
    };
    all.into_iter().map(build).collect()
}

/// Every pod of every workload, with the name of its kustomization.
pub(crate) fn pods() -> Vec<(String, Pod, Objects)> {
    let mut pods = Vec::new();
    for (directory, objects) in built() {
        for kind in WORKLOADS {
            for workload in objects.of_kind(kind) {
                let name = text(&workload["metadata"]["name"]);
                let pod = Pod::of(&objects, kind, name, name).unwrap();
                pods.push((directory.clone(), pod, objects.clone()));
            }
        }
    }
    pods
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Tells whether labels have all of a selector's.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().unwrap();
    // The name of a StatefulSet's pod is a label that its controller adds.
    let mut own = wanted.iter().filter(|(key, _)| !key.ends_with("/pod-name"));
    own.all(|(key, value)| &labels[key] == value)
}

#[test]
fn containers_have_least_privilege() {
    for (directory, pod, _) in pods() {
        for container in pod.containers() {
            let what = format!("{directory}: {}/{}", pod.name, container.name());
            rights_are_minimal(&what, container);
            let resources = &container.spec["resources"];
            assert!(resources["limits"].is_null(), "{what}: {resources}");
            for kind in ["cpu", "memory"] {
                assert!(
                    resources["requests"][kind].is_string(),
                    "{what}: {resources}"
                );
            }
            let tag = format!(":{}", env!("CARGO_PKG_VERSION"));
            let image = text(&container.spec["image"]);
            assert!(
                image.starts_with("rhizome/") && image.ends_with(&tag),
                "{what}: {image}"
            );
        }
    }
}

fn rights_are_minimal(what: &str, container: Container<'_>) {
    let rights = container
        .rights()
        .unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let program = container.program().unwrap();
    assert!(rights.read_only, "{what}");
    assert_eq!(rights.seccomp, "RuntimeDefault", "{what}");
    if rights.privileged {
        // What switches on forwarding of IPv6, and nothing else.
        let arguments = items(&container.spec["args"]).next().map(text);
        assert_eq!(
            (program, arguments),
            ("vpn-client", Some("setup")),
            "{what}"
        );
        return;
    }
    assert!(rights.no_new_privileges, "{what}");
    if OF_THE_NETWORK.contains(&program) {
        assert_eq!(rights.uid, 0, "{what}");
        let keeps = items(&container.spec["args"]).next().map(text) == Some("keep");
        // What only keeps addresses listens at no port below 1024.
        let own = ["NET_ADMIN", "NET_BIND_SERVICE"];
        let own = if keeps { &own[..1] } else { &own[..] };
        assert_eq!(rights.capabilities, own, "{what}");
    } else {
        assert_eq!(rights.capabilities, [""; 0], "{what}");
        assert_eq!((rights.uid, rights.gid), (65532, 65532), "{what}");
    }
}

#[test]
fn references_of_objects_exist() {
    for (directory, pod, objects) in pods() {
        for volume in items(&pod.spec["volumes"]) {
            if let Some(name) = volume["configMap"]["name"].as_str() {
                objects
                    .get("ConfigMap", name)
                    .unwrap_or_else(|error| panic!("{directory}: {error}"));
            }
        }
        let account = text(&pod.spec["serviceAccountName"]);
        objects.get("ServiceAccount", account).unwrap();
        for container in pod.containers() {
            container.arguments(&objects).unwrap();
            let asked = container.probe("livenessProbe").is_some();
            let runs = container.probe_arguments("livenessProbe").unwrap();
            let is_setup = items(&container.spec["args"]).next().map(text) == Some("setup");
            assert!(
                asked || runs.is_some() || is_setup,
                "{directory}: {}",
                container.name()
            );
        }
    }
}

#[test]
fn selectors_match_shipped_pods() {
    for (directory, objects) in built() {
        let mut workloads: Vec<&Value> = WORKLOADS
            .iter()
            .flat_map(|kind| objects.of_kind(kind))
            .collect();
        // Whose pods these are comes from Gardener, and the patch makes them what they are here.
        let patch = Objects::read(sidecars::PATCH).unwrap();
        if directory == "control-plane/konnectivity-sidecar" {
            workloads.extend(patch.iter());
        }
        let template = |object: &Value| object["spec"]["template"].clone();
        for workload in &workloads {
            let labels = &template(workload)["metadata"]["labels"];
            let selector = &workload["spec"]["selector"]["matchLabels"];
            assert!(
                selector.is_null() || selects(selector, labels),
                "{directory}"
            );
        }
        let selected = |selector: &Value| -> Vec<Value> {
            let all = workloads.iter().map(|own| template(own));
            all.filter(|own| selects(selector, &own["metadata"]["labels"]))
                .collect()
        };
        for budget in objects.of_kind("PodDisruptionBudget") {
            assert_eq!(
                selected(&budget["spec"]["selector"]["matchLabels"]).len(),
                1,
                "{directory}"
            );
        }
        for scaler in objects.of_kind("HorizontalPodAutoscaler") {
            let target = &scaler["spec"]["scaleTargetRef"];
            objects
                .get(text(&target["kind"]), text(&target["name"]))
                .unwrap();
        }
        for service in objects.of_kind("Service") {
            let pods = selected(&service["spec"]["selector"]);
            let [pod] = &pods[..] else {
                panic!("{directory}: {service} selects {pods:?}")
            };
            // In the host's network a declared port would keep the next pod away from the node.
            let declared = pod["spec"]["hostNetwork"] != true;
            for port in items(&service["spec"]["ports"]).filter(|_| declared) {
                let there = items(&pod["spec"]["containers"]).flat_map(|own| items(&own["ports"]));
                let same = |own: &&Value| {
                    own["containerPort"] == port["targetPort"]
                        && own["protocol"] == port["protocol"]
                };
                assert_eq!(there.filter(same).count(), 1, "{directory}: {port}");
            }
        }
    }
}

#[test]
fn grace_periods_cover_drains() {
    let seconds = |pod: &Pod| {
        pod.spec["terminationGracePeriodSeconds"]
            .as_u64()
            .unwrap_or(30)
    };
    let patched = sidecars::patched();
    let pod = Pod::of(&patched, "Deployment", "kube-apiserver", "kube-apiserver").unwrap();
    let patched = (sidecars::PATCH.to_owned(), pod, patched);
    for (directory, pod, objects) in pods().into_iter().chain([patched]) {
        let (mut longest, mut of_flags) = (0, 0);
        for map in objects.of_kind("ConfigMap") {
            for file in map["data"].as_object().unwrap().values().map(text) {
                longest = longest.max(drain(file));
            }
        }
        for word in pod
            .containers()
            .flat_map(|own| own.arguments(&objects).unwrap())
        {
            let flag = word.strip_prefix("--graceful-shutdown-");
            if let Some((_, value)) = flag.and_then(|flag| flag.split_once('=')) {
                of_flags += duration(value);
            }
        }
        longest = longest.max(of_flags).max(provisioned_drain(&directory));
        longest = longest.max(default_drain(&directory));
        assert!(seconds(&pod) > longest, "{directory}: {longest} s");
        let drains = !["seed/controller", "shoot/apiserver-proxy-keeper"].contains(&&*directory);
        assert_eq!(longest > 0, drains, "{directory}");
    }
}

/// A pod is scraped until it has ended, and unready while it drains.
#[test]
fn gateway_drain_is_shorter_than_alert_waits() {
    let rules = deploy::root().join("monitoring/rules/gateway.yaml");
    let rules: Value = settings::yaml::load(&rules).unwrap();
    let all = items(&rules["groups"]).flat_map(|group| items(&group["rules"]));
    let mut all = all.filter(|rule| rule["alert"] == "RhizomeGatewayUnready");
    let waits = text(&all.next().unwrap()["for"]).strip_suffix('m').unwrap();
    let waits = waits.parse::<u64>().unwrap() * 60;
    let mut seen = 0;
    for (directory, objects) in built() {
        if !directory.starts_with("seed/gateway") {
            continue;
        }
        for map in objects.of_kind("ConfigMap") {
            for file in map["data"].as_object().unwrap().values().map(text) {
                // And a minute to end and to be missed.
                assert!(drain(file) + 60 < waits, "{directory}: {}", drain(file));
                seen += drain(file);
            }
        }
    }
    assert!(seen > 0);
}

/// Returns the seconds of `drain` in a configuration, 0 when it says nothing of it.
fn drain(file: &str) -> u64 {
    let line = file.lines().find_map(|line| line.strip_prefix("drain: "));
    let Some(line) = line else { return 0 };
    let words = line.split(['{', '}', ',', ' ', ':']);
    words.filter(|word| word.ends_with('s')).map(duration).sum()
}

/// Returns the same of programs whose manifests say nothing of it: docs/config.md; the agent's is
/// `--grace-period`.
fn default_drain(directory: &str) -> u64 {
    match directory {
        _ if directory.starts_with("shoot/konnectivity-agent") => 25,
        _ => 0,
    }
}

/// Returns the same of what is provisioned for a directory's pods.
fn provisioned_drain(directory: &str) -> u64 {
    let side = match directory {
        "control-plane/vpn-server" => "server",
        _ if directory.starts_with("shoot/vpn-client/") => "client",
        _ => return 0,
    };
    let wanted = Objects::read("control-plane/vpn-server/provision.yaml").unwrap();
    let wanted = wanted.into_iter().next().unwrap();
    let drain = &wanted[side]["drain"];
    [&drain["delay"], &drain["timeout"]]
        .map(|part| duration(text(part)))
        .iter()
        .sum()
}

#[test]
fn readiness_asks_for_registered_tenant() {
    let objects = Objects::build("control-plane/konnectivity-server").unwrap();
    let set = objects.get("Deployment", "konnectivity-server").unwrap();
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let path = text(&container["readinessProbe"]["httpGet"]["path"]);
    let cluster = path.strip_prefix("/readyz/").unwrap();
    let file = format!("{cluster}.yaml");
    let maps = objects.of_kind("ConfigMap");
    let of = |map: &Value| map["data"].as_object().unwrap().contains_key(&file);
    assert_eq!(maps.into_iter().filter(|map| of(map)).count(), 1, "{path}");
}

fn duration(text: &str) -> u64 {
    text.trim_end_matches('s').parse().unwrap()
}

#[test]
fn node_waits_for_its_proxy_and_its_keeper() {
    for name in ["apiserver-proxy", "apiserver-proxy-keeper"] {
        let objects = Objects::build(&format!("shoot/{name}")).unwrap();
        node_waits_for(objects.get("DaemonSet", name).unwrap());
    }
}

fn node_waits_for(set: &Value) {
    let template = &set["spec"]["template"];
    for metadata in [&set["metadata"], &template["metadata"]] {
        assert_eq!(
            metadata["labels"]["node.gardener.cloud/critical-component"],
            "true"
        );
    }
    let taint = (
        "node.gardener.cloud/critical-components-not-ready",
        "NoSchedule",
    );
    let tolerated = items(&template["spec"]["tolerations"]).any(|own| {
        let key = own["key"].is_null() || own["key"] == taint.0;
        key && own["operator"] == "Exists" && own["effect"] == taint.1
    });
    assert!(tolerated, "{template}");
    assert_eq!(
        template["spec"]["priorityClassName"],
        "system-node-critical"
    );
    assert_eq!(template["spec"]["hostNetwork"], true);
}

#[test]
fn two_node_proxies_fit_during_a_roll() {
    let objects = Objects::build("shoot/apiserver-proxy").unwrap();
    let set = objects.get("DaemonSet", "apiserver-proxy").unwrap();
    let update = &set["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(update["maxUnavailable"], 0, "{update}");
    assert_ne!(update["maxSurge"].as_str().unwrap_or("0"), "0", "{update}");
    let pod = Pod::of(&objects, "DaemonSet", "apiserver-proxy", "node").unwrap();
    for container in pod.containers() {
        // In the hosts' network each of them is the host's, which one pod alone would be given.
        assert_eq!(container.ports(), [], "{}", container.name());
    }
    let proxy = pod.container("proxy").unwrap();
    assert_eq!(proxy.probe("readinessProbe").unwrap().port, 16910);
}

/// Two pods have one port of probes while they follow each other, and the older one may answer there.
#[test]
fn pods_of_handovers_are_asked_by_own_sockets() {
    let mut found = Vec::new();
    for (directory, pod, objects) in pods() {
        let maps = items(&pod.spec["volumes"]).map(|own| text(&own["configMap"]["name"]));
        let files = maps.filter_map(|name| objects.files("ConfigMap", name).ok());
        let files: Vec<String> = files.flat_map(BTreeMap::into_values).collect();
        let all = files.iter().map(|file| file.lines());
        let Some(lines) = { all }.find(|all| all.clone().any(|own| own.starts_with("handover:")))
        else {
            continue;
        };
        assert_eq!(pod.spec["hostNetwork"], true, "{directory}");
        let container = pod.containers().last().unwrap();
        for kind in ["startupProbe", "livenessProbe"] {
            let asked = container.probe_arguments(kind).unwrap().unwrap_or_default();
            let (first, rest) = asked
                .split_first()
                .unwrap_or_else(|| panic!("{directory}: {kind}"));
            assert_eq!(first, "started", "{directory}: {kind}");
            let own = container.arguments(&objects).unwrap();
            assert!(
                rest.iter().all(|word| own.contains(word)),
                "{rest:?} {own:?}"
            );
        }
        // What that asks is this pod's alone.
        let admin = { lines }
            .find_map(|own| own.strip_prefix("admin:"))
            .unwrap();
        let (_, socket) = admin.split_once("unix:").unwrap();
        let (at, _) = socket.rsplit_once('/').unwrap();
        let mount = items(&container.spec["volumeMounts"]).find(|own| own["mountPath"] == at);
        let volume = &mount.unwrap()["name"];
        let volume = items(&pod.spec["volumes"]).find(|own| own["name"] == *volume);
        assert!(
            volume.unwrap()["emptyDir"].is_object(),
            "{directory}: {admin}"
        );
        found.push(directory);
    }
    let wanted = [
        "seed/gateway/overlays/node-handover",
        "shoot/apiserver-proxy",
    ];
    assert_eq!(found, wanted);
}

#[test]
fn gardener_service_selects_our_pods() {
    let objects = Objects::build("seed/gateway/base").unwrap();
    let pod = Pod::of(&objects, "Deployment", "sni-proxy", "sni-proxy").unwrap();
    let selector = serde_json::json!({ "app": "istio-ingressgateway", "istio": "ingressgateway" });
    assert!(selects(&selector, &pod.metadata["labels"]));
    // Ports of Envoy's containers there, and the names that Gardener's Service gives them.
    let ports = pod.container("sni-proxy").unwrap().ports();
    let service = objects.get("Service", "istio-ingressgateway").unwrap();
    // No connection to an endpoint takes a port that is listened on.
    let range = &items(&pod.spec["securityContext"]["sysctls"])
        .next()
        .unwrap()["value"];
    let lowest = text(range).split(' ').next().unwrap().parse().unwrap();
    assert!(ports.iter().all(|own| own.number < lowest), "{range}");
    for (name, outside, inside) in [
        ("tcp", 443, 9443),
        ("http-proxy", 8443, 8443),
        ("tls-tunnel", 8132, 8132),
        ("wireguard", 51820, 9820),
    ] {
        assert!(ports.iter().any(|own| own.number == inside), "{inside}");
        let mut own = items(&service["spec"]["ports"]).filter(|own| own["name"] == name);
        let own = own.next().unwrap();
        assert_eq!(
            (&own["port"], &own["targetPort"]),
            (&outside.into(), &inside.into())
        );
    }
}

#[test]
fn udp_overlay_only_moves_port_to_own_service() {
    let base = Objects::build("seed/gateway/base").unwrap();
    let overlay = Objects::build("seed/gateway/overlays/udp-service").unwrap();
    let ports = |objects: &Objects, name: &str| -> BTreeSet<String> {
        let service = objects.get("Service", name).unwrap();
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        items(&service["spec"]["ports"])
            .map(Value::to_string)
            .collect()
    };
    let (tcp, udp) = (
        ports(&overlay, "istio-ingressgateway"),
        ports(&overlay, "istio-ingressgateway-udp"),
    );
    assert!(tcp.iter().all(|port| port.contains("TCP")), "{tcp:?}");
    assert!(udp.len() == 1 && tcp.is_disjoint(&udp), "{udp:?}");
    assert_eq!(ports(&base, "istio-ingressgateway"), &tcp | &udp);
}

#[test]
fn every_container_is_started_by_a_test() {
    let mut there = BTreeSet::new();
    for (directory, pod, _) in pods() {
        for container in pod.containers() {
            let name = format!("{}/{}", pod.name, container.name());
            // An overlay's own containers, and those that it changes, are started apart.
            there.insert(match directory.split_once("/overlays/") {
                Some((_, overlay)) if starts::OVERLAYS.contains(&overlay) => {
                    format!("{overlay}: {name}")
                }
                _ => name,
            });
        }
    }
    let started: BTreeSet<String> = path::STARTED
        .iter()
        .chain(starts::STARTED)
        .chain(sidecars::STARTED)
        .map(|name| (*name).to_owned())
        .collect();
    assert_eq!(there, started);
}

#[test]
fn gateway_of_a_zone_is_configured_as_the_bases() {
    let text = |directory: &str| {
        let path = deploy::root().join(directory).join("sni-proxy.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (base, zone) = (
        text("seed/gateway/base"),
        text("seed/gateway/overlays/zone"),
    );
    assert_eq!(base.len(), zone.len());
    let mut pairs = base.iter().zip(&zone).filter(|(base, zone)| base != zone);
    let (base, zone) = pairs.next().unwrap();
    assert!(base.contains("gateway: default") && zone.contains("gateway: zone-a"));
    assert_eq!(pairs.next(), None);
    // Gardener's label for it, in every selector.
    let built = Objects::build("seed/gateway/overlays/zone").unwrap();
    let deployment = built.get("Deployment", "sni-proxy").unwrap();
    let selectors = [
        &deployment["spec"]["selector"]["matchLabels"],
        &deployment["spec"]["template"]["metadata"]["labels"],
        &built.get("Service", "istio-ingressgateway").unwrap()["spec"]["selector"],
    ];
    for labels in selectors {
        assert_eq!(labels["istio"], "ingressgateway--zone--zone-a");
    }
}
