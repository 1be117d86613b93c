//! What a caller does with the connections of a route instead of relaying them.
//!
//! Carries it and compares it, and knows nothing of it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A value of the caller's; two are equal if they are the same one.
#[derive(Clone)]
pub struct Handler(Arc<dyn Any + Send + Sync>);

impl Handler {
    /// Carries a value.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: Arc<T>) -> Self {
        Self(value)
    }

    /// Returns the value, if it is of this type.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

impl PartialEq for Handler {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
