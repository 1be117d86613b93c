//! Server names: what two patterns have in common.

/// Returns the names that both patterns match, as a pattern: `a.b`, `*.b` (one or more labels in
/// front of `.b`), or `*`. Both are in lower case and without a trailing dot.
pub(crate) fn common<'p>(a: &'p str, b: &'p str) -> Option<&'p str> {
    if covers(a, b) {
        Some(b)
    } else if covers(b, a) {
        Some(a)
    } else {
        None
    }
}

/// Returns whether `wide` matches all that `narrow` does.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    if wide == "*" || wide == narrow {
        return true;
    }
    let (Some(suffix), false) = (wide.strip_prefix('*'), narrow == "*") else {
        return false;
    };
    let inner = narrow.strip_prefix('*').unwrap_or(narrow);
    inner.len() > suffix.len() && inner.ends_with(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrower_is_what_both_have() {
        for (a, b, expected) in [
            ("a.b", "a.b", Some("a.b")),
            ("a.b", "c.b", None),
            ("*.b", "a.b", Some("a.b")),
            ("*.b", "x.a.b", Some("x.a.b")),
            ("*.b", "b", None),
            ("*.b", "*.a.b", Some("*.a.b")),
            ("*.b", "*.b", Some("*.b")),
            ("*.b", "*.c", None),
            ("*.b", "a.xb", None),
            ("*", "*.b", Some("*.b")),
            ("*", "a.b", Some("a.b")),
            ("*", "*", Some("*")),
        ] {
            assert_eq!(common(a, b), expected, "{a} {b}");
            assert_eq!(common(b, a), expected, "{b} {a}");
        }
    }
}
