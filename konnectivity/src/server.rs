//! To be written.

mod health;
