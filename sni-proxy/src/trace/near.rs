//! What looks like something else: how many characters apart two texts are.
//!
//! For people who mistyped. Decides nothing about routes.

/// Characters of a text that are compared at most; the longest server name has fewer.
const LONGEST: usize = 256;

/// Returns how many characters must be changed, added or left out to make one text the other
/// (Levenshtein), if that are at most `most`.
pub(super) fn distance(left: &str, right: &str, most: usize) -> Option<usize> {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    if left.len().abs_diff(right.len()) > most || left.len().max(right.len()) > LONGEST {
        return None;
    }
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, from) in left.iter().enumerate() {
        let mut diagonal = at;
        let mut before = at + 1;
        let mut least = before;
        for (cell, to) in row.iter_mut().skip(1).zip(right) {
            let changed = diagonal + usize::from(from != to);
            diagonal = *cell;
            *cell = changed.min(diagonal + 1).min(before + 1);
            before = *cell;
            least = least.min(before);
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
        if least > most {
            return None; // it only grows
        }
    }
    row.last().copied().filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn near_texts_are_told_from_far_ones() {
        assert_eq!(distance("kitten", "sitting", 3), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("", "ab", 2), Some(2));
        assert_eq!(distance("a", "a", 0), Some(0));
        assert_eq!(distance("api.a.test", "api.b.test", 2), Some(1));
        assert_eq!(distance("api.a.test", "pi.a.test", 2), Some(1));
        assert_eq!(distance("abcdef", "fedcba", 4), None);
        assert_eq!(distance("a", &"a".repeat(300), 299), None);
    }
}
