//! Windows: what may still be sent, and what may still come (RFC 9113 section 5.2).
//!
//! ```text
//!   DATA comes ──▶ take ──▶ bytes are consumed ──▶ give ──▶ WINDOW_UPDATE, when it is worth one
//! ```
//!
//! Sending windows are plain numbers with their limit. Whose window it is, is the owner's business.

/// The largest window.
pub(crate) const MAX_WINDOW: u32 = (1 << 31) - 1;
/// The first window of a connection, and of a stream unless a setting says otherwise.
pub(crate) const FIRST_WINDOW: u32 = 65_535;

/// What a peer may send.
#[derive(Debug)]
pub(crate) struct Window {
    size: u32,
    /// What may still come.
    left: u32,
    /// Consumed, and not yet given back.
    consumed: u32,
}

impl Window {
    pub(crate) const fn new(size: u32) -> Self {
        Self {
            size,
            left: size,
            consumed: 0,
        }
    }

    /// Counts what has come; `None` when it is more than may come.
    #[must_use]
    pub(crate) fn take(&mut self, bytes: u32) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }

    /// Counts what was consumed, and returns an increment once half of the window is due.
    pub(crate) fn give(&mut self, bytes: u32) -> Option<u32> {
        self.give_at(bytes, self.size / 2)
    }

    /// The same for the window of a connection, where as much as is left is enough: streams that are not read may hold
    /// the rest, and it may never be half.
    pub(crate) fn give_shared(&mut self, bytes: u32) -> Option<u32> {
        self.give_at(bytes, self.left.min(self.size / 2))
    }

    fn give_at(&mut self, bytes: u32, due: u32) -> Option<u32> {
        // No more is consumed than has come, so that this stays within the size.
        self.consumed = self.consumed.saturating_add(bytes);
        if self.consumed == 0 || self.consumed < due {
            return None;
        }
        let increment = std::mem::take(&mut self.consumed);
        self.left = self.left.saturating_add(increment);
        Some(increment)
    }
}

/// Widens what may be sent; `None` when that is more than can be.
#[must_use]
pub(crate) fn widen(window: i64, by: i64) -> Option<i64> {
    let wider = window + by;
    (wider <= i64::from(MAX_WINDOW)).then_some(wider)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_window_is_given_back_at_once() {
        let mut window = Window::new(100);
        assert_eq!(window.take(50), Some(()));
        assert_eq!(window.give(49), None);
        assert_eq!(window.give(1), Some(50));
        assert_eq!(window.take(100), Some(()));
        assert_eq!(window.take(1), None);
    }

    #[test]
    fn window_is_given_back_where_others_hold_half() {
        let mut window = Window::new(100);
        assert_eq!(window.take(80), Some(()));
        assert_eq!(window.give_shared(19), None);
        assert_eq!(window.give_shared(1), Some(20));
        assert_eq!(window.take(40), Some(()));
        assert_eq!(window.give_shared(1), Some(1));
        assert_eq!(window.give_shared(0), None);
    }

    #[test]
    fn no_window_is_wider_than_31_bits() {
        assert_eq!(widen(-5, 10), Some(5));
        assert_eq!(widen(1, i64::from(MAX_WINDOW)), None);
    }
}
