//! What has to be watched so that no change of a path's meaning is missed.
//!
//! ```text
//!   /etc/rhizome/routes.yaml ─▶ ..data/routes.yaml ─▶ ..2026_01/routes.yaml
//!     directories and names:  /: etc   /etc: rhizome   /etc/rhizome: routes.yaml, ..data, ..2026_01
//!                             /etc/rhizome/..2026_01: routes.yaml
//!     files:                  /etc/rhizome/..2026_01/routes.yaml
//! ```
//!
//! Every directory on the way matters, for each of its steps may be replaced; the file itself
//! matters for writes in place, also by another name (a hard link, a bind mount). Follows symlinks
//! as path_resolution(7) says, without a change to anything.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
};

/// Directories with the names in them that matter, and files whose content matters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) directories: BTreeMap<PathBuf, Names>,
    pub(super) files: BTreeSet<PathBuf>,
}

/// The names that matter in one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) names: BTreeSet<OsString>,
    /// Whether one of them is a symlink, the file, or missing. Otherwise all are directories, which
    /// are hardly ever replaced, and being refused this watch is no reason to poll.
    pub(super) needed: bool,
}

/// Symlinks followed for one path, as many as Linux does (MAXSYMLINKS).
const MAX_SYMLINKS: usize = 40;

impl Plan {
    /// For absolute `files`.
    pub(super) fn of(files: &[PathBuf]) -> Self {
        let mut plan = Self::default();
        for file in files {
            plan.follow(file);
        }
        plan
    }

    fn follow(&mut self, path: &Path) {
        let mut here = PathBuf::from("/");
        let mut ahead: VecDeque<OsString> = steps(path).collect();
        let mut symlinks = 0;
        while let Some(step) = ahead.pop_front() {
            if step == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&step);
            let Ok(metadata) = std::fs::symlink_metadata(&next) else {
                self.need(&here, &step, true);
                return;
            };
            self.need(&here, &step, !metadata.is_dir());
            if metadata.is_symlink() {
                symlinks += 1;
                let Ok(target) = std::fs::read_link(&next) else {
                    return;
                };
                if symlinks > MAX_SYMLINKS {
                    return;
                }
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                for step in steps(&target).collect::<Vec<_>>().into_iter().rev() {
                    ahead.push_front(step);
                }
            } else if metadata.is_dir() {
                here = next;
            } else {
                // More steps below a file lead nowhere, until the file is something else.
                if ahead.is_empty() {
                    self.files.insert(next);
                }
                return;
            }
        }
    }

    fn need(&mut self, directory: &Path, name: &OsStr, needed: bool) {
        let names = self.directories.entry(directory.to_owned()).or_default();
        names.names.insert(name.to_owned());
        names.needed |= needed;
    }
}

fn steps(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::watch::scratch::Scratch;

    fn names(plan: &Plan, directory: &Path) -> Vec<String> {
        let names = plan
            .directories
            .get(directory)
            .into_iter()
            .flat_map(|names| &names.names);
        names
            .map(|name| name.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn every_step_of_a_config_map_is_watched() {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path("..1")).unwrap();
        std::fs::write(scratch.path("..1/routes.yaml"), "").unwrap();
        symlink("..1", scratch.path("..data")).unwrap();
        symlink("..data/routes.yaml", scratch.path("routes.yaml")).unwrap();

        let plan = Plan::of(&[scratch.path("routes.yaml")]);

        assert_eq!(
            names(&plan, scratch.root()),
            ["..1", "..data", "routes.yaml"]
        );
        assert!(plan.directories[scratch.root()].needed);
        assert_eq!(names(&plan, &scratch.path("..1")), ["routes.yaml"]);
        assert_eq!(
            plan.files,
            BTreeSet::from([scratch.path("..1/routes.yaml")])
        );
        let parent = scratch.root().parent().unwrap();
        assert!(!plan.directories[parent].needed);
    }

    #[test]
    fn absolute_and_upward_symlinks_are_followed() {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path("a")).unwrap();
        std::fs::write(scratch.path("b"), "").unwrap();
        symlink(scratch.path("a/../a/up"), scratch.path("start")).unwrap();
        symlink("../b", scratch.path("a/up")).unwrap();

        let plan = Plan::of(&[scratch.path("start")]);

        assert_eq!(plan.files, BTreeSet::from([scratch.path("b")]));
        assert_eq!(names(&plan, &scratch.path("a")), ["up"]);
        assert_eq!(names(&plan, scratch.root()), ["a", "b", "start"]);
    }

    #[test]
    fn missing_paths_are_watched_at_their_parent() {
        let scratch = Scratch::new();

        let plan = Plan::of(&[scratch.path("x/y/z")]);

        assert_eq!(names(&plan, scratch.root()), ["x"]);
        assert!(plan.directories[scratch.root()].needed);
        assert!(!plan.directories.contains_key(&scratch.path("x")));
        assert!(plan.files.is_empty());
    }

    #[test]
    fn a_circle_of_symlinks_ends() {
        let scratch = Scratch::new();
        symlink("b", scratch.path("a")).unwrap();
        symlink("a", scratch.path("b")).unwrap();

        let plan = Plan::of(&[scratch.path("a")]);

        assert_eq!(names(&plan, scratch.root()), ["a", "b"]);
        assert!(plan.files.is_empty());
    }
}
