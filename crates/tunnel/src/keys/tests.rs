//! Keys as text and in files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use testkit::tempdir::TempDir;

use super::*;

/// The first pair of RFC 7748 §6.1, Alice's.
const PRIVATE: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
const PUBLIC: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

/// A new directory, and the path of a key in it.
fn place() -> (TempDir, PathBuf) {
    let dir = TempDir::new("keys").unwrap();
    let path = dir.path().join("key");
    (dir, path)
}

#[test]
fn public_key_is_that_of_the_rfc() {
    let private: PrivateKey = PRIVATE.parse().unwrap();
    assert_eq!(private.public().to_string(), PUBLIC);
    assert_eq!(PUBLIC.parse(), Ok(private.public()));
}

#[test]
fn text_of_other_lengths_and_alphabets_is_no_key() {
    let longer = format!("{PUBLIC}\n");
    let broken = [
        "",
        "AAAA",
        &PUBLIC[..43],
        &longer,
        "hSDwCYkwp1R0i33ctD73Wg2_Og0mOBr066SpjqqbTmo=",
        // Bits set behind the last byte.
        "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmp=",
        // 33 bytes.
        "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmoA",
    ];
    for text in broken {
        assert_eq!(text.parse::<PublicKey>(), Err(KeyTextError::Malformed));
        assert!(text.parse::<PrivateKey>().is_err(), "{text}");
    }
}

#[test]
fn keys_that_protect_nothing_are_refused() {
    let zero = STANDARD.encode([0; 32]);
    assert_eq!(zero.parse::<PublicKey>(), Err(KeyTextError::Weak));
    assert_eq!(zero.parse::<PrivateKey>().err(), Some(KeyTextError::Weak));
    assert_eq!(zero.parse::<PresharedKey>().err(), Some(KeyTextError::Weak));
    let mut one = [0; 32];
    one[0] = 1;
    assert_eq!(PublicKey::try_from(one), Err(KeyTextError::Weak));
    // p - 1, of order two.
    let mut minus_one = [0xff; 32];
    (minus_one[0], minus_one[31]) = (0xec, 0x7f);
    assert_eq!(PublicKey::try_from(minus_one), Err(KeyTextError::Weak));
}

#[test]
fn secrets_are_never_shown() {
    let private: PrivateKey = PRIVATE.parse().unwrap();
    let preshared: PresharedKey = PRIVATE.parse().unwrap();
    let shown = format!("{private:?} {preshared:?}");
    assert_eq!(shown, "PrivateKey(..) PresharedKey(..)");
    let (_dir, path) = place();
    fs::write(&path, "dwdtCnMYpX08FsFy").unwrap();
    let error = PrivateKey::read(&path).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("dwdt"), "{shown}");
    assert!(shown.contains(path.to_str().unwrap()), "{shown}");
}

#[test]
fn public_key_debug_shows_a_part() {
    let key: PublicKey = PUBLIC.parse().unwrap();
    assert_eq!(format!("{key:?}"), "PublicKey(hSDwCY…)");
}

#[test]
fn written_key_is_readable_by_owner_only() {
    let (dir, path) = place();
    let key = generate().unwrap();
    write_new(&path, &key).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::read(&path).unwrap().len(), TEXT_LEN + 1);
    assert_eq!(PrivateKey::read(&path).unwrap().as_bytes(), key.as_bytes());
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 1, "the draft is gone");
}

#[test]
fn write_new_overwrites_no_file() {
    let (dir, path) = place();
    fs::write(&path, "precious").unwrap();
    let error = write_new(&path, &generate().unwrap()).unwrap_err();
    assert!(matches!(error, KeyError::Exists(_)), "{error:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn missing_directory_is_an_error_with_the_name() {
    let error = write_new(Path::new("/nowhere/key"), &generate().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "writing a key to /nowhere/key");
    let error = PrivateKey::read(Path::new("/nowhere/key")).unwrap_err();
    assert_eq!(error.to_string(), "reading the key in /nowhere/key");
}

#[test]
fn key_file_allows_line_end_and_limits_size() {
    let (_dir, path) = place();
    for end in ["", "\n", "\r\n", " \n\n"] {
        fs::write(&path, format!("{PRIVATE}{end}")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(PrivateKey::read(&path).is_ok(), "{end:?}");
        assert!(PresharedKey::read(&path).is_ok(), "{end:?}");
    }
    let twice = format!("{PRIVATE}\n{PRIVATE}\n");
    let apart = format!("{PRIVATE}{}{PRIVATE}", " ".repeat(20));
    for text in [twice, apart, " ".repeat(1 << 20)] {
        fs::write(&path, text).unwrap();
        assert!(PrivateKey::read(&path).is_err());
    }
}

#[test]
fn generated_keys_differ_and_are_clamped() {
    let keys = [generate().unwrap(), generate().unwrap()];
    assert_ne!(keys[0].as_bytes(), keys[1].as_bytes());
    for key in keys {
        assert_eq!(key.as_bytes()[0] & 7, 0);
        assert_eq!(key.as_bytes()[31] & 0xc0, 0x40);
        assert!(key.public().to_string().parse::<PublicKey>().is_ok());
    }
}
