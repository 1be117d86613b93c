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

/// The file of one peer with these keys.
fn one_peer(keys: &[&str]) -> String {
    let keys = keys.join("', '");
    format!("peers: [{{ name: a, publicKeys: ['{keys}'], addresses: [192.168.123.64] }}]")
}

#[test]
fn mistakes_are_reported_with_their_key() {
    let files = Files::new(1);
    let own = PrivateKey::read(&files.files.private[0]).unwrap().public();
    let (a, b) = (key(), key());
    let mut texts = vec![
        ("peers: []".to_owned(), "peers: at least one client"),
        ("clients: []".to_owned(), "peers.yaml:1:"),
    ];
    let rows = [
        "name: a => peers[1].name: `a` is the name of `peers[0]` already",
        "name: b c => peers[1].name: `b c` is not a name",
        "publicKeys: [] => peers[1].publicKeys: b needs at least one key",
        &format!("publicKeys: ['{a}'] => peers[1].publicKeys[0]: the key of b is one of a"),
        &format!("publicKeys: ['{b}', '{b}'] => publicKeys[1]: the key of b is one of b already"),
        &format!("publicKeys: ['{own}'] => publicKeys[0]: the key of b is one of our own"),
        "publicKeys: [abc] => peers[1].publicKeys[0]: ",
        "addresses: [] => peers[1].addresses: b needs at least one address",
        "addresses: [here] => peers[1].addresses[0]: invalid IP address",
        "addresses: [192.168.123.64] => addresses[0]: 192.168.123.64 of b is one of a already",
        "addresses: [192.168.123.1] => addresses[0]: 192.168.123.1 of b is our own",
        "addresses: [10.0.0.1] => addresses[0]: 10.0.0.1 of b is on none of the networks",
        "presharedKey: absent => absent",
    ];
    for row in &rows {
        let (change, problem) = row.split_once(" => ").unwrap();
        let (changed, value) = change.split_once(": ").unwrap();
        let keys = format!("['{b}']");
        let mut other = BTreeMap::from([
            ("name", "b"),
            ("publicKeys", &keys),
            ("addresses", "[192.168.123.65]"),
        ]);
        other.insert(changed, value);
        let other = other.iter().map(|(key, value)| format!("{key}: {value}"));
        let other = other.collect::<Vec<_>>().join(", ");
        let text = one_peer(&[&a]).replace(" }]", &format!(" }}, {{ {other} }}]"));
        texts.push((text, problem));
    }
    for (text, problem) in texts {
        let error = files.load(&text).err().unwrap_or_default();
        assert!(error.contains(problem), "{problem:?} is not in {error:?}");
        assert!(!error.contains(&a) && !error.contains(&b), "a key is shown");
    }
}

#[test]
fn key_pairs_are_limited_to_sixteen() {
    let files = Files::new(2);
    let keys: Vec<String> = (0..9).map(|_| key()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert!(files.load(&one_peer(&keys[..8])).is_ok());
    let error = files.load(&one_peer(&keys)).err().unwrap();
    assert!(
        error.contains("2 own keys and 9 keys of peers make 18 pairs"),
        "{error}"
    );
}

#[test]
fn equal_key_files_and_identities_are_recognized() {
    let files = Files::new(2);
    let (one, other) = (key(), key());
    let before = files.load(&one_peer(&[&one])).unwrap();
    assert_eq!(before.keys.len(), 2);
    assert!(same(&before, &files.load(&one_peer(&[&one])).unwrap()));
    assert!(!same(&before, &files.load(&one_peer(&[&other])).unwrap()));
    std::fs::copy(&files.files.private[0], &files.files.private[1]).unwrap();
    assert_eq!(files.load(&one_peer(&[&one])).unwrap().keys.len(), 1);
}
