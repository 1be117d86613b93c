//! Changes of every kind are noticed. Real time and real files: the limit is only there so that a
//! change that is missed fails the test.

use std::{fs, io::Write, os::unix::fs::symlink, path::Path, sync::mpsc};

use super::{scratch::Scratch, *};

const LIMIT: Duration = Duration::from_secs(20);

fn params() -> WatchParams {
    WatchParams {
        settle: Duration::from_millis(20),
        poll: Duration::from_millis(10),
        ..WatchParams::default()
    }
}

fn watch(files: &[&Path]) -> FileWatcher {
    let files = files.iter().map(|file| file.to_path_buf()).collect();
    FileWatcher::new(files, params()).unwrap()
}

async fn change(watcher: &mut FileWatcher) {
    time::timeout(LIMIT, watcher.changed())
        .await
        .expect("the change is noticed");
}

fn replace(path: &Path, content: &str) {
    let fresh = path.with_extension("tmp");
    fs::write(&fresh, content).unwrap();
    fs::rename(&fresh, path).unwrap();
}

#[tokio::test]
async fn a_file_renamed_over_it_is_a_change_each_time() {
    let scratch = Scratch::new();
    let file = scratch.path("routes.yaml");
    fs::write(&file, "0").unwrap();
    let mut watcher = watch(&[&file]);

    for round in 0..3 {
        replace(&file, &round.to_string());
        change(&mut watcher).await;
    }
}

#[tokio::test]
async fn a_write_in_place_is_a_change_even_of_the_same_size() {
    let scratch = Scratch::new();
    let file = scratch.path("routes.yaml");
    fs::write(&file, "0").unwrap();
    let mut watcher = watch(&[&file]);

    for content in ["1", "2", "longer"] {
        fs::write(&file, content).unwrap();
        change(&mut watcher).await;
    }
    // By another name, in a directory that is not watched.
    fs::create_dir(scratch.path("elsewhere")).unwrap();
    fs::hard_link(&file, scratch.path("elsewhere/other")).unwrap();
    change(&mut watcher).await;
    fs::write(scratch.path("elsewhere/other"), "3").unwrap();
    change(&mut watcher).await;
}

#[tokio::test]
async fn a_config_map_s_swap_is_a_change_each_time() {
    let scratch = Scratch::new();
    let publish = |version: u32| {
        let directory = scratch.path(&format!("..{version}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("routes.yaml"), version.to_string()).unwrap();
        symlink(format!("..{version}"), scratch.path("..data_tmp")).unwrap();
        fs::rename(scratch.path("..data_tmp"), scratch.path("..data")).unwrap();
        if version > 0 {
            fs::remove_dir_all(scratch.path(&format!("..{}", version - 1))).unwrap();
        }
    };
    publish(0);
    let file = scratch.path("routes.yaml");
    symlink("..data/routes.yaml", &file).unwrap();
    let mut watcher = watch(&[&file]);

    for version in 1..4 {
        publish(version);
        change(&mut watcher).await;
        assert_eq!(fs::read_to_string(&file).unwrap(), version.to_string());
    }
}

#[tokio::test]
async fn a_file_that_goes_and_comes_back_is_noticed_both_times() {
    let scratch = Scratch::new();
    let file = scratch.path("routes.yaml");
    fs::write(&file, "0").unwrap();
    let mut watcher = watch(&[&file]);

    for _ in 0..2 {
        fs::remove_file(&file).unwrap();
        change(&mut watcher).await;
        fs::write(&file, "1").unwrap();
        change(&mut watcher).await;
    }
}

#[tokio::test]
async fn a_file_and_its_directories_may_appear_later() {
    let scratch = Scratch::new();
    let file = scratch.path("x/y/routes.yaml");
    let mut watcher = watch(&[&file]);

    fs::create_dir_all(scratch.path("x/y")).unwrap();
    fs::write(&file, "0").unwrap();
    change(&mut watcher).await;
    fs::write(&file, "1").unwrap();
    change(&mut watcher).await;
    // A whole directory on the way is put aside, then replaced.
    fs::rename(scratch.path("x"), scratch.path("old")).unwrap();
    change(&mut watcher).await;
    fs::create_dir_all(scratch.path("new/y")).unwrap();
    fs::write(scratch.path("new/y/routes.yaml"), "2").unwrap();
    fs::rename(scratch.path("new"), scratch.path("x")).unwrap();
    change(&mut watcher).await;
}

#[tokio::test]
async fn any_of_several_files_is_enough() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    fs::write(&one, "").unwrap();
    let mut watcher = watch(&[&one, &two]);

    fs::write(&two, "").unwrap();
    change(&mut watcher).await;
    replace(&one, "1");
    change(&mut watcher).await;
}

#[tokio::test]
async fn last_of_many_rapid_changes_is_reported() {
    let scratch = Scratch::new();
    let file = scratch.path("routes.yaml");
    fs::write(&file, "start").unwrap();
    let mut watcher = watch(&[&file]);

    let target = file.clone();
    let writer = tokio::task::spawn_blocking(move || {
        for round in 0..500 {
            replace(&target, &round.to_string());
        }
        fs::write(&target, "last").unwrap();
    });
    loop {
        change(&mut watcher).await;
        if fs::read_to_string(&file).unwrap() == "last" {
            break;
        }
    }
    writer.await.unwrap();
}

#[tokio::test]
async fn a_file_that_never_rests_is_reported_all_the_same() {
    let scratch = Scratch::new();
    let file = scratch.path("routes.yaml");
    fs::write(&file, "start").unwrap();
    let params = WatchParams {
        settle: Duration::from_millis(200),
        settle_limit: Duration::from_millis(600),
        ..params()
    };
    let mut watcher = FileWatcher::new(vec![file.clone()], params).unwrap();

    let (stop, stopped) = mpsc::channel::<()>();
    let writer = tokio::task::spawn_blocking(move || {
        // Longer each time, for the times of a file move in steps of some milliseconds only.
        let mut file = fs::OpenOptions::new().append(true).open(&file).unwrap();
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            file.write_all(b".").unwrap();
        }
    });
    // The writer goes on until this has returned, or failed.
    change(&mut watcher).await;
    drop(stop);
    writer.await.unwrap();
}

#[tokio::test]
async fn a_wait_given_up_loses_nothing() {
    let scratch = Scratch::new();
    let file = scratch.path("routes.yaml");
    fs::write(&file, "0").unwrap();
    let mut watcher = watch(&[&file]);

    fs::write(&file, "1").unwrap();
    let until_seen = async {
        while time::timeout(Duration::from_millis(3), watcher.changed())
            .await
            .is_err()
        {}
    };
    time::timeout(LIMIT, until_seen)
        .await
        .expect("the change is noticed");
}

#[tokio::test]
async fn changes_of_other_files_are_not_reported() {
    let scratch = Scratch::new();
    let file = scratch.path("routes.yaml");
    fs::write(&file, "0").unwrap();
    let mut watcher = watch(&[&file]);

    fs::write(scratch.path("other"), "").unwrap();
    fs::read_to_string(&file).unwrap();
    assert!(!watcher.look());
    assert!(watcher.unsettled.is_none());
}
