//! Tests of what is planned again.
