//! Keys of the labels by which pods ask for access, with the shortening of those that are too long.
//!
//! Controllers that label pods must shorten in the same way.

use std::borrow::Cow;

use ring::digest::{SHA256, digest};

use crate::state::Labels;

/// Prefix of the keys, and of the annotations that go with them.
pub(super) const PREFIX: &str = "networking.resources.gardener.cloud/";

/// Value of a label that asks for access.
pub(super) const ALLOWED: &str = "allowed";

/// Most bytes of a label key behind its prefix, in Kubernetes.
const MAX_KEY_BYTES: usize = 63;

/// Bytes that are kept of a key that is too long.
const KEPT: usize = 57;

/// Digits of the hash behind them.
const DIGITS: usize = 5;

/// Returns the key, without its prefix, by which a pod's label asks for access: as it is up to 63
/// bytes, otherwise its first 57, a hyphen and the first five digits of its SHA-256.
pub fn shorten(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_KEY_BYTES {
        return Cow::Borrowed(name);
    }
    let kept = &name[..name.floor_char_boundary(KEPT)];
    Cow::Owned(format!("{kept}-{}", hash(name.as_bytes(), DIGITS)))
}

/// Returns the first digits of the SHA-256, in lower-case hexadecimal.
pub(super) fn hash(bytes: &[u8], digits: usize) -> String {
    let sum = digest(&SHA256, bytes);
    let mut text: String = sum
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    text.truncate(digits);
    text
}

/// Returns the keys in a pod's labels that ask for access.
pub(super) fn requested_keys(labels: &Labels) -> impl Iterator<Item = &str> {
    let asks = |key: &str| {
        key.strip_prefix(PREFIX)
            .is_some_and(|name| name.starts_with("to-"))
    };
    let all = labels.iter();
    all.filter(move |(key, value)| *value == ALLOWED && asks(key))
        .map(|(key, _)| key.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_up_to_63_bytes_are_kept() {
        for name in [
            "to-foo-tcp-1234".to_owned(),
            format!("to-{}-tcp-443", "a".repeat(52)),
        ] {
            assert_eq!(shorten(&name), name);
        }
    }

    #[test]
    fn longer_keys_end_in_a_hash_of_the_whole() {
        let a = "a".repeat(53);
        for (name, expected) in [
            (format!("to-{a}-tcp-443"), format!("to-{a}--ab251")),
            (
                "to-this-is-a-very-long-svc-name-which-will-exceed-max-length-tcp-5678".into(),
                "to-this-is-a-very-long-svc-name-which-will-exceed-max-len-7c268".into(),
            ),
            (
                "to-this-is-a-very-long-svc-name-which-will-exceed-max-length-udp-testport".into(),
                "to-this-is-a-very-long-svc-name-which-will-exceed-max-len-cc82c".into(),
            ),
            (
                "to-shoot--my-project--my-long-cluster-name-kube-apiserver-tcp-443".into(),
                "to-shoot--my-project--my-long-cluster-name-kube-apiserver-16753".into(),
            ),
            (
                "to-a-very-long-namespace-with-a-very-long-service-name-that-exceeds-the-limit-tcp-1234".into(),
                "to-a-very-long-namespace-with-a-very-long-service-name-th-300a1".into(),
            ),
            (
                "to-extension-provider-openstack-abcde-gardener-extension-provider-openstack-tcp-10250".into(),
                "to-extension-provider-openstack-abcde-gardener-extension--4ab53".into(),
            ),
        ] {
            assert_eq!(shorten(&name), expected);
            assert_eq!(expected.len(), MAX_KEY_BYTES);
        }
    }

    #[test]
    fn shortened_key_keeps_whole_characters() {
        let name = format!("{}é{}", "a".repeat(56), "b".repeat(20));
        assert_eq!(shorten(&name).len(), MAX_KEY_BYTES - 1);
    }

    #[test]
    fn a_pod_asks_with_the_exact_value_alone() {
        let labels = [
            ("app", ALLOWED),
            ("networking.resources.gardener.cloud/from-x", ALLOWED),
            ("networking.resources.gardener.cloud/to-a", ALLOWED),
            ("networking.resources.gardener.cloud/to-b", "true"),
            ("networking.resources.gardener.cloud/to-c", ALLOWED),
            ("networking.resources.gardener.cloud/tp", ALLOWED),
            ("zone", ALLOWED),
        ];
        let labels = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let keys: Vec<_> = requested_keys(&labels)
            .map(|key| &key[PREFIX.len()..])
            .collect();
        assert_eq!(keys, ["to-a", "to-c"]);
    }
}
