//! The profiles that come with this program: every one of them is filled in, for every listener.

use serde_json::json;
use testkit::tempdir::TempDir;

use super::render::render;
use super::*;
use crate::cpus::Cpus;
use crate::programs::value_name;

fn backend() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 4443))
}

fn context(profile: &Profile, listener: Listener) -> Value {
    let bound = Cpus::default().bind_load().unwrap();
    let setting = Setting::here(&bound, listener, Vec::new());
    let dir = TempDir::new("bench-profile").unwrap();
    let ports = profile.ports.iter();
    let ports = ports.map(|name| (name.clone(), json!(20_002))).collect();
    let address = SocketAddr::from(([127, 0, 0, 1], 20_001));
    let mut facts = target::facts(profile, &setting, &dir, address, ports).unwrap();
    let routes = Route::table(3, backend());
    facts["routes"] = routes.iter().map(Route::facts).collect();
    facts["route"] = Route::numbered(3, backend()).facts();
    facts
}

#[test]
fn profiles_render_for_each_listener() {
    let profiles = Profile::embedded().unwrap();
    assert_eq!(profiles.len(), 15);
    for (profile, (file, _)) in profiles.iter().zip(EMBEDDED) {
        assert_eq!(profile.name, *file, "a file is called as its profile");
        for listener in &profile.listeners {
            let context = context(profile, *listener);
            let what = format!("{} {}", profile.name, value_name(*listener));
            let mut all = String::new();
            for file in &profile.files {
                let text = render(&what, &file.text, &context).unwrap();
                assert!(text.ends_with('\n'), "{what}: {}", file.path);
                if file.path.ends_with(".json") || text.starts_with('{') {
                    serde_json::from_str::<Value>(&text).expect(&what);
                }
                all.push_str(&text);
            }
            for argument in &profile.args {
                all.push_str(&render(&what, argument, &context).unwrap());
            }
            let apply = profile.apply.iter();
            let words = apply.flat_map(|apply| [&apply.socket, &apply.send]);
            for word in words.flatten() {
                render(&what, word, &context).unwrap();
            }
            let route = Route::numbered(2, backend());
            let key = match listener {
                Listener::Connect => route.cluster,
                Listener::Proxy => route.destination.to_string(),
                Listener::Https => Route::numbered(0, backend()).name,
                Listener::Sni => route.name,
            };
            let one_backend = profile.name == "copy-loop" && all.contains(&backend().to_string());
            let routed = profile.is_direct() || one_backend || all.contains(&key);
            assert!(routed, "{what}: {all}");
        }
    }
}

#[test]
fn unknown_word_is_an_error() {
    let error = render("x.cfg", "{{ listen.snl }}", &json!({ "listen": {} })).unwrap_err();
    assert!(format!("{error:#}").contains("x.cfg"), "{error:#}");
}

#[test]
fn profile_inherits_from_extended_one() {
    let text = "name: mine\nextends: envoy\nvalues: { buffer: \"65536\" }\nstandard: false\n";
    let mine = Profile::read(text, Path::new("mine.yaml")).unwrap();
    let profiles = Profile::embedded().unwrap();
    let envoy = profiles.iter().find(|one| one.name == "envoy").unwrap();
    assert_eq!((mine.name.as_str(), mine.standard), ("mine", false));
    assert_eq!(mine.args, envoy.args);
    let context = context(&mine, Listener::Sni);
    let text = render("x", &mine.files[2].text, &context).unwrap();
    let buffer = "\"per_connection_buffer_limit_bytes\":65536";
    assert!(text.contains(buffer), "{text}");
}

#[test]
fn profile_errors_name_the_mistake() {
    for (text, word) in [
        ("name: a\nextends: nothing\n", "nothing"),
        ("name: a\nextends: envoy-32k\n", "envoy-32k"),
        ("name: a\nlistners: [sni]\n", "listners"),
        ("name: a\nlisteners: [udp]\n", "udp"),
        ("name: a\napply: { write: [b] }\n", "apply.write"),
        ("name: a\napply: { socket: b }\n", "apply.socket"),
    ] {
        let error = Profile::read(text, Path::new("mine.yaml")).unwrap_err();
        assert!(format!("{error:#}").contains(word), "{text}: {error:#}");
    }
}

/// A proxy that is none: `sh`, which waits, tells what it gets, and has its file in the log.
#[test]
fn added_name_is_written_and_signaled() {
    let dir = TempDir::new("bench-profile").unwrap();
    let path = dir.join("shell.yaml");
    let text = "name: shell\nprogram: { name: sh }\nports: [admin]\n\
        files:\n- path: names\n  text: |\n    {% for route in routes %}\n    {{ route.name }}\n    {% endfor %}\n\
        args: [-c, \"trap 'cat {{ dir }}/names' HUP; echo up on {{ listener.port }} {{ port.admin }}; \
        while :; do sleep 0.1; done\"]\n\
        apply: { write: [names], signal: HUP }\n";
    std::fs::write(&path, text).unwrap();
    let profile = Profile::load(&path).unwrap();
    let bound = Cpus::default().bind_load().unwrap();
    let setting = Setting::here(&bound, Listener::Sni, Route::table(1, backend()));
    let mut target = Target::launch(&profile, &setting).unwrap();
    let limit = std::time::Duration::from_secs(20);
    let says = |target: &mut Target, word: &str| {
        let child = target.child().unwrap();
        child.wait_log(word, limit).unwrap()
    };
    let up = says(&mut target, "up on");
    assert!(up.contains(&target.address().port().to_string()), "{up}");
    let change = target.prepare(Route::numbered(1, backend())).unwrap();
    target.tell(&change).unwrap();
    says(&mut target, "api.shoot1.");
    assert_eq!(target.routes().len(), 2);
    assert!(target.tree().unwrap().len() >= 1);
}
