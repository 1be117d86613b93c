//! Secrets of gateways' namespaces: whether they can be used, and what gateways are sent of them.
//!
//! Keeps no more than what is sent, which is wiped when it is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret as SecretObject;
use xds::Resource;
use zeroize::{Zeroize, Zeroizing};

use super::{ObjectKey, in_namespace};

/// Ends of the names that Gardener gives to secrets for TLS in front of API servers.
const SUFFIXES: [&str; 3] = [
    "kube-apiserver-tls",
    "kube-apiserver-wildcard-tls",
    "kube-apiserver-istio-mtls",
];

/// Returns the name under which gateways know the authorities in a Secret; the certificate has the Secret's.
pub fn authorities_of(secret: &str) -> String {
    format!("{secret}-cacert")
}

/// What is known of the Secrets.
#[derive(Debug, Default)]
pub struct Secrets {
    /// Namespaces whose Secrets were listed.
    listed: BTreeSet<Arc<str>>,
    /// Namespaces whose Secrets may not be read.
    forbidden: BTreeSet<Arc<str>>,
    known: BTreeMap<ObjectKey, Secret>,
}

impl Secrets {
    /// Records what a Secret is now, none when it is gone; returns whether that is a change.
    pub fn put(&mut self, key: ObjectKey, secret: Option<Secret>) -> bool {
        match secret {
            Some(secret) => self.known.insert(key, secret.clone()) != Some(secret),
            None => self.known.remove(&key).is_some(),
        }
    }

    /// Records that all Secrets of a namespace are known; returns whether that is a change.
    pub fn list(&mut self, namespace: Arc<str>) -> bool {
        let permitted = self.forbidden.remove(&namespace);
        self.listed.insert(namespace) || permitted
    }

    /// Records that the Secrets of a namespace may not be read; returns whether that is a change.
    pub fn forbid(&mut self, namespace: Arc<str>) -> bool {
        self.forbidden.insert(namespace)
    }

    /// Forgets the Secrets of a namespace that are not among these, and returns their keys.
    pub fn retain(&mut self, namespace: &str, seen: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        let own = in_namespace(&self.known, namespace).map(|(key, _)| key);
        let gone: Vec<ObjectKey> = own.filter(|key| !seen.contains(key)).cloned().collect();
        for key in &gone {
            self.known.remove(key);
        }
        gone
    }

    /// Forgets all of namespaces other than these.
    pub fn keep(&mut self, namespaces: &BTreeSet<&str>) {
        self.known
            .retain(|key, _| namespaces.contains(&*key.namespace));
        for own in [&mut self.listed, &mut self.forbidden] {
            own.retain(|namespace| namespaces.contains(&**namespace));
        }
    }

    /// Returns whether it is known which Secrets of a namespace can be read: all, or none.
    pub fn settled(&self, namespace: &str) -> bool {
        self.listed.contains(namespace) || self.forbidden.contains(namespace)
    }

    /// Returns why a Secret cannot be used, or what of it cannot be known, if there is anything.
    pub fn problem(&self, key: &ObjectKey) -> Option<String> {
        if self.forbidden.contains(&key.namespace) {
            let namespace = &key.namespace;
            return Some(format!(
                "the controller may not list and watch Secrets in namespace {namespace}"
            ));
        }
        if !self.listed.contains(&key.namespace) {
            return None;
        }
        match self.known.get(key) {
            None => Some(format!("there is no Secret {key}")),
            Some(Secret(Err(why))) => Some(format!("Secret {key}: {why}")),
            Some(Secret(Ok(_))) => None,
        }
    }

    /// Returns what gateways are sent of a Secret; nothing of one that is gone or cannot be used.
    pub fn resources(&self, key: &ObjectKey) -> &[Resource] {
        let secret = self.known.get(key).map(|own| &own.0);
        match secret {
            Some(Ok(resources)) => resources,
            Some(Err(_)) | None => &[],
        }
    }

    /// Returns the keys of all.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.known.keys()
    }
}

/// What gateways are sent of a Secret, or why it cannot be used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Secret(Result<Vec<Resource>, String>);

impl Secret {
    /// Reads a Secret of Gardener's, none of another name, and wipes it.
    pub fn parse(mut object: SecretObject) -> Option<(ObjectKey, Self)> {
        let mut data: BTreeMap<String, Zeroizing<Vec<u8>>> = BTreeMap::new();
        for (name, mut value) in object.data.take().unwrap_or_default() {
            data.insert(name, Zeroizing::new(std::mem::take(&mut value.0)));
        }
        for text in object.string_data.iter_mut().flat_map(BTreeMap::values_mut) {
            text.zeroize();
        }
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let own = SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
        own.then(|| {
            (
                ObjectKey::new(namespace, name),
                Self(resources(name, &data)),
            )
        })
    }
}

/// Gardener's names, and those of Kubernetes, which Istio reads as well.
fn resources(
    name: &str,
    data: &BTreeMap<String, Zeroizing<Vec<u8>>>,
) -> Result<Vec<Resource>, String> {
    let part = |keys: [&str; 2]| {
        let mut found = keys.iter().filter_map(|key| data.get(*key));
        let found = found.find(|own| !own.is_empty());
        found.ok_or_else(|| format!("it has no {}", keys[0]))
    };
    let certificate = part(["cert", "tls.crt"])?;
    let key = part(["key", "tls.key"])?;
    let authorities = part(["cacert", "ca.crt"])?;
    let authorities_name = authorities_of(name);
    let wrong = |error: tls::TlsError| telemetry::chain(&error).to_string();
    tls::Secret::key_pair(name, certificate.to_vec(), key.clone())
        .check()
        .map_err(wrong)?;
    tls::Secret::authorities(&authorities_name, authorities.to_vec())
        .check()
        .map_err(wrong)?;
    Ok(vec![
        xds::key_pair(name, certificate, key),
        xds::authorities(&authorities_name, authorities),
    ])
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use testkit::certs::Authority;

    use super::*;

    fn object(name: &str, data: &[(&str, &str)]) -> SecretObject {
        let data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
        SecretObject {
            data: Some(data.collect()),
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some("istio-ingress".to_owned()),
                ..ObjectMeta::default()
            },
            ..SecretObject::default()
        }
    }

    const NAME: &str = "shoot--foo--bar-kube-apiserver-tls";

    #[test]
    fn secret_is_read_under_both_names_of_its_keys() {
        let ca = Authority::new("ca").unwrap();
        let own = ca.server(&["api.example.com"]).unwrap();
        let (cert, key) = (&*own.cert_pem, &*own.key_pem);
        let gardener = [("cert", cert), ("key", key), ("cacert", ca.pem())];
        let kubernetes = [("tls.crt", cert), ("tls.key", key), ("ca.crt", ca.pem())];
        let (first, secret) = Secret::parse(object(NAME, &gardener)).unwrap();
        assert_eq!(first, ObjectKey::new("istio-ingress", NAME));
        assert_eq!(secret.0.as_ref().unwrap().len(), 2);
        assert_eq!(Secret::parse(object(NAME, &kubernetes)).unwrap().1, secret);
        assert!(Secret::parse(object("registry-credentials", &gardener)).is_none());
    }

    #[test]
    fn problem_names_the_secret_and_never_shows_it() {
        let ca = Authority::new("ca").unwrap();
        let own = ca.server(&["api.example.com"]).unwrap();
        let other = ca.server(&["api.example.com"]).unwrap();
        let one_line = own.key_pem.replace('\n', "");
        let (cert, key) = (&*own.cert_pem, &*own.key_pem);
        let mut secrets = Secrets::default();
        let at = ObjectKey::new("istio-ingress", NAME);
        assert_eq!(secrets.problem(&at), None);
        secrets.list("istio-ingress".into());
        for (data, why) in [
            (vec![], "it has no cert"),
            (vec![("cert", cert), ("key", key)], "it has no cacert"),
            (
                vec![
                    ("cert", cert),
                    ("key", &other.key_pem),
                    ("cacert", ca.pem()),
                ],
                "is not that of",
            ),
            (
                vec![("cert", cert), ("key", &one_line), ("cacert", ca.pem())],
                "reading PEM",
            ),
            (
                vec![("cert", cert), ("key", key), ("cacert", key)],
                "no PEM certificate",
            ),
        ] {
            let (_, secret) = Secret::parse(object(NAME, &data)).unwrap();
            secrets.put(at.clone(), Some(secret));
            let problem = secrets.problem(&at).unwrap();
            assert!(
                problem.contains(&at.to_string()) && problem.contains(why),
                "{problem}"
            );
            let bytes = format!("{:?}", &one_line.as_bytes()[60..70]);
            let shown = format!("{problem} {secrets:?}");
            assert!(!shown.contains(&one_line[60..80]));
            assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
            assert_eq!(secrets.resources(&at), []);
        }
        secrets.put(at.clone(), None);
        let problem = secrets.problem(&at).unwrap();
        assert_eq!(problem, format!("there is no Secret {at}"));
    }
}
