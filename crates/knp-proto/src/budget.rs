//! The memory that waiting bytes may take: one budget per process, a share of it per tenant.
//!
//! ```text
//! Budget (process) ◀── Share (tenant) ◀── what one tunnel holds
//! ```
//!
//! Who may take more is decided by what is free (A. K. Choudhury and E. L. Hahne, "Dynamic Queue
//! Length Thresholds for Shared-Memory Packet Switches", 1998): a tunnel may hold as much as its
//! tenant has free, a tenant eight times as much as the process has. So the one that holds most is
//! refused first, something is always left for one that holds nothing, and the sum stays within
//! the limit. Does not say what happens to the one that is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::credit::Headroom;

/// How much there may be of a thing, and how much of it is used.
#[derive(Debug)]
pub(crate) struct Counter {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl Counter {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
        }
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    fn free(&self) -> usize {
        self.limit().saturating_sub(self.used())
    }

    /// Adds one, unless that is too many.
    pub(crate) fn try_add(&self) -> bool {
        let (order, limit) = (Ordering::Relaxed, self.limit());
        let add = |used| (used < limit).then_some(used + 1);
        self.used.fetch_update(order, order, add).is_ok()
    }

    /// Adds `more`, whatever is left.
    fn add(&self, more: usize) {
        self.used.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: usize) {
        self.used.fetch_sub(less, Ordering::Relaxed);
    }
}

/// Bytes that all tenants of a process may hold together.
#[derive(Debug)]
pub struct Budget(Counter);

impl Budget {
    /// Makes a budget of `limit` bytes. One tenant alone can use eight ninths of it.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self(Counter::new(limit)))
    }

    /// Returns how many bytes are held, or promised to senders.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used()
    }
}

/// A tenant's part of the process's budget.
#[derive(Debug)]
pub(crate) struct Share {
    process: Arc<Budget>,
    pub(crate) own: Counter,
}

impl Share {
    pub(crate) fn new(process: Arc<Budget>, limit: usize) -> Self {
        let own = Counter::new(limit);
        Self { process, own }
    }

    /// Returns how much more one that holds `own` bytes may take.
    pub(crate) fn allowance(&self, own: usize) -> usize {
        let process = self.process.0.free();
        let of_process = process.saturating_mul(TENANT_WEIGHT);
        (self.own.free())
            .saturating_sub(own)
            .min(of_process.saturating_sub(self.own.used()))
            .min(process)
    }

    /// Takes `more` bytes for one that holds `own`, if they are free.
    pub(crate) fn try_take(&self, own: usize, more: usize) -> bool {
        more <= self.allowance(own) && self.try_take_any(more)
    }

    /// Takes `more` bytes as long as there are any, however much others hold.
    pub(crate) fn try_take_any(&self, more: usize) -> bool {
        self.take(more);
        // Others may have taken theirs since; the sum must hold all the same.
        let over = |counter: &Counter| counter.used() > counter.limit();
        let over = over(&self.own) || over(&self.process.0);
        if over {
            self.give_back(more);
        }
        !over
    }

    /// Takes `more` bytes whatever is left: for what was there already, or is too little to ask.
    pub(crate) fn take(&self, more: usize) {
        self.own.add(more);
        self.process.0.add(more);
    }

    pub(crate) fn give_back(&self, less: usize) {
        self.own.sub(less);
        self.process.0.sub(less);
    }

    /// Returns whether one that holds `own` bytes is refused more once this tenant has taken `more`.
    pub(crate) fn is_short(&self, own: usize, more: usize) -> bool {
        let free = |counter: &Counter| counter.free().saturating_sub(more);
        let of_process = free(&self.process.0).saturating_mul(TENANT_WEIGHT);
        own > free(&self.own) || self.own.used() + more > of_process
    }

    /// Returns whether one that holds `own` bytes may promise `more`. Promises get half of the
    /// memory, so that what was promised to every tunnel from the start finds some left.
    pub(crate) fn headroom(&self, own: usize, more: usize) -> Headroom {
        let half = |counter: &Counter| (counter.limit() / 2).saturating_sub(counter.used());
        if own + more <= half(&self.own) && more <= half(&self.process.0) {
            Headroom::Ample
        } else if self.is_short(own, 0) {
            Headroom::Short
        } else {
            Headroom::Enough
        }
    }
}

/// A tenant may hold so many times what the process has free.
const TENANT_WEIGHT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_holder_is_refused_first() {
        let share = Share::new(Budget::new(1 << 20), 1000);
        let mut hogs = [0usize; 4];
        for _ in 0..100 {
            for hog in &mut hogs {
                if share.try_take(*hog, 10) {
                    *hog += 10;
                }
            }
        }
        let held: usize = hogs.iter().sum();
        assert_eq!(share.own.used(), held);
        assert!(hogs.iter().all(|hog| (190..=200).contains(hog)), "{hogs:?}");
        assert!(share.try_take(0, 150));
    }

    #[test]
    fn a_greedy_tenant_leaves_room_for_another() {
        let process = Budget::new(900);
        let greedy = Share::new(Arc::clone(&process), 10_000);
        while greedy.try_take(0, 1) {}
        assert!(
            (795..=805).contains(&greedy.own.used()),
            "{}",
            greedy.own.used()
        );
        let modest = Share::new(Arc::clone(&process), 10_000);
        assert!(modest.try_take(0, 50));
        greedy.give_back(greedy.own.used());
        modest.give_back(50);
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn promises_stop_at_half() {
        let share = Share::new(Budget::new(1 << 20), 1000);
        assert_eq!(share.headroom(0, 400), Headroom::Ample);
        share.take(400);
        assert_eq!(share.headroom(400, 400), Headroom::Enough);
        share.take(400);
        assert_eq!(share.headroom(400, 400), Headroom::Short);
    }
}
