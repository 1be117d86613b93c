//! What is read, and in which words the rest is refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::{ByteSize, HumanDuration, ListenAddress};

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Proxy {
    workers: u16,
    #[serde(default)]
    listeners: Vec<Listener>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    idle_timeout: Option<HumanDuration>,
    buffer: Option<ByteSize>,
    ratio: Option<f64>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Listener {
    name: String,
    address: ListenAddress,
    #[serde(default)]
    proxy_protocol: ProxyProtocol,
    #[serde(default)]
    verbose: bool,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
enum ProxyProtocol {
    #[default]
    Off,
    Optional,
    Custom {
        version: u8,
    },
}

fn proxy(text: &str) -> Result<Proxy, String> {
    from_str(text, "a".as_ref()).map_err(|error| error.to_string())
}

fn any(text: &str) -> Value {
    from_str(text, "a.yaml".as_ref()).unwrap()
}

/// Checks how texts are refused, one on each line: `TEXT => ERROR`. `\n` in a text is a line break, `\t` a tab, `*` at
/// the end of an error any text.
fn assert_refused<T: DeserializeOwned + std::fmt::Debug>(cases: &str) {
    for case in cases.lines().filter(|case| !case.is_empty()) {
        let (text, wanted) = case.split_once(" => ").unwrap();
        let text = text.replace("\\n", "\n").replace("\\t", "\t");
        let read = from_str::<T>(&text, "a".as_ref());
        let error = read.expect_err(case).to_string();
        match wanted.strip_suffix('*') {
            Some(beginning) => assert!(error.starts_with(beginning), "{case}: {error}"),
            None => assert_eq!(error, wanted, "{case}"),
        }
    }
}

#[test]
fn a_whole_file_is_read() {
    let read = proxy(
        r#"
# A comment.
workers: 4
listeners:
- { name: tls, address: "[::]:443", proxyProtocol: off }   # flow
- name: "node"
  address: 0.0.0.0:8443
  proxyProtocol: { custom: { version: 2 } }
  verbose: true
labels: { a: 1, 'b': "off", c: no }
idleTimeout: 1h30m
buffer: 64KiB
ratio: 3
"#,
    );
    let listener = |name: &str, address: &str| Listener {
        name: name.to_owned(),
        address: address.parse().unwrap(),
        proxy_protocol: ProxyProtocol::Off,
        verbose: false,
    };
    let labels = [("a", "1"), ("b", "off"), ("c", "no")];
    assert_eq!(
        read.unwrap(),
        Proxy {
            workers: 4,
            listeners: vec![
                listener("tls", "[::]:443"),
                Listener {
                    proxy_protocol: ProxyProtocol::Custom { version: 2 },
                    verbose: true,
                    ..listener("node", "0.0.0.0:8443")
                },
            ],
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            idle_timeout: Some(HumanDuration::from_secs(5400)),
            buffer: Some(ByteSize(65536)),
            ratio: Some(3.0),
        }
    );
}

#[test]
fn invalid_values_are_named_with_key() {
    assert_refused::<Proxy>(
        r"
workers: 1\nfoo: 2\n => a:2:1: foo: unknown key `foo`, expected one of `workers`, `listeners`, `labels`, `idleTimeout`, `buffer`, `ratio`
workers: 1\nlisteners:\n- name: a\n  address: :1\n  foo: 1\n => a:5:3: listeners[0].foo: unknown key `foo`, expected one of `name`, `address`, `proxyProtocol`, `verbose`
workers: 1\nlisteners:\n- name: a\n  address: :1\n  proxyProtocol: { custom: { versoin: 1 } }\n => a:5:30: listeners[0].proxyProtocol.custom.versoin: unknown key `versoin`, expected `version`
workers: many\n => a:1:10: workers: expected a whole number from 0 to 65535, found `many`
workers: 65536\n => a:1:10: workers: expected a whole number from 0 to 65535, found `65536`
workers: -1\n => a:1:10: workers: expected a whole number from 0 to 65535, found `-1`
workers:\n => a:1:8: workers: expected a whole number from 0 to 65535, found nothing
workers: [1]\n => a:1:10: workers: expected text, found a list
listeners: []\n => a:1:1: missing key `workers`
workers: 1\nlisteners: a\n => a:2:12: listeners: expected a list, found `a`
workers: 1\nlisteners: [a]\n => a:2:13: listeners[0]: expected a mapping, found `a`
workers: 1\nlisteners: {}\n => a:2:12: listeners: expected a list, found a mapping
workers: 1\nlabels: { a: }\n => a:2:12: labels.a: expected text, found nothing
workers: 1\nlabels: { a: [] }\n => a:2:14: labels.a: expected text, found a list
workers: 1\nidleTimeout: 10\n => a:2:14: idleTimeout: a duration needs a unit: `10s`, `10ms`, …
workers: 1\nidleTimeout: {}\n => a:2:14: idleTimeout: invalid type: map, expected a duration such as `10s`
workers: 1\nbuffer: 64K\n => a:2:9: buffer: `64K` is not a size; write it like `4096`, `64KiB`, `1MiB` or `1GiB`
workers: 1\nlisteners:\n  - name: a\n    address: localhost:1\n => a:4:14: listeners[0].address: `localhost:1` is not an address to listen on; write it like `[::]:443` or `10.0.0.1:443`
workers: 1\nlisteners:\n- name: a\n  address: :1\n- name: b\n => a:5:3: listeners[1]: missing key `address`
workers: 1\nlisteners:\n- { name: on, address: :1, verbose: off }\n => a:3:37: listeners[0].verbose: expected `true` or `false`, found `off`
workers: 1\nlisteners:\n- { name: on, address: :1, proxyProtocol: false }\n => a:3:43: listeners[0].proxyProtocol: unknown value `false`, expected one of `off`, `optional`, `custom`
- workers\n => a:1:1: expected a mapping, found nothing
workers\n => a:1:1: expected a mapping, found `workers`
",
    );
}

#[test]
fn foreign_yaml_is_refused_in_configuration() {
    assert_refused::<Proxy>(
        r#"
workers: 1\nbuffer: 1\nworkers: 2\n => a:3:1: duplicate key `workers`
workers: 1\nlabels:\n  a: 1\n  "a": 2\n => a:4:3: labels: duplicate key `a`
{"workers": 1,\n "labels": {"a": "1", "a": "2"}} => a:2:23: labels: duplicate key `a`
{"workers": 1,\n "foo": 2} => a:2:2: foo: unknown key `foo`*
{"workers": 1} {} => *
\n\n => a: the file is empty
# nothing\n => a: the file is empty
---\n => a: the file is empty
--- ~\n => a: the file is empty
null => a: the file is empty
workers: 1\n---\nworkers: 2\n => a:3:1: only single YAML document expected but multiple found
workers: !ruby/object 1\n => a:1:23: unsupported tag `!ruby/object`
<<: { workers: 1 }\n => a:1:1: merge key not allowed here*
? [a]\n: 1\n => a:1:3: expected text, found a list
workers: 1\nlabels: &a { k: *a }\n => a:2:17: labels: Recursive reference not allowed here
workers: 1\n\tlabels: {}\n => a:1:10*
listeners: [\n => a:1:12: listeners: *
workers: 'a\n => a:2:1: *
{ workers: 1 => a:1:*
a: b: c\n => a:1:*
workers: *absent\n => a:1:10*
"#,
    );
    assert_eq!(proxy(""), Err("a: the file is empty".to_owned()));
    let mut many = "workers: 1\nlabels:\n".to_owned();
    for key in 0..100 {
        many.push_str(&format!("  k{key}: x\n"));
    }
    assert_eq!(proxy(&many).unwrap().labels.len(), 100);
    many.push_str("  k7: x\n");
    let twice = "a:103:3: labels: duplicate key `k7`";
    assert_eq!(proxy(&many), Err(twice.to_owned()));
}

#[test]
fn words_and_numbers_are_what_yaml_1_2_says() {
    let on = "workers: 1\nlisteners:\n- { name: on, address: :1, proxyProtocol: off }\n";
    let read = proxy(on).unwrap();
    assert_eq!(read.listeners[0].name, "on");
    assert_eq!(read.listeners[0].proxy_protocol, ProxyProtocol::Off);
    assert_eq!(
        any(
            "[off, on, yes, no, y, n, Off, 'true', true, False, null, ~, 012, 1_0, 0o17, 1e1, \"1\"]"
        ),
        json!([
            "off", "on", "yes", "no", "y", "n", "Off", "true", true, false, null, null, 12.0,
            "1_0", 15, 10.0, "1"
        ])
    );
    assert_eq!(any("[!!str 1, ! 2, !!int 3]"), json!(["1", "2", 3]));
}

#[test]
fn choices_take_one_form_each() {
    let protocol = |text: &str| from_str::<ProxyProtocol>(text, "a".as_ref()).unwrap();
    assert_eq!(protocol("optional"), ProxyProtocol::Optional);
    assert_eq!(protocol("{ off: }"), ProxyProtocol::Off);
    let custom = ProxyProtocol::Custom { version: 1 };
    assert_eq!(protocol("custom: { version: 1 }"), custom);
    assert_refused::<ProxyProtocol>(
        r"
custom: { version: 1 }\noff: 1 => a:2:1: custom: expected end of mapping after enum variant value
custom: { version: 300 } => a:1:20: custom.version: expected a whole number from 0 to 255, found `300`
[] => a:1:1: externally tagged enum expected scalar or mapping
custom => a:1:7: custom: unexpected end of file
",
    );
}

#[test]
fn maps_may_have_numbers_as_keys() {
    let ports: BTreeMap<u16, bool> = from_str("{ 443: true, 8443: false }", "a".as_ref()).unwrap();
    assert_eq!(ports, BTreeMap::from([(443, true), (8443, false)]));
}

#[test]
fn aliases_stand_for_what_they_name() {
    assert_eq!(
        any("a: &x { k: &y [1, two] }\nb: *x\nc: [*y, *x]\nd: &z 5\ne: *z\n"),
        json!({
            "a": { "k": [1, "two"] }, "b": { "k": [1, "two"] },
            "c": [[1, "two"], { "k": [1, "two"] }], "d": 5, "e": 5,
        })
    );
}

fn error_of<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
    from_str::<T>(text, "a".as_ref()).unwrap_err().to_string()
}

#[test]
fn multiplying_aliases_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let inner = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
    }
    let error = error_of::<Value>(&bomb);
    assert!(error.contains("RecordedAnchorEvents"), "{error}");
    // Nor through keys that are not read.
    let error = error_of::<serde::de::IgnoredAny>(&bomb);
    assert!(error.contains("AnchorEvents"), "{error}");
    // Nor by anchors inside anchors, each kept for all around it.
    let nest = (0..60).map(|n| format!("&n{n} [")).collect::<String>();
    let wide = format!("{nest}{}{}", "x, ".repeat(10_000), "]".repeat(60));
    let error = error_of::<Value>(&wide);
    assert!(error.contains("AnchorEvents"), "{error}");
}

#[test]
fn deep_nesting_is_refused_whatever_its_form() {
    let list = |depth, of: &str| format!("{}{of}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(any(&list(63, "1")).is_array());
    let million = 1_000_000;
    for text in [
        list(65, "1"),
        "[".repeat(million),
        "{a: ".repeat(million),
        "{\"a\":".repeat(million),
        "- ".repeat(million),
        "? ".repeat(million),
        (0..1000)
            .map(|level| format!("{}a:\n", " ".repeat(level)))
            .collect(),
    ] {
        let error = error_of::<Value>(&text);
        assert!(error.starts_with("a:"), "{}: {error}", &text[..20]);
    }
    // What an alias adds to the depth counts as well.
    let alias = format!("- &a {}\n- {}\n", list(40, "x"), list(40, "*a"));
    let error = error_of::<Value>(&alias);
    assert!(error.ends_with("Depth { depth: 65 }"), "{error}");
}

#[test]
fn json_and_marked_documents_are_yaml() {
    let json = r#" {"workers": 1, "labels": {"a": "\u00e9\/"}, "idleTimeout": "5s"}"#;
    let read = proxy(json).unwrap();
    assert_eq!(read.labels["a"], "é/");
    assert_eq!(read.idle_timeout, Some(HumanDuration::from_secs(5)));
    assert!(proxy("{ workers: 1, labels: { a: 1 } } # flow, not JSON").is_ok());
    assert!(proxy("---\nworkers: 1\n...\n").is_ok());
}

#[test]
fn long_values_are_read_in_every_style() {
    let long = "a".repeat(100_000);
    for text in [
        format!("k: {long}"),
        format!("k: \"{long}\""),
        format!("{{ k: \"{long}\", 'l': m }}"),
        format!("k: >\n  {long}"),
        format!("- {{ \"k\":\n   '{long}' }}"),
        format!("[\"{long}\"]"),
    ] {
        let read = any(&text).to_string();
        assert!(read.contains(&long), "{}…", &text[..8]);
    }
}

#[test]
fn scalars_may_span_lines() {
    assert_eq!(
        any("a: |\n  x\n  y\nb: >-\n  x\n  y\nc: \"x\n  y\"\nd: x\n  y\n"),
        json!({ "a": "x\ny\n", "b": "x y", "c": "x y", "d": "x y" })
    );
}

#[test]
fn files_are_read_within_bounds() {
    let directory = testkit::tempdir::TempDir::new("yaml").unwrap();
    let path = directory.join("a.yaml");
    let load_error = || load::<Proxy>(&path).unwrap_err();
    let text = |what: &str| format!("{}:{what}", path.display());

    assert!(matches!(load_error(), ConfigError::Read(..)));
    std::fs::write(&path, "workers: 1\n").unwrap();
    assert_eq!(load::<Proxy>(&path).unwrap().workers, 1);
    std::fs::write(&path, b"workers: 1\n# \xff\n").unwrap();
    assert_eq!(load_error().to_string(), text("2: not UTF-8 text"));
    let file = File::create(&path).unwrap();
    file.set_len(MAX_FILE_BYTES + 1).unwrap();
    let too_large = text(" larger than the limit of 67108864 bytes");
    assert_eq!(load_error().to_string(), too_large);
    std::fs::write(&path, "").unwrap();
    assert_eq!(load_error().to_string(), text(" the file is empty"));
    let not_a_file = load::<Proxy>(directory.path());
    assert!(matches!(not_a_file, Err(ConfigError::Read(..))));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "[\\[\\]{}:,&*!|>'\"%@`#?~\n\t \\-a-c0-9.]{0,64}|(?s).{0,48}") {
        let _: Result<Value, ConfigError> = from_str(&text, "a".as_ref());
    }
}

#[test]
fn written_yaml_reads_back() {
    let value = json!({
        "apiVersion": "v1",
        "empty": {}, "none": [], "nothing": null, "yes": true,
        "words": ["off", "no", "1", "0x1f", "a b", "a: b", "", "~", "- x", "é\n", "plain-word"],
        "nested": [{ "a": 1, "b": { "c": ["x"] } }, [["deep"], []], "y"],
        "address": "fd8f:6d53:b97a:1::1/96",
    });
    let text = to_string(&value).unwrap();
    let read: Value = from_str(&text, "x".as_ref()).unwrap();
    assert_eq!(read, value, "{text}");
}

#[test]
fn yaml_is_readable() {
    let value = json!({ "peers": [{ "addresses": ["10.0.0.1"], "name": "vpn-shoot-0" }] });
    let expected = "peers:\n- addresses:\n  - \"10.0.0.1\"\n  name: vpn-shoot-0\n";
    assert_eq!(to_string(&value).unwrap(), expected);
}
