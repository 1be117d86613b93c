//! Known answers and properties of the parsers, through the crate's public face.

mod client_hello;
mod hello;
mod http_connect;
mod ppp;
mod proxy_protocol;

#[path = "../../../../fuzz/bodies.rs"]
mod bodies;
