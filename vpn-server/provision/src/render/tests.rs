//! What each end gets in each phase, and that it fits together.

use std::collections::BTreeSet;

use super::super::fixture::{Shoot, changed, text_with, wanted};
use super::*;
use crate::config::Rotate;

fn read(text: &str) -> Value {
    settings::yaml::from_str(text, "x".as_ref()).unwrap()
}

fn keys_of(value: &Value) -> Vec<String> {
    let keys = value["publicKeys"].as_array().unwrap();
    keys.iter()
        .map(|key| key.as_str().unwrap().to_owned())
        .collect()
}

/// Which of the old and the new key are among `keys`.
fn ages(keys: impl IntoIterator<Item = String>, old: &str) -> String {
    let ages = keys.into_iter();
    let ages: BTreeSet<_> = ages
        .map(|key| if key == old { "old" } else { "new" })
        .collect();
    ages.into_iter().rev().collect::<Vec<_>>().join(" ")
}

#[test]
fn phases_render_keys_as_documented() {
    let mut shoot = Shoot::new(wanted());
    // What servers have, clients know of them, clients have, and servers know of them.
    for (rotate, expected) in [
        (Rotate::Start, ["old new", "old", "old", "old new"]),
        (Rotate::Start, ["old new", "old new", "old new", "old new"]),
        (Rotate::Complete, ["old new", "new", "new", "old new"]),
    ] {
        shoot.rotate(rotate).unwrap();
        shoot.pass(3600);
        for number in 0..2 {
            let [server, client] =
                [server_name(number), client_name(number)].map(|name| format!("{name}-keys"));
            let old_server = &shoot.state.servers[number].keys.current;
            let old_client = &shoot.state.clients[number].current;
            let config = read(&shoot.file(&client, "vpn-client.yaml"));
            let peers = read(&shoot.file(&server, "peers.yaml"));
            let has = |secret: &str, old: &Secret| {
                let files = PRIVATE.map(|file| shoot.file(secret, file).trim().to_owned());
                ages(files, old.text())
            };
            let knows = |entry: &Value, old: &Secret| ages(keys_of(entry), &old.public().unwrap());
            let found = [
                has(&server, old_server),
                knows(&config["servers"][number], old_server),
                has(&client, old_client),
                knows(&peers["peers"][number], old_client),
            ];
            assert_eq!(found, expected, "{:?}: {number}", shoot.state.phase);
        }
    }
}

#[test]
fn phases_render_authorities_as_documented() {
    let mut shoot = Shoot::new(wanted());
    let steps = [
        (Rotate::Start, ["old new", "old", "old", "old"]),
        (Rotate::Start, ["old new", "old", "old new", "new"]),
        (Rotate::Complete, ["new", "new", "old new", "new"]),
    ];
    for (rotate, expected) in steps {
        shoot.rotate(rotate).unwrap();
        shoot.pass(3600);
        let (old, new) = (
            shoot.state.authorities.current.clone(),
            shoot.state.authorities.newest().clone(),
        );
        let trusted = |secret: &str| -> String {
            let bundle = shoot.file(secret, "ca.crt");
            let named = [("old", &old), ("new", &new)];
            let there = named
                .iter()
                .filter(|(_, one)| bundle.contains(&one.certificate));
            there.map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
        };
        let by = |issuer: &str| if issuer == old.name { "old" } else { "new" }.to_owned();
        let found = [
            trusted("vpn-seed-server-tls"),
            by(&shoot.state.server_certificate.issuer),
            trusted("vpn-seed-server-client"),
            by(&shoot.state.client_certificate.issuer),
        ];
        assert_eq!(found, expected, "{:?}", shoot.state.phase);
    }
}

#[test]
fn secrets_change_at_most_once_per_phase() {
    let mut shoot = Shoot::new(wanted());
    let mut before = shoot.objects();
    for (rotate, changed) in [
        (Rotate::Start, "server tls service"),
        (Rotate::Start, "client api"),
        (Rotate::Complete, "client tls"),
        (Rotate::Complete, "server api service"),
    ] {
        shoot.rotate(rotate).unwrap();
        shoot.pass(3600);
        let after = shoot.objects();
        let differs = |name: &str| {
            let find = |all: &Objects| {
                let mut secrets = all.secrets.iter();
                secrets.find(|one| one.name == name).cloned()
            };
            find(&before) != find(&after)
        };
        let mut found: Vec<_> = [
            ("server", "vpn-seed-server-0-keys"),
            ("client", "vpn-shoot-0-keys"),
            ("tls", "vpn-seed-server-tls"),
            ("api", "vpn-seed-server-client"),
        ]
        .iter()
        .filter(|(_, name)| differs(name))
        .map(|(part, _)| *part)
        .collect();
        found.extend((before.services != after.services).then_some("service"));
        let mut expected: Vec<_> = changed.split(' ').collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{:?}", shoot.state.phase);
        before = after;
    }
}

#[test]
fn rotation_keeps_file_names_and_configs() {
    let mut shoot = Shoot::new(wanted());
    let picture = |shoot: &Shoot| {
        let objects = shoot.objects();
        let names = objects.secrets.iter().map(|one| {
            let files: Vec<String> = one.data.keys().cloned().collect();
            (one.name.clone(), files)
        });
        let names: Vec<_> = names.collect();
        let mut client = read(&shoot.file("vpn-shoot-0-keys", "vpn-client.yaml"));
        for server in client["servers"].as_array_mut().unwrap() {
            server["publicKeys"] = json!(null);
        }
        let server = shoot.file("vpn-seed-server-0-keys", "vpn-server.yaml");
        (names, client, server)
    };
    let before = picture(&shoot);
    for rotate in [
        Rotate::Start,
        Rotate::Start,
        Rotate::Complete,
        Rotate::Complete,
    ] {
        shoot.rotate(rotate).unwrap();
        shoot.pass(3600);
        assert_eq!(picture(&shoot), before);
    }
}

#[test]
fn both_ends_agree_on_addresses_ids_and_keys() {
    let shoot = Shoot::new(wanted());
    let server = read(&shoot.file("vpn-seed-server-1-keys", "vpn-server.yaml"));
    let peers = read(&shoot.file("vpn-seed-server-1-keys", "peers.yaml"));
    let client = read(&shoot.file("vpn-shoot-0-keys", "vpn-client.yaml"));
    assert_eq!(server["routeId"], 18);
    assert_eq!(server["addresses"], json!(["192.168.123.2/24"]));
    assert_eq!(server["trustedGateways"], json!(["10.0.0.0/8"]));
    assert_eq!(server["proxy"]["ca"], "/tls/ca.crt");
    assert_eq!(peers["peers"][0]["addresses"], json!(["192.168.123.64"]));
    assert_eq!(peers["peers"][0]["presharedKey"], "psk-0");
    assert_eq!(client["addresses"], json!(["192.168.123.64/24"]));
    assert_eq!(client["endpoint"]["address"], "api.example.com");
    let entry = &client["servers"][1];
    assert_eq!(entry["routeId"], 18);
    assert_eq!(entry["addresses"], json!(["192.168.123.2"]));
    assert_eq!(entry["presharedKey"], "psk-1");
    let shared = shoot.file("vpn-seed-server-1-keys", "psk-0");
    assert_eq!(shared, shoot.file("vpn-shoot-0-keys", "psk-1"));
    assert_ne!(shared, shoot.file("vpn-seed-server-1-keys", "psk-1"));
    let service = &shoot.objects().services[1];
    let note = |name: &str| service.annotations[&format!("rhizome.gardener.cloud/{name}")].clone();
    assert_eq!(note("wireguard-route-id"), "18");
    assert_eq!(
        note("connect-destination"),
        entry["value"].as_str().unwrap()
    );
    assert_eq!(
        note("wireguard-public-keys"),
        entry["publicKeys"][0].as_str().unwrap()
    );
}

#[test]
fn disabled_preshared_keys_leave_no_files() {
    let shoot = Shoot::new(changed("routeIds", "presharedKeys: false\nrouteIds"));
    for secret in shoot.objects().secrets {
        let (mut files, mut texts) = (secret.data.keys(), secret.data.values());
        assert!(
            !files.any(|file| file.starts_with("psk")),
            "{}",
            secret.name
        );
        assert!(!texts.any(|text| text.contains("presharedKey")));
    }
}

#[test]
fn config_that_either_end_refuses_is_refused() {
    let (server, client) = ("vpn-seed-server-0", "vpn-shoot-0");
    for (to, what, end) in [
        ("server: { flows: 0, ", "flows: not between", server),
        ("server: { flwos: 1, ", "flwos", server),
        ("server: { listen: x, ", "listen", server),
        ("client: { mtu: 1 }\nserver: { ", "mtu: 1 is not", client),
        ("client: { mut: 1 }\nserver: { ", "mut", client),
    ] {
        let shoot = Shoot::new(changed("server: { ", to));
        let Err(error) = render(&shoot.state, &shoot.wanted) else {
            panic!("{to:?} was taken");
        };
        let text = telemetry::chain(&error).to_string();
        assert!(text.contains(what) && text.contains(end), "{text}");
    }
}

#[test]
fn change_that_pods_do_not_apply_needs_restart() {
    let mut shoot = Shoot::new(wanted());
    let first = shoot.objects();
    let differing = |shoot: &Shoot| {
        let all = shoot.objects().secrets.into_iter().filter_map(|object| {
            let same = first.secrets.iter().find(|one| one.name == object.name)?;
            let keys = restart_keys(&object, |file| same.data.get(file).cloned());
            (!keys.is_empty()).then(|| (object.name, keys.join(" ")))
        });
        all.collect::<Vec<_>>()
    };
    let of_both = |keys: &str| {
        let names = [
            "vpn-seed-server-0",
            "vpn-seed-server-1",
            "vpn-shoot-0",
            "vpn-shoot-1",
        ];
        names.map(|name| (format!("{name}-keys"), keys.to_owned()))
    };
    let pods = r#"pods: ["100.96.0.0/11""#;
    shoot.wanted = changed(pods, &format!("{pods}, \"100.128.0.0/16\""));
    assert_eq!(differing(&shoot), of_both("networks"));
    // The first network of IPv6 gives each end an address.
    shoot.wanted = changed(pods, &format!("{pods}, \"2001:db8::/64\""));
    assert_eq!(differing(&shoot), of_both("addresses networks"));
    shoot.wanted = changed("resolvers: [", "connectTimeout: 5s, resolvers: [");
    assert_eq!(differing(&shoot), of_both("proxy")[..2]);
    shoot.wanted = changed("tcpPort: 8132", "tcpPort: 8133");
    assert_eq!(differing(&shoot), of_both("endpoint")[2..]);
    // Said in words, a default changes nothing.
    shoot.wanted = changed("server: {", "server: { mtu: 1420,");
    assert!(differing(&shoot).is_empty());
    // Nor does a rotation.
    shoot.wanted = wanted();
    shoot.rotate(Rotate::Start).unwrap();
    assert!(differing(&shoot).is_empty());
}

#[test]
fn check_refuses_what_an_end_refuses() {
    let dir = testkit::tempdir::TempDir::new("provision").unwrap();
    let check = |changes: &[_]| {
        let file = dir.write("p.yaml", text_with(changes)).unwrap();
        crate::check(&file)
    };
    assert!(check(&[]).is_ok());
    assert!(check(&[("routeIds: [17, 18]", "")]).is_ok());
    let error = check(&[("tcpPort", "tcpport")]).unwrap_err();
    assert!(error.is_configuration());
    let text = telemetry::chain(&error).to_string();
    assert!(text.contains("tcpport"), "{text}");
}
