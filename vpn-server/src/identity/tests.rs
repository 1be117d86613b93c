//! Files of keys and peers, right and wrong.

use testkit::tempdir::TempDir;
use tunnel::keys;

use super::*;

/// Files in a directory of their own.
struct Files {
    dir: TempDir,
    files: KeyFiles,
    own: Vec<IpNet>,
}

impl Files {
    /// Has `own` private keys.
    fn new(own: usize) -> Self {
        let dir = TempDir::new("identity").unwrap();
        let private = (0..own).map(|number| {
            let path = dir.join(format!("own-{number}"));
            keys::write_new(&path, &keys::generate().unwrap()).unwrap();
            path
        });
        let files = KeyFiles {
            private: private.collect(),
            peers: dir.join("peers.yaml"),
        };
        let own = ["fd00::1/96", "192.168.123.1/24"].map(|text| text.parse().unwrap());
        let own = own.to_vec();
        Self { dir, files, own }
    }

    fn write(&self, peers: &str) {
        self.dir.write("peers.yaml", peers).unwrap();
    }

    fn load(&self, peers: &str) -> Result<Identity, String> {
        self.write(peers);
        load(&self.files, &self.own).map_err(|error| telemetry::chain(&error).to_string())
    }
}

fn key() -> String {
    keys::generate().unwrap().public().to_string()
}

#[test]
fn peers_are_read_with_all_fields() {
    let files = Files::new(2);
    let (one, other) = (key(), key());
    let secret = files.dir.join("psk-0");
    keys::write_new(&secret, &keys::generate().unwrap()).unwrap();
    let text = format!(
        "peers:\n- name: vpn-shoot-0\n  publicKeys: ['{one}', '{other}']\n  presharedKey: psk-0\n  \
         addresses: ['fd00::b:0', 192.168.123.64]\n"
    );
    let identity = files.load(&text).unwrap();
    assert_eq!(identity.keys.len(), 2);
    let peer = &identity.peers[0];
    assert_eq!(peer.name, "vpn-shoot-0");
    assert_eq!(
        peer.public_keys,
        [one.parse().unwrap(), other.parse().unwrap()]
    );
    assert!(peer.preshared_key.is_some());
    assert_eq!(peer.addresses.len(), 2);
    assert!(watched(&files.files).contains(&secret));
}

#[test]
fn mistakes_are_reported_with_their_key() {
    let files = Files::new(1);
    let own = PrivateKey::read(&files.files.private[0]).unwrap().public();
    let (a, b) = (key(), key());
    let peer = |name: &str, keys: &str, addresses: &str| {
        format!("{{ name: {name}, publicKeys: [{keys}], addresses: [{addresses}] }}")
    };
    let good = peer("a", &format!("'{a}'"), "192.168.123.64");
    let with = |other: String| format!("peers: [{good}, {other}]");
    let key = |key: &str| format!("'{key}'");
    let here = "192.168.123.65";
    for (text, problem) in [
        ("peers: []".to_owned(), "peers: at least one client"),
        ("clients: []".to_owned(), "peers.yaml:1:"),
        (
            with(peer("a", &key(&b), here)),
            "peers[1].name: `a` is the name of `peers[0]` already",
        ),
        (
            with(peer("'b c'", &key(&b), here)),
            "peers[1].name: `b c` is not a name",
        ),
        (
            with(peer("b", "", here)),
            "peers[1].publicKeys: b needs at least one key",
        ),
        (
            with(peer("b", &key(&a), here)),
            "peers[1].publicKeys[0]: the key of b is one of a",
        ),
        (
            with(peer("b", &format!("'{b}', '{b}'"), here)),
            "peers[1].publicKeys[1]: the key of b is one of b already",
        ),
        (
            with(peer("b", &key(&own.to_string()), here)),
            "peers[1].publicKeys[0]: the key of b is one of our own",
        ),
        (with(peer("b", "abc", here)), "peers[1].publicKeys[0]: "),
        (
            with(peer("b", &key(&b), "")),
            "peers[1].addresses: b needs at least one address",
        ),
        (
            with(peer("b", &key(&b), "here")),
            "peers[1].addresses[0]: invalid IP address",
        ),
        (
            with(peer("b", &key(&b), "192.168.123.64")),
            "peers[1].addresses[0]: 192.168.123.64 of b is one of a already",
        ),
        (
            with(peer("b", &key(&b), "192.168.123.1")),
            "peers[1].addresses[0]: 192.168.123.1 of b is our own",
        ),
        (
            with(peer("b", &key(&b), "10.0.0.1")),
            "peers[1].addresses[0]: 10.0.0.1 of b is on none of the networks",
        ),
        (
            with(peer("b", &key(&b), here).replace('}', ", presharedKey: absent }")),
            "absent",
        ),
    ] {
        let error = files.load(&text).err().unwrap_or_default();
        assert!(error.contains(problem), "{problem:?} is not in {error:?}");
        assert!(!error.contains(&a) && !error.contains(&b), "a key is shown");
    }
}

#[test]
fn key_pairs_are_limited_to_sixteen() {
    let files = Files::new(2);
    let with = |count: usize| {
        let keys: Vec<String> = (0..count).map(|_| format!("'{}'", key())).collect();
        let keys = keys.join(", ");
        format!("peers: [{{ name: a, publicKeys: [{keys}], addresses: [192.168.123.64] }}]")
    };
    assert!(files.load(&with(8)).is_ok());
    let error = files.load(&with(9)).err().unwrap();
    assert!(
        error.contains("2 own keys and 9 keys of peers make 18 pairs"),
        "{error}"
    );
}

#[test]
fn duplicate_key_files_count_as_one() {
    let files = Files::new(2);
    let key = key();
    let text =
        format!("peers: [{{ name: a, publicKeys: ['{key}'], addresses: [192.168.123.64] }}]");
    assert_eq!(files.load(&text).unwrap().keys.len(), 2);
    std::fs::copy(&files.files.private[0], &files.files.private[1]).unwrap();
    assert_eq!(files.load(&text).unwrap().keys.len(), 1);
}

#[test]
fn equal_identities_compare_equal() {
    let files = Files::new(1);
    let text = |key: &str| {
        format!("peers: [{{ name: a, publicKeys: ['{key}'], addresses: [192.168.123.64] }}]")
    };
    let (one, other) = (key(), key());
    let before = files.load(&text(&one)).unwrap();
    assert!(same(&before, &files.load(&text(&one)).unwrap()));
    assert!(!same(&before, &files.load(&text(&other)).unwrap()));
}
