//! Whose signature is whose.

use serde_json::{Value, json};

use crate::token::fixture::{Issuer, claims, encode};
use crate::token::jwt::Jwt;
use crate::token::{KeySet, KeySetError, TokenRefused};

/// Signed with OpenSSL 3.0 by a key of 2048 bits that is kept nowhere.
const RS256: &str = concat!(
    "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2lzc3VlciIsImF1ZCI6WyJrbiJdLCJz",
    "dWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6a3ViZS1zeXN0ZW06YWdlbnQiLCJleHAiOjIwMDAwMDAwMDB9.r2fC",
    "TY1DkfQ_Q_vofB-VMtoPWehAAlgI63dFkEDqPvuXRdreqihB0bN-2sty735mDBaUbyT2FNcL0VkcuOUEkOZEWQXDAp",
    "GSKtn4wWThBsqdxmQKo7bleZeQ5NM-rGXfx8edq4JZ4orbcal0eKZLCk8yt9i2VZOZZXYFC7WhGOPEMf9spvaoAWp4",
    "YTVgAWYQjRVfiNIL8qSZHIHjYh1DOpZJsT38TcdTookwrbpQIcwvTaD9zXzFmjYVISl45NIW7nykxDEYUNULliIALc",
    "1rSGV33IbaZE_UFcTSt7Aj3zUUz3cprDLoPexXV49YWJq8CvfUffDL1pEOUG1K2Rd3cw",
);
const PS256: &str = concat!(
    "eyJhbGciOiJQUzI1NiIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2lzc3VlciIsImF1ZCI6WyJrbiJdLCJz",
    "dWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6a3ViZS1zeXN0ZW06YWdlbnQiLCJleHAiOjIwMDAwMDAwMDB9.FCHw",
    "fvp7fUv6mY1pxZtkAvrUYPXFMKAB18S38yF85eoVHfmKj_pNpb3JqHDk4h39KmUrU_tozl_ky8I2qVoebI4BzE4lZy",
    "vAG0mgcV5WnO326UmxEiB6v4UBoK0pDe7ziBJpcqu2fl_8hrkKYNebxEa4RHU9ZotLDiH-ZReHUz8_EIPuhXWr7_fN",
    "bL-AtlqHLJEXStGtaK03SCNnZFRzja4fC7hmzYXqu7vqSfw6rFFfyBl6-vDWYPsTwQvEC7C-V6gNz1uOPGb2GcRbGQ",
    "VNBiEiFSxJy25yMaU-xpQ7VewfEQ5qJXGqP4ou8Ptu5u8oHUE37sBY7VJUeDewiwFkZg",
);
const MODULUS: &str = concat!(
    "4P9ndFR_BKRHeCDGjoAOgo0fQ3vUR31GaBr20h1SX47Xr0TifE-nL6A4mg7Y8hParuqYvhP8-GGkM0KH1RxPFgDKpJ",
    "R-iSNYLroAYAHqJD8d8nv_Jmu0y5N3bs0KrCP40vOPZOtbUPK3ImrpSfcqvtLaucsjrjSrv5KpTNw6K1blmzYdvhG-",
    "DivMdZ1C2WSIlD3wSaUTNqt4CxyxoF4YsfPFQx6v2hT1oA67rP1B1L5y8vwiu7qNWai0kuN6RSyStAB3lvisDEzm_k",
    "9QgFanwxCIlBIpv5eOS4nf61DR-IYz-htgzE5iDszovguhJ9tTiQgaXVv5q_JExL0gEKJM-Q",
);

fn rsa() -> Value {
    json!({ "kty": "RSA", "kid": "rsa", "n": MODULUS, "e": "AQAB" })
}

fn keys(keys: &[Value]) -> KeySet {
    KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

fn verify(keys: &KeySet, token: &str) -> Result<(), TokenRefused> {
    keys.verify(&Jwt::read(token)?)
}

fn good() -> Value {
    claims("https://issuer", "kn")
}

#[test]
fn signatures_of_each_algorithm_are_verified() {
    let (p256, p384) = (Issuer::es256("a"), Issuer::es384("b"));
    let keys = keys(&[p256.key(), p384.key(), rsa()]);
    for token in [p256.token(&good()), p384.token(&good())] {
        assert_eq!(verify(&keys, &token), Ok(()));
    }
    assert_eq!(verify(&keys, RS256), Ok(()));
    assert_eq!(verify(&keys, PS256), Ok(()));
}

#[test]
fn a_changed_token_is_refused() {
    let issuer = Issuer::es256("a");
    let keys = keys(&[issuer.key(), rsa()]);
    let token = issuer.token(&good());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = signed.split_once('.').unwrap();
    let mut other = good();
    other["sub"] = json!("system:serviceaccount:kube-system:other");
    let swapped = format!("{header}.{}.{signature}", encode(other.to_string()));
    let cut = format!("{signed}.{}", &signature[..signature.len() - 2]);
    let empty = format!("{signed}.");
    let rsa = RS256.replacen(".r2fC", ".r2fD", 1);
    for token in [swapped, cut, empty, rsa] {
        assert_eq!(
            verify(&keys, &token),
            Err(TokenRefused::Signature),
            "{token}"
        );
    }
}

#[test]
fn the_key_is_found_by_its_name() {
    let (old, new) = (Issuer::es256("old"), Issuer::es256("new"));
    let both = keys(&[old.key(), new.key()]);
    assert_eq!(verify(&both, &old.token(&good())), Ok(()));
    assert_eq!(verify(&both, &new.token(&good())), Ok(()));

    let unknown = verify(&keys(&[new.key()]), &old.token(&good()));
    assert_eq!(unknown, Err(TokenRefused::Key));
    let impostor = Issuer::es256("new").token(&good());
    assert_eq!(verify(&both, &impostor), Err(TokenRefused::Signature));

    let nameless = new.sign(r#"{"alg":"ES256"}"#, &good().to_string());
    assert_eq!(verify(&both, &nameless), Ok(()), "each is tried");
}

#[test]
fn a_token_cannot_choose_how_its_key_is_used() {
    let issuer = Issuer::es256("a");
    let mut only_rs256 = rsa();
    only_rs256["alg"] = json!("RS256");
    let keys = keys(&[issuer.key(), only_rs256]);
    let claims = good().to_string();
    for algorithm in [
        "none", "None", "HS256", "ES256K", "EdDSA", "RS512", "es256", "",
    ] {
        let header = json!({ "alg": algorithm, "kid": "a" }).to_string();
        let refused = verify(&keys, &issuer.sign(&header, &claims));
        assert_eq!(refused, Err(TokenRefused::Malformed), "{algorithm}");
    }
    for algorithm in ["ES384", "RS256", "PS256"] {
        let header = json!({ "alg": algorithm, "kid": "a" }).to_string();
        let refused = verify(&keys, &issuer.sign(&header, &claims));
        assert_eq!(refused, Err(TokenRefused::Key), "{algorithm}");
    }
    assert_eq!(verify(&keys, RS256), Ok(()));
    assert_eq!(verify(&keys, PS256), Err(TokenRefused::Key));
}

#[test]
fn keys_for_other_ends_are_left_out() {
    let key = Issuer::es256("a").key();
    let mut encrypting = key.clone();
    encrypting["use"] = json!("enc");
    let mut signing = key.clone();
    signing["key_ops"] = json!(["sign"]);
    let mut short = key.clone();
    short["x"] = json!("AAAA");
    let secret = json!({ "kty": "oct", "kid": "a", "k": "c2VjcmV0" });
    let edwards = json!({ "kty": "OKP", "crv": "Ed25519", "x": "AAAA" });
    for unusable in [encrypting, signing, short, secret, edwards] {
        let alone = json!({ "keys": [unusable] }).to_string();
        let error = KeySet::parse(alone.as_bytes()).unwrap_err();
        assert_eq!(error, KeySetError::NoneUsable(1), "{alone}");
        keys(&[unusable, key.clone()]);
    }
}

#[test]
fn malformed_key_set_is_refused() {
    let parse = |text: &str| KeySet::parse(text.as_bytes()).unwrap_err();
    for text in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[],"keys":[]}"#] {
        assert_eq!(parse(text), KeySetError::Malformed, "{text}");
    }
    assert_eq!(parse(r#"{"keys":[]}"#), KeySetError::NoneUsable(0));
    let many = json!({ "keys": vec![1; 101] }).to_string();
    assert_eq!(parse(&many), KeySetError::TooMany(101));
}

/// 1032 bits: `ring` has no say in which keys are in a set, but verifies with none so short.
#[test]
fn a_short_rsa_key_verifies_nothing() {
    let mut key = rsa();
    key["n"] = json!(&MODULUS[..172]);
    assert_eq!(verify(&keys(&[key]), RS256), Err(TokenRefused::Signature));
}
