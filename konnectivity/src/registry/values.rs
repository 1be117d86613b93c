//! Whether single values of a tenant's file are what they should be.
//!
//! Pure functions from text to a verdict in words; the caller adds the key.

use std::path::{Component, Path};

/// Returns a server name in lower case.
pub(super) fn server_name(name: &str) -> Result<String, String> {
    if name.contains('*') {
        return Err("a server name means one tenant, so it has no wildcard".to_owned());
    }
    if name.ends_with('.') {
        return Err("must not end with a dot".to_owned());
    }
    route::normal_server_name(name).map_err(|error| error.to_string())
}

/// Checks a URI as it stands in a certificate; it is compared byte by byte.
pub(super) fn identity(uri: &str) -> Result<(), &'static str> {
    let scheme = uri.split_once(':').map_or("", |(scheme, _)| scheme);
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        || !scheme.bytes().all(letters)
    {
        return Err("must be a URI, such as `spiffe://example.com/cluster/a`");
    }
    if uri.len() > 2048 {
        return Err("must not be longer than 2048 characters");
    }
    if !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("must be ASCII without spaces");
    }
    Ok(())
}

/// Checks a text that is compared with what a token says.
pub(super) fn claim(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("must not be empty");
    }
    if text.len() > 2048 {
        return Err("must not be longer than 2048 characters");
    }
    if text.chars().any(char::is_control) {
        return Err("must not hold control characters");
    }
    Ok(())
}

/// Checks the path of a socket, so that two texts for one place are rare enough: see unix(7) for
/// the length.
pub(super) fn socket(path: &Path) -> Result<(), &'static str> {
    if path.as_os_str().len() > 107 {
        return Err("is longer than the 107 bytes of a socket's path");
    }
    if path.components().any(|step| step == Component::ParentDir) {
        return Err("must not climb by `..`");
    }
    if path.file_name().is_none() {
        return Err("must name a socket");
    }
    Ok(())
}

/// Checks that a number lies within bounds.
pub(super) fn within(value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("must be from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_name_is_a_name_and_not_a_pattern() {
        assert_eq!(
            server_name("A.kn.Example.com"),
            Ok("a.kn.example.com".to_owned())
        );
        assert!(server_name("a_b.example.com").is_ok());
        for bad in ["", "*.example.com", "a..b", "a.", "10.0.0.1", "::1", "a b"] {
            assert!(server_name(bad).is_err(), "{bad}");
        }
        assert!(server_name(&"a.".repeat(127)).is_err());
    }

    #[test]
    fn an_identity_is_a_uri() {
        assert!(identity("spiffe://example.com/cluster/a").is_ok());
        assert!(identity("urn:x").is_ok());
        for bad in ["", "a", ":a", "1a:b", "spiffe://a b", "spiffe://ä"] {
            assert!(identity(bad).is_err(), "{bad}");
        }
        assert!(identity(&format!("a:{}", "b".repeat(2047))).is_err());
    }

    #[test]
    fn a_socket_s_path_fits_and_goes_down_only() {
        assert!(socket(Path::new("/run/kn/a.sock")).is_ok());
        for bad in ["/", "/run/../a.sock", "", &format!("/{}", "a".repeat(107))] {
            assert!(socket(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
