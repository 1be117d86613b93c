//! Tests of who owns a policy.
