//! What a caller does with the connections of a route instead of relaying them.
//!
//! Carries it and compares it, and knows nothing of it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A value of the caller's.
#[derive(Clone)]
pub struct Handler(Arc<dyn Value>);

/// A value that others of any type can be compared with.
trait Value: Send + Sync {
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;

    fn is(&self, other: &Handler) -> bool;
}

impl<T: Any + PartialEq + Send + Sync> Value for T {
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn is(&self, other: &Handler) -> bool {
        other.get::<T>().is_some_and(|other| *self == *other)
    }
}

impl Handler {
    /// Carries a value.
    #[must_use]
    pub fn new<T: Any + PartialEq + Send + Sync>(value: Arc<T>) -> Self {
        Self(value)
    }

    /// Returns the value, if it is of this type.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.0).any().downcast().ok()
    }
}

impl PartialEq for Handler {
    fn eq(&self, other: &Self) -> bool {
        self.0.is(other)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
