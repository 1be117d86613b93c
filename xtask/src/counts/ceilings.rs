//! What was agreed on: `bench/counts.json`, and how far a count may be from it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::callgrind::Count;

/// Instructions of one piece of each workload.
#[derive(Debug, PartialEq)]
pub(super) struct Ceilings {
    by_name: BTreeMap<String, f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// So many percent below: the ceiling is loose.
    Cheaper(f64),
    Dearer(f64),
    New,
    Same,
}

impl Ceilings {
    pub(super) fn of(counts: &[Count]) -> Self {
        let each = |count: &Count| (count.name.clone(), (count.each() * 10.0).round() / 10.0);
        Self {
            by_name: counts.iter().map(each).collect(),
        }
    }

    pub(super) fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("reading {}", file.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let by_name = serde_json::from_str(text)?;
        Ok(Self { by_name })
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, self.text()?).with_context(|| format!("writing {}", file.display()))
    }

    fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.by_name)? + "\n")
    }

    pub(super) fn judge(&self, count: &Count) -> Verdict {
        let Some(agreed) = self.by_name.get(&count.name) else {
            return Verdict::New;
        };
        let percent = (count.each() / agreed - 1.0) * 100.0;
        if percent > DEARER_PERCENT {
            Verdict::Dearer(percent)
        } else if percent < -CHEAPER_PERCENT {
            Verdict::Cheaper(-percent)
        } else {
            Verdict::Same
        }
    }

    pub(super) fn without<'a>(&'a self, counts: &'a [Count]) -> impl Iterator<Item = &'a str> {
        let names = self.by_name.keys().map(String::as_str);
        names.filter(|name| counts.iter().all(|count| count.name != *name))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cheaper(percent) => write!(f, ", {percent:.1} % cheaper than its ceiling says"),
            Self::Dearer(percent) => {
                write!(f, ", {percent:.1} % dearer, {DEARER_PERCENT} % are allowed")
            }
            Self::New => write!(f, ", has no ceiling"),
            Self::Same => Ok(()),
        }
    }
}

/// What another release of the C library or of the linker may change.
const DEARER_PERCENT: f64 = 2.0;
/// From here on a gain is worth a commit.
const CHEAPER_PERCENT: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, instructions: u64) -> Count {
        Count {
            name: name.to_owned(),
            times: 10,
            instructions,
        }
    }

    #[test]
    fn a_count_is_held_from_both_sides() {
        let ceilings = Ceilings::of(&[count("a", 1000)]);
        let judge = |instructions| ceilings.judge(&count("a", instructions));
        assert_eq!(
            (judge(1000), judge(1019), judge(961)),
            (Verdict::Same, Verdict::Same, Verdict::Same)
        );
        assert!(matches!(judge(1030), Verdict::Dearer(percent) if (2.9..3.1).contains(&percent)));
        assert!(matches!(judge(900), Verdict::Cheaper(percent) if (9.9..10.1).contains(&percent)));
        assert_eq!(ceilings.judge(&count("b", 1)), Verdict::New);
    }

    #[test]
    fn missing_workload_is_named() {
        let ceilings = Ceilings::of(&[count("a", 10), count("b", 10)]);
        let counts = [count("a", 10)];
        assert_eq!(ceilings.without(&counts).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn ceilings_read_back_as_written() {
        let ceilings = Ceilings::of(&[count("a", 1234), count("b", 7)]);
        assert_eq!(
            Ceilings::parse(&ceilings.text().unwrap()).unwrap(),
            ceilings
        );
        assert!(Ceilings::parse("{\"a\": \"x\"}").is_err());
    }
}
