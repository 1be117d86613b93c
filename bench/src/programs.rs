//! Where the programs are that are started here.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Returns the program that was `given`, else the one called `name` beside this one.
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

/// Programs that were named on the command line, as in `haproxy=/opt/haproxy-3.2`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    by_name: Vec<(String, PathBuf)>,
}

impl Given {
    pub(crate) fn parse(words: &[String]) -> Result<Self> {
        let pairs = words.iter().map(|word| {
            let (name, path) = word
                .split_once('=')
                .with_context(|| format!("{word:?} is not NAME=PATH"))?;
            Ok((name.to_owned(), PathBuf::from(path)))
        });
        Ok(Self {
            by_name: pairs.collect::<Result<_>>()?,
        })
    }

    /// Returns the program given for one of `names`, the first one that is.
    pub(crate) fn of(&self, names: &[&str]) -> Option<&PathBuf> {
        names.iter().find_map(|name| {
            let same = |pair: &&(String, PathBuf)| pair.0 == *name;
            self.by_name.iter().find(same).map(|(_, path)| path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_given_by_profile_before_program() {
        let words = ["nginx=/a".to_owned(), "nginx-64k=/b".to_owned()];
        let given = Given::parse(&words).unwrap();
        assert_eq!(given.of(&["nginx-64k", "nginx"]), Some(&"/b".into()));
        assert_eq!(given.of(&["nginx-32k", "nginx"]), Some(&"/a".into()));
        assert_eq!(given.of(&["haproxy"]), None);
        assert!(Given::parse(&["nginx".to_owned()]).is_err());
    }
}
