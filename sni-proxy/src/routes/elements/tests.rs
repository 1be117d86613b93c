//! Files that follow one another, against the reader that reads each alone.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use settings::{TcpSettings, yaml};

use super::super::RoutesFile;
use super::*;

/// A file as a program writes it, of shoots by their number and port.
fn file(shoots: &[(u16, u16)]) -> String {
    let mut text = "{\"clusters\":[\n".to_owned();
    for (at, (shoot, port)) in shoots.iter().enumerate() {
        let comma = if at == 0 { "" } else { ",\n" };
        let _ = write!(
            text,
            "{comma}{{\"name\":\"c{shoot}\",\"endpoints\":[{{\"address\":\"10.0.0.1:{port}\"}}]}}"
        );
    }
    text += "\n], \"routes\" : [";
    for (at, (shoot, _)) in shoots.iter().enumerate() {
        let comma = if at == 0 { "" } else { " ,\n" };
        let _ = write!(
            text,
            "{comma}{{\"serverNames\":[\"s{shoot}.example.com\"],\"cluster\":\"c{shoot}\"}}"
        );
    }
    text + "]}\n"
}

fn next(
    text: &(impl AsRef<[u8]> + ?Sized),
    memory: &Memory,
    previous: Option<&Snapshot>,
) -> Option<(Snapshot, Memory)> {
    let tcp = TcpSettings::default();
    let generation = previous.map_or(1, |snapshot| snapshot.generation() + 1);
    let found = read(
        text.as_ref(),
        &mut SharedOptions::new(&tcp),
        memory,
        previous,
        generation,
    );
    match (found?, previous) {
        (Found::New(snapshot, memory), _) => Some((*snapshot, memory)),
        // As if it were said anew, so that rows of files go on.
        (Found::Same, Some(previous)) => {
            let alone = by_yaml(text.as_ref()).map(|alone| told(&alone));
            assert_eq!(Some(told(previous)), alone);
            next(text, &Memory::default(), Some(previous))
        }
        (Found::Same, None) => panic!("after nothing everything is new"),
    }
}

fn first(text: &str) -> (Snapshot, Memory) {
    next(text, &Memory::default(), None).unwrap()
}

/// What a snapshot says, in words.
fn told(snapshot: &Snapshot) -> Vec<String> {
    let clusters = snapshot.clusters().map(|cluster| {
        let endpoints = cluster.endpoints().iter();
        let endpoints = endpoints.map(|one| format!("{:?} {:?}", one.address(), one.zone()));
        let endpoints: Vec<_> = endpoints.collect();
        format!(
            "{} {endpoints:?} {:?}",
            cluster.name(),
            cluster.connect_timeout()
        )
    });
    let routes = snapshot.routes().map(|route| {
        let (cluster, sources) = (route.cluster().name(), route.allow_sources());
        format!("{} {cluster} {sources:?}", route.matches())
    });
    clusters.chain(routes).collect()
}

fn by_yaml(text: &(impl AsRef<[u8]> + ?Sized)) -> Option<Snapshot> {
    let path = Path::new("routes.yaml");
    let file: RoutesFile = yaml::from_slice(text.as_ref(), path).ok()?;
    let spec = file.into_spec(path, &TcpSettings::default()).ok()?;
    Snapshot::build(spec, 1, None).ok()
}

#[test]
fn what_did_not_change_is_neither_read_nor_made_again() {
    let (before, memory) = first(&file(&[(1, 1), (2, 1), (3, 1)]));
    let (after, _) = next(&file(&[(1, 1), (9, 1), (3, 7)]), &memory, Some(&before)).unwrap();
    let [same, changed] = ["s1.example.com", "s3.example.com"].map(|name| {
        let of = |snapshot: &Snapshot| Arc::clone(snapshot.by_server_name(Some(name)).unwrap());
        (of(&before), of(&after))
    });
    assert!(Arc::ptr_eq(&same.0, &same.1));
    assert!(Arc::ptr_eq(same.0.cluster(), same.1.cluster()));
    // Its own words are the same, and it leads to where the new cluster is.
    assert_eq!(changed.1.cluster().endpoints()[0].address().port(), 7);
    assert_eq!(changed.0.cluster().endpoints()[0].address().port(), 1);
    assert!(after.by_server_name(Some("s2.example.com")).is_none());
}

#[test]
fn what_moved_is_not_made_again_however_far() {
    let shoots: Vec<(u16, u16)> = (0..200).map(|shoot| (shoot, 1)).collect();
    let (before, memory) = first(&file(&shoots));
    let turned: Vec<_> = shoots.iter().rev().copied().collect();
    let moved: Vec<_> = [&shoots[3..9], &shoots[..3], &shoots[9..]].concat();
    for (shoots, most_new) in [(turned, MANY), (moved, 3)] {
        let (after, memory) = next(&file(&shoots), &memory, Some(&before)).unwrap();
        let name = |shoot: u16| format!("s{shoot}.example.com");
        let route = |snapshot: &Snapshot, shoot: u16| {
            Arc::as_ptr(snapshot.by_server_name(Some(&name(shoot))).unwrap())
        };
        let new = (0..200).filter(|shoot| route(&before, *shoot) != route(&after, *shoot));
        assert!(new.count() <= most_new);
        assert_eq!(told(&after), told(&by_yaml(&file(&shoots)).unwrap()));
        // What is remembered of a file in another order is right, too.
        let (third, _) = next(&file(&shoots[1..]), &memory, Some(&after)).unwrap();
        assert_eq!(told(&third), told(&by_yaml(&file(&shoots[1..])).unwrap()));
    }
}

#[test]
fn a_memory_of_another_snapshot_is_of_no_use() {
    let (one, memory) = first(&file(&[(1, 1), (2, 1)]));
    let (two, _) = next(&file(&[(3, 1)]), &memory, Some(&one)).unwrap();
    let text = file(&[(1, 1), (2, 1)]);
    let (three, _) = next(&text, &memory, Some(&two)).unwrap();
    assert_eq!(told(&three), told(&one));
}

#[test]
fn anything_else_is_left_to_the_reader_that_says_why() {
    let good = file(&[(1, 1), (2, 1)]);
    for (from, to) in [
        ("\"c2\",\"endpoints\"", "\"c1\",\"endpoints\""),
        ("s2.example.com", "s1.example.com"),
        ("s2.example.com", "s2..example.com"),
        ("\"cluster\":\"c2\"", "\"cluster\":\"c3\""),
        (
            "\"cluster\":\"c2\"",
            "\"cluster\":\"c2\",\"cluster\":\"c2\"",
        ),
        ("\"cluster\":\"c2\"", "\"cluster\":\"c2\",\"klaster\":1"),
        ("10.0.0.1:1", "10.0.0.1"),
        ("]}\n", "]} x"),
        ("]}\n", "],\"routes\":[]}"),
        ("]}\n", "]"),
        (",\n{", "\n{"),
        (" ,\n", " ,,\n"),
        ("\"clusters\"", "\"clustres\""),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        assert!(next(&bad, &Memory::default(), None).is_none(), "{bad}");
        assert!(by_yaml(&bad).is_none(), "{bad}");
        // Nor does it help to have known most of it.
        let (before, memory) = first(&good);
        assert!(next(&bad, &memory, Some(&before)).is_none(), "{bad}");
    }
}

#[test]
fn a_file_that_says_the_same_makes_no_snapshot() {
    let tcp = TcpSettings::default();
    let again = |text: &str, memory: &Memory, previous: &Snapshot| {
        let options = &mut SharedOptions::new(&tcp);
        let found = read(text.as_bytes(), options, memory, Some(previous), 2);
        matches!(found, Some(Found::Same))
    };
    let shoots: Vec<(u16, u16)> = (0..50).map(|shoot| (shoot, 1)).collect();
    let text = file(&shoots);
    let (before, memory) = first(&text);
    assert!(again(&text, &memory, &before));
    assert!(
        again(&text.replace(",\n", " , "), &memory, &before),
        "but for white space"
    );
    for other in [
        &shoots[1..],
        &shoots[..49],
        &[&shoots[..], &[(99, 1)]].concat(),
    ] {
        assert!(!again(&file(other), &memory, &before));
    }
    let mut swapped = shoots;
    swapped.swap(3, 4);
    assert!(!again(&file(&swapped), &memory, &before));
    // What somebody else read has no elements to be the same as.
    let none = " {\"clusters\" : [ ] } ";
    let (nothing, memory) = first(none);
    assert!(again(none, &memory, &nothing));
    let memory = memory.of(text.as_bytes(), 1);
    assert!(!again(none, &memory, &nothing));
    assert!(memory.is_still(text.as_bytes(), Some(&nothing)));
    assert!(!memory.is_still(none.as_bytes(), Some(&nothing)));
    assert!(!memory.is_still(text.as_bytes(), None));
}

#[test]
fn elements_are_read_wherever_the_window_ends() {
    // Of many lengths, so that windows end in elements, between them, and in what is between them.
    let shoots: Vec<(u16, u16)> = (0..9000).map(|shoot| (shoot, 1 + shoot % 99)).collect();
    for room in 0..4 {
        let text = " ".repeat(room) + &file(&shoots);
        let (before, memory) = first(&text);
        let expected = by_yaml(&text).unwrap();
        assert_eq!(told(&before), told(&expected));
        let text = file(&shoots[room..]);
        let (after, _) = next(&text, &memory, Some(&before)).unwrap();
        assert_eq!(told(&after), told(&by_yaml(&text).unwrap()));
    }
}

#[test]
fn texts_with_escapes_are_what_they_stand_for() {
    let plain = file(&[(1, 1), (2, 1)]);
    let escaped = plain
        .replace("s1.", "\\u0073\\u0031.")
        .replace("c2", "\\u00632");
    assert_ne!(plain, escaped);
    assert_eq!(told(&first(&escaped).0), told(&first(&plain).0));
}

/// A file whose elements have several texts, in another order than the fields' own.
fn rich(shoots: &[(u16, &str)]) -> String {
    let clusters = shoots.iter().map(|(shoot, timeout)| {
        format!(
            r#"{{"endpoints":[{{"zone":"z{shoot}","address":"10.0.0.1:{shoot}"}},
               {{"address":"x{shoot}.example.com:1","zone":"y{shoot}"}}],
               "connectTimeout":"{timeout}","name":"c{shoot}"}}"#
        )
    });
    let routes = shoots.iter().map(|(shoot, _)| {
        format!(
            r#"{{"cluster":"c{shoot}","allowSources":["10.{shoot}.0.0/16","fd00:{shoot}::/32"],
               "serverNames":["s{shoot}.example.com","*.t{shoot}.example.com"]}}"#
        )
    });
    let [clusters, routes] =
        [clusters.collect(), routes.collect()].map(|all: Vec<_>| all.join(","));
    format!(r#"{{"clusters":[{clusters}],"routes":[{routes}]}}"#)
}

#[test]
fn elements_of_one_form_are_read_as_each_would_alone() {
    // The third has another duration, the fifth a form like the fourth's again.
    let text = rich(&[(1, "1s"), (2, "1s"), (3, "20ms"), (4, "1s"), (5, "1s")]);
    let escaped = text.replace("\"c4\"", "\"\\u00634\"");
    assert_ne!(text, escaped);
    for text in [text, escaped] {
        let alone = by_yaml(&text).unwrap();
        assert_eq!(told(&first(&text).0), told(&alone));
        assert_eq!(alone.clusters().count(), 5);
    }
}

#[test]
fn a_form_does_not_make_a_text_of_what_is_none() {
    let good = rich(&[(1, "1s"), (2, "1s"), (3, "1s")]);
    for (from, to) in [
        ("s2.example", &b"s2\n.example"[..]),
        ("c2\"}", &b"c2\xff\"}"[..]),
        ("c2\"}", &b"c2\"x\"}"[..]),
        ("s2.example", &b"s2\", .example"[..]),
        ("\"1s\",\"name\":\"c2", &b"\"1y\",\"name\":\"c2"[..]),
    ] {
        let at = good.find(from).unwrap();
        let (before, after) = (&good.as_bytes()[..at], &good.as_bytes()[at + from.len()..]);
        let bad = [before, to, after].concat();
        assert!(next(&bad, &Memory::default(), None).is_none(), "{to:?}");
    }
}

#[test]
fn a_file_may_have_no_routes_and_no_elements() {
    let (none, memory) = first(" {\"clusters\" : [ ] } ");
    assert!(told(&none).is_empty());
    let (some, _) = next(&file(&[(1, 1)]), &memory, Some(&none)).unwrap();
    assert_eq!(told(&some).len(), 2);
}

proptest! {
    /// Whatever comes, goes, moves and changes, in a row of files.
    #[test]
    fn a_row_of_files_says_what_each_would_alone(
        files in prop::collection::vec(prop::collection::vec((0..12_u16, 1..4_u16), 0..10), 1..8)
    ) {
        let mut last: Option<(Snapshot, Memory)> = None;
        for shoots in files {
            let text = file(&shoots);
            let nothing = Memory::default();
            let (previous, memory) =
                last.as_ref().map_or((None, &nothing), |(snapshot, memory)| (Some(snapshot), memory));
            let alone = by_yaml(&text);
            let now = next(&text, memory, previous);
            prop_assert_eq!(now.is_some(), alone.is_some());
            let (Some(now), Some(alone)) = (now, alone) else { continue };
            prop_assert_eq!(told(&now.0), told(&alone));
            for shoot in 0..12_u16 {
                let name = format!("s{shoot}.example.com");
                let cluster = |snapshot: &Snapshot| snapshot
                    .by_server_name(Some(&name))
                    .map(|route| route.cluster().name().to_string());
                prop_assert_eq!(cluster(&now.0), cluster(&alone));
            }
            last = Some(now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The same of files whose lists are in several pieces.
    #[test]
    fn a_row_of_large_files_says_what_each_would_alone(
        len in prop::sample::select(vec![127, 128, 129, 255, 256, 257]),
        steps in prop::collection::vec(
            prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 0..1000_u16), 1..4),
            1..6,
        ),
    ) {
        let mut shoots: Vec<(u16, u16)> = (0..len).map(|nth| (3 * nth, 1)).collect();
        let mut last = first(&file(&shoots));
        for changes in steps {
            let before = shoots.clone();
            for (kind, at, other) in changes {
                let place = at.index(shoots.len());
                match kind {
                    0 => drop(shoots.remove(place)),
                    1 => shoots[place].1 += 1,
                    2 => shoots.swap(place, usize::from(other) % len as usize / 2),
                    _ => shoots.insert(place, (other, 1)),
                }
            }
            let text = file(&shoots);
            let alone = by_yaml(&text);
            let now = next(&text, &last.1, Some(&last.0));
            prop_assert_eq!(now.is_some(), alone.is_some());
            let (Some(now), Some(alone)) = (now, alone) else {
                shoots = before;
                continue;
            };
            prop_assert_eq!(told(&now.0), told(&alone));
            for (shoot, port) in &shoots {
                let route = now.0.by_server_name(Some(&format!("s{shoot}.example.com")));
                let address = route.map(|route| route.cluster().endpoints()[0].address().to_string());
                prop_assert_eq!(address, Some(format!("10.0.0.1:{port}")));
            }
            last = now;
        }
    }
}
