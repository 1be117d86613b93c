//! Fills templates: files, arguments and what is said to an admin socket.
//!
//! ```text
//! dir, listener, listen.{sni,proxy,connect}, port.NAME, routes[], route, values.KEY,
//! workers, connections, descriptors, root, exists(PATH)
//! ```
//!
//! A word that is none of these is an error and not an empty text.

use std::path::Path;

use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde_json::Value;

/// Returns `template` with `facts` filled in; `what` is the name that errors give it.
pub(super) fn render(what: &str, template: &str, facts: &Value) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let mut syntax = SyntaxConfig::builder();
    // HAProxy refuses a file whose last line does not end.
    syntax.keep_trailing_newline(true);
    // A line with a statement alone leaves nothing behind.
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build().context("setting up templates")?);
    environment.add_function("exists", |path: String| Path::new(&path).exists());
    let filled = environment.render_named_str(what, template, Serde(facts));
    filled.with_context(|| format!("filling in {what}"))
}
