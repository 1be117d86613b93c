//! A list that is mostly of one element, which then needs no allocation of its own.

use std::ops::Deref;

/// A fixed list; behaves as a slice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Few<T> {
    /// One element.
    One(T),
    /// None, or more than one.
    Many(Box<[T]>),
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(element) => std::slice::from_ref(element),
            Self::Many(elements) => elements,
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements = elements.into_iter();
        match (elements.next(), elements.next()) {
            (Some(only), None) => Self::One(only),
            (first, second) => {
                Self::Many(first.into_iter().chain(second).chain(elements).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_elements_is_a_slice() {
        for count in 0..5 {
            let few: Few<usize> = (0..count).collect();
            assert_eq!(*few, *(0..count).collect::<Vec<_>>());
        }
    }
}
