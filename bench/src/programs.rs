//! Where the programs are that are started here.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Returns the program that was `given`, else the one called `name` beside this one.
///
/// # Errors
/// When it is not there.
pub(crate) fn program(given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("asking where we are")?
            .with_file_name(name),
    };
    if !path.is_file() {
        bail!(
            "{} is not there: build it, or name it with a flag",
            path.display()
        );
    }
    Ok(path)
}
