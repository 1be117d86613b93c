//! Where the programs are that are started here, and names on the command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// Returns the program that was `given`, else the one called `name` beside this one.
pub(crate) fn program(given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("asking where we are")?
            .with_file_name(name),
    };
    if !path.is_file() {
        let path = path.display();
        bail!("{path} is not there: build it, or name it with a flag");
    }
    Ok(path)
}

/// Returns the name of `value` on the command line.
pub(crate) fn value_name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A program that was named on the command line, as in `haproxy=/opt/haproxy-3.2`.
pub(crate) type Given = (String, PathBuf);

/// Reads `NAME=PATH`.
pub(crate) fn named(word: &str) -> Result<Given> {
    let pair = word.split_once('=');
    let (name, path) = pair.with_context(|| format!("{word:?} is not NAME=PATH"))?;
    Ok((name.to_owned(), PathBuf::from(path)))
}

/// Returns the program given for one of `names`, the first one that is.
pub(crate) fn given<'a>(given: &'a [Given], names: &[&str]) -> Option<&'a PathBuf> {
    names.iter().find_map(|name| {
        let found = given.iter().find(|(own, _)| own == name);
        found.map(|(_, path)| path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_given_by_profile_before_program() {
        let all = ["nginx=/a", "nginx-64k=/b"].map(|word| named(word).unwrap());
        let of = |names: &[&str]| given(&all, names).cloned();
        assert_eq!(of(&["nginx-64k", "nginx"]), Some("/b".into()));
        assert_eq!(of(&["nginx-32k", "nginx"]), Some("/a".into()));
        assert_eq!(of(&["haproxy"]), None);
        assert!(named("nginx").is_err());
    }
}
