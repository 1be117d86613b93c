//! What is accepted, what is refused, and what comes of it.
