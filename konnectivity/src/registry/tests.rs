//! Cases of the registry.
