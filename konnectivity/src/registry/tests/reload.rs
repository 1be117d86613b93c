//! Files that change while a server runs.

use std::os::unix::fs::symlink;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::token::KeySet;

/// Returns whether the one tenant that changed keeps its peers.
fn keeps_peers(registry: &Registry, before: &Tenants) -> bool {
    let current = registry.current();
    assert_eq!(current.all().count(), before.all().count());
    let both = current.all().zip(before.all());
    let changed: Vec<_> = both.filter(|(spec, older)| spec != older).collect();
    let [(spec, older)] = changed.as_slice() else {
        panic!("not one changed tenant: {changed:?}");
    };
    spec.keeps_peers_of(older)
}

#[test]
fn broken_file_keeps_its_tenant() {
    let site = Site::new();
    site.add("a");
    let b = site.add("b");
    let registry = site.open();
    let generation = *registry.changes().borrow();
    let before = registry.current();

    for text in ["", "serverNames: [", "unknown: 1", "\u{0}"] {
        site.write("b.yaml", text);
        registry.reload();
        assert_eq!(ids(&registry), ["a", "b"], "{text:?}");
        assert_eq!(broken(&registry), ["b"], "{text:?}");
    }
    assert_eq!(*registry.changes().borrow(), generation);
    assert!(Arc::ptr_eq(&before, &registry.current()));
    let client = site.client(Some(&agent_of(&b, "b")));
    let met = meet(&registry.current(), Port::Agents, B, &client);
    assert_eq!(met, "tenant b");

    site.write("b.yaml", definition("b") + "serverCount: 3\n");
    registry.reload();
    assert!(registry.broken().is_empty());
    assert_eq!(*registry.changes().borrow(), generation + 1);
}

#[test]
fn broken_referenced_file_keeps_its_tenant() {
    let site = Site::new();
    site.add("a");
    site.write("keys.jwks", KEYS);
    site.write("api.kubeconfig", KUBECONFIG);
    let tokens = "  tokens: { issuer: i, audience: a, jwks: keys.jwks, \
                  kubeconfig: api.kubeconfig }\nfrontends:";
    site.write("a.yaml", definition("a").replace("frontends:", tokens));
    let registry = site.open();
    assert_eq!(registry.broken(), []);
    let before = registry.current();

    let program = KUBECONFIG.replace("token: t", "exec: { command: /bin/true }");
    for (name, text) in [
        ("a.crt", "no PEM"),
        ("keys.jwks", "{}"),
        ("keys.jwks", "{\"keys\":[]}"),
        ("keys.jwks", "{\"keys\":[{\"kty\":\"EC\"}]}"),
        ("api.kubeconfig", "no: [kubeconfig"),
        ("api.kubeconfig", "{}"),
        ("api.kubeconfig", &program),
    ] {
        let good = std::fs::read(site.registry_dir().join(name)).unwrap();
        site.write(name, text);
        registry.reload();
        let [(_, reason)] = registry.broken().try_into().unwrap();
        assert!(reason.contains(name), "{reason}");
        assert!(Arc::ptr_eq(&before, &registry.current()));
        site.remove(name);
        registry.reload();
        assert!(Arc::ptr_eq(&before, &registry.current()));
        site.write(name, good);
        registry.reload();
        assert_eq!(registry.broken(), []);
    }
    // New keys are another value, and no reason to cut anybody.
    let more = KEYS.replace("one", "another");
    site.write("keys.jwks", &more);
    registry.reload();
    assert!(keeps_peers(&registry, &before));
    let current = registry.current();
    let spec = current.get(&TenantId::new("a")).unwrap();
    let keys = spec.tokens.as_ref().unwrap().keys.clone();
    assert_eq!(keys, KeySet::parse(more.as_bytes()).ok());
}

#[test]
fn a_removed_file_removes_its_tenant() {
    let site = Site::new();
    site.add("a");
    let b = site.add("b");
    let registry = site.open();
    let before = registry.current();

    site.remove("b.yaml");
    registry.reload();

    let current = registry.current();
    let left: Vec<_> = current.all().map(|spec| spec.id.as_str()).collect();
    assert_eq!((before.all().count(), left), (2, vec!["a"]));
    assert!(current.by_server_name(B).is_none());
    let client = site.nameless(Some(&agent_of(&b, "b")));
    let met = meet(&current, Port::Agents, B, &client);
    assert_eq!(met, "handshake");
}

#[test]
fn a_directory_that_is_gone_keeps_everything() {
    let site = Site::new();
    site.add("a");
    let registry = site.open();
    let before = registry.current();
    let (here, away) = (site.registry_dir(), site.dir.join("away"));

    std::fs::rename(&here, &away).unwrap();
    registry.reload();
    assert!(Arc::ptr_eq(&before, &registry.current()));
    std::fs::write(&here, "a file").unwrap();
    registry.reload();
    assert!(Arc::ptr_eq(&before, &registry.current()));
    std::fs::remove_file(&here).unwrap();
    std::fs::create_dir(&here).unwrap();
    registry.reload();
    assert_eq!(ids(&registry), [""; 0]);
}

#[test]
fn foreign_and_broken_files_stop_no_tenant() {
    let site = Site::new();
    site.add("a");
    site.write(".hidden.yaml", "x");
    site.write("a.yml", "x");
    site.write("README", "x");
    site.write("Not_A_Label.yaml", definition("x"));
    site.write("d.yaml/inner", "x");
    site.write("e.yaml", "agents: 1");
    let registry = site.open();
    assert_eq!(ids(&registry), ["a"]);
    assert_eq!(broken(&registry), ["Not_A_Label", "d", "e"]);
}

#[test]
fn a_newcomer_yields_to_who_is_there() {
    let site = Site::new();
    let a = site.add("a");
    let registry = site.open();

    // `0` would come first by its name.
    site.write("0.yaml", definition("a"));
    registry.reload();

    assert_eq!(ids(&registry), ["a"]);
    let [(id, reason)] = registry.broken().try_into().unwrap();
    assert_eq!(id.as_str(), "0");
    assert!(reason.contains("0.yaml: serverNames: "), "{reason}");
    assert!(reason.contains("tenant a"), "{reason}");
    let client = site.client(Some(&agent_of(&a, "a")));
    let met = meet(&registry.current(), Port::Agents, A, &client);
    assert_eq!(met, "tenant a");
}

#[test]
fn neither_newcomer_gets_a_shared_claim() {
    let site = Site::new();
    site.add("a");
    site.add("c");
    site.write("b.yaml", definition("a"));
    let registry = site.open();
    assert_eq!(ids(&registry), ["c"]);
    assert_eq!(broken(&registry), ["a", "b"]);

    site.remove("b.yaml");
    registry.reload();
    assert_eq!(ids(&registry), ["a", "c"]);
    assert_eq!(registry.broken(), []);
}

#[test]
fn two_tenants_may_swap_what_they_claim_at_once() {
    let site = Site::new();
    site.add("a");
    site.add("b");
    let registry = site.open();
    site.write("a.yaml", definition("b"));
    site.write("b.yaml", definition("a"));
    registry.reload();
    assert_eq!(registry.broken(), []);

    // One of the two is broken: what it keeps is not the other's.
    site.write("a.yaml", definition("a"));
    site.write("b.yaml", "broken");
    registry.reload();
    assert_eq!(broken(&registry), ["a", "b"]);
    let current = registry.current();
    let named = current.by_server_name(A).unwrap();
    assert_eq!(named.id.as_str(), "b");
}

#[test]
fn peers_stay_while_their_name_is_valid() {
    let site = Site::new();
    let old = site.add("a");
    let new = Authority::new("new").unwrap();
    let registry = site.open();
    let limits = definition("a") + "limits: { agents: 1 }\n";
    let agents = limits.replace(&format!("{AGENT}a\""), "urn:other\"");
    let frontends = agents.replace(&format!("{AGENT}a/api"), "urn:api");
    for (name, text, kept) in [
        ("a.yaml", limits.as_str(), true),
        ("a.crt", &(old.pem().to_owned() + new.pem()), true),
        ("a.crt", new.pem(), true),
        ("a.crt", old.pem(), false),
        ("a.yaml", &agents, false),
        ("a.yaml", &frontends, false),
    ] {
        let before = registry.current();
        site.write(name, text);
        registry.reload();
        assert_eq!(keeps_peers(&registry, &before), kept, "{name}: {text}");
    }
}

#[test]
fn readings_are_counted() {
    let site = Site::new();
    site.add("a");
    let registry = site.open();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    registry.observe(move |loaded| sink.lock().unwrap().push(*loaded));

    site.write("b.yaml", "broken");
    registry.reload();
    registry.reload();
    site.remove("b.yaml");
    site.remove("a.yaml");
    registry.reload();

    let seen = seen.lock().unwrap();
    let loaded = |[changed, tenants, refused, broken]: [usize; 4]| Loaded {
        changed,
        tenants,
        refused,
        broken,
    };
    let expected = [[0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]];
    assert_eq!(*seen, expected.map(loaded));
}

#[test]
fn a_single_tenant_s_authorities_are_read_again() {
    let site = Site::new();
    let (old, new) = (Authority::new("x").unwrap(), Authority::new("y").unwrap());
    let path = old.write(&site.dir.join("x.crt")).unwrap();
    let registry = site.single(SingleParams {
        agents_ca: Some(path.clone()),
        ..whole()
    });
    let client = site.client(Some(&agent_of(&new, "a")));
    let met = || meet(&registry.current(), Port::Agents, A, &client);
    assert_eq!(met(), "handshake");

    std::fs::write(&path, "broken").unwrap();
    registry.reload();
    assert_eq!(broken(&registry), ["default"]);
    new.write(&path).unwrap();
    registry.reload();
    assert_eq!(met(), "tenant default");
    assert_eq!(registry.broken(), []);
}

#[test]
fn the_server_s_own_certificate_is_read_again() {
    let mut site = Site::new();
    let a = site.add("a");
    let registry = site.open();
    let agent = agent_of(&a, "a");
    let met = |client| meet(&registry.current(), Port::Agents, A, &client);
    let before = site.client(Some(&agent));
    assert_eq!(met(before.clone()), "tenant a");

    site.dir.write("server.crt", "broken").unwrap();
    registry.reload();
    assert_eq!(met(site.client(Some(&agent))), "tenant a");
    let authority = Authority::new("servers").unwrap();
    let server = authority.server(&[A]).unwrap();
    server.write(site.dir.path(), "server").unwrap();
    registry.reload();
    assert_eq!(met(site.client(Some(&agent))), "handshake");
    site.server_ca = authority.pem().to_owned();
    assert_eq!(met(site.client(Some(&agent))), "tenant a");
    // A session that was begun before goes on.
    assert_eq!(met(before), "tenant a");
}

#[test]
fn a_check_names_what_cannot_be_used() {
    let site = Site::new();
    site.add("a");
    site.write("b.yaml", "broken");
    let faults = Registry::faults(&site.registry_dir()).unwrap();
    let [(id, reason)] = faults.try_into().unwrap();
    assert_eq!(id.as_str(), "b");
    assert!(reason.contains("b.yaml:1:1: "), "{reason}");
}

#[test]
fn unusable_file_of_a_flag_stops_the_start() {
    let site = Site::new();
    let missing = TenantSource::Registry(site.dir.join("missing"));
    let refused = Registry::new(missing, &site.tls).err().unwrap();
    assert!(matches!(refused, RegistryError::Directory { .. }));
    assert!(refused.to_string().contains("missing"), "{refused}");
    let mut params = whole();
    params.agents_ca = Some(site.dir.join("missing.crt"));
    let single = |params| TenantSource::Single(Box::new(params));
    let refused = Registry::new(single(params), &site.tls);
    assert!(matches!(refused, Err(RegistryError::Authorities { .. })));
    let mut tls = site.tls.clone();
    tls.agents_pair.as_mut().unwrap().key = site.dir.join("missing.key");
    let refused = Registry::new(single(whole()), &tls);
    assert!(matches!(refused, Err(RegistryError::Pair(_))));
}

/// Watches while `change` is made, until the snapshot is another.
async fn watched(registry: &Arc<Registry>, change: impl FnOnce()) {
    let mut changes = registry.changes();
    let watch = async {
        tokio::select! {
            () = registry.watch() => panic!("it never ends"),
            changed = changes.changed() => changed.unwrap(),
        }
    };
    change();
    // As long as a test may take; the watch itself needs two seconds of a paused clock.
    tokio::time::timeout(Duration::from_secs(3600), watch)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn changes_are_noticed_however_they_are_made() {
    let site = Site::new();
    site.add("a");
    let registry = site.open();

    let more = definition("a") + "serverCount: 2\n";
    watched(&registry, || site.write("a.yaml", &more)).await;
    watched(&registry, || {
        site.dir
            .replace("registry/a.yaml", definition("a"))
            .map(drop)
            .unwrap();
    })
    .await;
    watched(&registry, || drop(site.add("b"))).await;
    watched(&registry, || site.remove("a.yaml")).await;
    let ca = Authority::new("new").unwrap();
    watched(&registry, || site.write("b.crt", ca.pem())).await;

    assert_eq!(ids(&registry), ["b"]);
    let client = site.client(Some(&agent_of(&ca, "b")));
    let met = meet(&registry.current(), Port::Agents, B, &client);
    assert_eq!(met, "tenant b");
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_is_swapped_is_noticed() {
    let site = Site::new();
    let authority = Authority::new("a").unwrap();
    let dir = site.registry_dir();
    let version = |name: &str, text: String| {
        site.write(&format!("{name}/a.yaml"), text);
        site.write(&format!("{name}/a.crt"), authority.pem());
    };
    version("..1", definition("a"));
    symlink("..1", dir.join("..data")).unwrap();
    for name in ["a.yaml", "a.crt"] {
        symlink(format!("..data/{name}"), dir.join(name)).unwrap();
    }
    let registry = site.open();
    assert_eq!(ids(&registry), ["a"]);

    version("..2", definition("a") + "serverCount: 2\n");
    watched(&registry, || {
        symlink("..2", dir.join("..data_tmp")).unwrap();
        std::fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        std::fs::remove_dir_all(dir.join("..1")).unwrap();
    })
    .await;

    let current = registry.current();
    assert_eq!(current.get(&TenantId::new("a")).unwrap().server_count, 2);
}
