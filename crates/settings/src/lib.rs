//! What every binary's `config.rs` needs: reading a file strictly, common value types, watching
//! files, and showing what is in effect.
//!
//! ```text
//!   file ──load──▶ the binary's `Config`, by serde ──Validate (ConfigErrors)──▶ the same, checked
//!     │                  │                                                       │
//!     └──FileWatcher     └─schema()                  effective_yaml(): `--check` ┴ redact(): `/config`
//! ```
//!
//! Reading is YAML 1.2: `off` is a word. Unknown keys, keys given twice, aliases that multiply, and
//! files beyond 64 MiB are refused, and every refusal names file, line, column and key.
//!
//! Deliberately absent: flags and environment (each binary's `config.rs`), and every type of the
//! crates that act on settings. What is here is plain data with public fields.
#![forbid(unsafe_code)]

mod address;
mod duration;
mod effective;
mod error;
mod load;
mod process;
mod rel_path;
mod schema;
mod size;
mod tcp;
pub mod text;
pub mod watch;
pub mod yaml;

pub use address::{EndpointAddr, ListenAddress};
pub use duration::{GoDuration, GoDurationError, HumanDuration};
pub use effective::{changed_keys, effective, effective_yaml, redact};
pub use error::{ConfigError, ConfigErrors};
pub use load::{Validate, from_text, load};
pub use process::{
    AccessLogFormat, AccessLogSettings, AdminSettings, Afterwards, DrainSettings, HandoverSettings,
    ProbesSettings, yes,
};
pub use rel_path::RelPath;
pub use schema::{check_doc, schema};
pub use size::ByteSize;
pub use tcp::{TcpOverrides, TcpSettings};
pub use text::ParseError;
pub use watch::{FileWatcher, WatchParams};
