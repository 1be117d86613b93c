//! Changes of every kind are noticed. Real time and real files: the limit is only there so that a
//! change that is missed fails the test.

use std::{fs, io::Write, os::unix::fs::symlink, path::Path, sync::mpsc};

use testkit::tempdir::TempDir;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// A file that is watched, in a directory of its own.
struct Watched {
    directory: TempDir,
    file: PathBuf,
    watcher: FileWatcher,
}

impl Watched {
    /// Watches `name` in a directory that `prepare` made.
    fn new(name: &str, params: WatchParams, prepare: impl FnOnce(&TempDir)) -> Self {
        let directory = TempDir::new("watch").unwrap();
        prepare(&directory);
        let file = directory.join(name);
        Self {
            watcher: FileWatcher::new(vec![file.clone()], params).unwrap(),
            file,
            directory,
        }
    }

    fn file() -> Self {
        let write = |directory: &TempDir| fs::write(directory.join("routes.yaml"), "0").unwrap();
        Self::new("routes.yaml", PARAMS, write)
    }

    async fn expect_change(&mut self) {
        let changed = time::timeout(LIMIT, self.watcher.changed());
        changed.await.expect("the change is noticed");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

const PARAMS: WatchParams = WatchParams {
    settle: Duration::from_millis(20),
    settle_limit: Duration::from_secs(1),
    poll: Duration::from_millis(10),
};

/// Without a hint no change is seen in the time of a test.
const RARELY: WatchParams = WatchParams {
    poll: Duration::from_secs(3600),
    ..PARAMS
};

fn replace(path: &Path, content: &str) {
    let fresh = path.with_extension("tmp");
    fs::write(&fresh, content).unwrap();
    fs::rename(&fresh, path).unwrap();
}

#[tokio::test]
async fn every_kind_of_write_is_a_change_each_time() {
    let mut watched = Watched::file();
    let file = watched.file.clone();
    for round in 0..3 {
        replace(&file, &round.to_string());
        watched.expect_change().await;
    }
    for content in ["3", "4", "longer"] {
        fs::write(&file, content).unwrap();
        watched.expect_change().await;
    }
    for _ in 0..2 {
        fs::remove_file(&file).unwrap();
        watched.expect_change().await;
        fs::write(&file, "1").unwrap();
        watched.expect_change().await;
    }
    // By another name, in a directory that is not watched.
    let other = watched.path("elsewhere/other");
    fs::create_dir(watched.path("elsewhere")).unwrap();
    fs::hard_link(&file, &other).unwrap();
    watched.expect_change().await;
    fs::write(&other, "3").unwrap();
    watched.expect_change().await;
}

#[tokio::test]
async fn config_map_swap_is_a_change_each_time() {
    let publish = |directory: &TempDir, version: u32| {
        let own = directory.join(format!("..{version}"));
        fs::create_dir(&own).unwrap();
        fs::write(own.join("routes.yaml"), version.to_string()).unwrap();
        symlink(&own, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        if version > 0 {
            fs::remove_dir_all(directory.join(format!("..{}", version - 1))).unwrap();
        }
    };
    for (hinted, params) in [(false, PARAMS), (true, RARELY)] {
        let mut watched = Watched::new("routes.yaml", params, |directory| {
            publish(directory, 0);
            symlink("..data/routes.yaml", directory.join("routes.yaml")).unwrap();
        });
        if hinted {
            watched.watcher.watch_directories().unwrap();
        }
        for version in 1..4 {
            publish(&watched.directory, version);
            watched.expect_change().await;
            let read = fs::read_to_string(&watched.file).unwrap();
            assert_eq!(read, version.to_string());
        }
    }
}

#[tokio::test]
async fn file_and_its_directories_may_appear_later() {
    let mut watched = Watched::new("x/y/routes.yaml", PARAMS, |_| {});
    fs::create_dir_all(watched.path("x/y")).unwrap();
    for content in ["0", "1"] {
        fs::write(&watched.file, content).unwrap();
        watched.expect_change().await;
    }
    // A whole directory on the way is put aside, then replaced.
    fs::rename(watched.path("x"), watched.path("old")).unwrap();
    watched.expect_change().await;
    fs::create_dir_all(watched.path("new/y")).unwrap();
    fs::write(watched.path("new/y/routes.yaml"), "2").unwrap();
    fs::rename(watched.path("new"), watched.path("x")).unwrap();
    watched.expect_change().await;
}

#[tokio::test]
async fn only_watched_files_are_reported() {
    let mut watched = Watched::file();
    let (one, two) = (watched.file.clone(), watched.path("two"));
    watched.watcher = FileWatcher::new(vec![one.clone(), two.clone()], PARAMS).unwrap();
    fs::write(watched.path("other"), "").unwrap();
    fs::read_to_string(&one).unwrap();
    assert!(!watched.watcher.look());
    assert!(watched.watcher.unsettled.is_none());
    fs::write(&two, "").unwrap();
    watched.expect_change().await;
    replace(&one, "1");
    watched.expect_change().await;
}

#[tokio::test]
async fn last_of_many_rapid_changes_is_reported() {
    let mut watched = Watched::file();
    let target = watched.file.clone();
    let writer = tokio::task::spawn_blocking(move || {
        for round in 0..500 {
            replace(&target, &round.to_string());
        }
        fs::write(&target, "last").unwrap();
    });
    loop {
        watched.expect_change().await;
        if fs::read_to_string(&watched.file).unwrap() == "last" {
            break;
        }
    }
    writer.await.unwrap();
}

#[tokio::test]
async fn constantly_changing_file_is_reported() {
    let params = WatchParams {
        settle: Duration::from_millis(200),
        settle_limit: Duration::from_millis(600),
        ..PARAMS
    };
    let mut watched = Watched::new("routes.yaml", params, |directory| {
        fs::write(directory.join("routes.yaml"), "start").unwrap();
    });
    let (file, (stop, stopped)) = (watched.file.clone(), mpsc::channel::<()>());
    let writer = tokio::task::spawn_blocking(move || {
        // Longer each time, for the times of a file move in steps of some milliseconds only.
        let mut file = fs::OpenOptions::new().append(true).open(&file).unwrap();
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            file.write_all(b".").unwrap();
        }
    });
    // The writer goes on until this has returned, or failed.
    watched.expect_change().await;
    drop(stop);
    writer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn file_written_in_pieces_is_reported_once() {
    let mut watched = Watched::file();
    let pause = Duration::from_millis(100);
    for written in ["first", "first and second"] {
        fs::write(&watched.file, written).unwrap();
        let changed = time::timeout(pause, watched.watcher.changed());
        changed.await.expect_err("more may come");
    }
    watched.expect_change().await;
    fs::remove_file(&watched.file).unwrap();
    watched.expect_change().await;
    fs::write(&watched.file, "anew").unwrap();
    let changed = time::timeout(pause, watched.watcher.changed());
    changed.await.expect_err("more may come");
    watched.expect_change().await;
    // What is renamed there is whole.
    replace(&watched.file, "whole");
    let changed = time::timeout(pause, watched.watcher.changed());
    changed.await.expect("the change is noticed");
}

#[tokio::test]
async fn abandoned_wait_loses_nothing() {
    for (hinted, params) in [(false, PARAMS), (true, RARELY)] {
        let mut watched = Watched::new("routes.yaml", params, |directory| {
            fs::write(directory.join("routes.yaml"), "0").unwrap();
        });
        let watcher = &mut watched.watcher;
        if hinted {
            watcher.watch_directories().unwrap();
        }
        fs::write(&watched.file, "10").unwrap();
        let short = Duration::from_millis(3);
        let until_seen = async { while time::timeout(short, watcher.changed()).await.is_err() {} };
        let seen = time::timeout(LIMIT, until_seen).await;
        seen.expect("the change is noticed");
    }
}

#[tokio::test]
async fn change_in_watched_directory_is_seen_at_once() {
    let write = |directory: &TempDir| fs::write(directory.join("routes.yaml"), "0").unwrap();
    let mut watched = Watched::new("routes.yaml", RARELY, write);
    watched.watcher.watch_directories().unwrap();
    let file = watched.file.clone();
    let changed = time::timeout(PARAMS.settle, watched.watcher.changed());
    changed.await.expect_err("nothing has changed");
    for round in 0..3 {
        // Others are no change, and put none off.
        fs::write(watched.path("other"), round.to_string()).unwrap();
        let changed = time::timeout(PARAMS.settle * 3, watched.watcher.changed());
        changed.await.expect_err("only another file has changed");
        replace(&file, &round.to_string());
        watched.expect_change().await;
        fs::write(&file, "in place").unwrap();
        watched.expect_change().await;
    }
}

#[tokio::test]
async fn missing_directory_leaves_looks() {
    let directory = TempDir::new("watch").unwrap();
    let file = directory.join("later/routes.yaml");
    let mut watcher = FileWatcher::new(vec![file.clone()], PARAMS).unwrap();
    watcher.watch_directories().unwrap_err();
    fs::create_dir(directory.join("later")).unwrap();
    fs::write(&file, "0").unwrap();
    let changed = time::timeout(LIMIT, watcher.changed());
    changed.await.expect("the change is noticed");
}
