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
    from_str(text, "sni-proxy.yaml".as_ref()).map_err(|error| error.to_string())
}

fn refusal(text: &str) -> String {
    proxy(text).expect_err("is refused")
}

fn any(text: &str) -> Value {
    from_str(text, "a.yaml".as_ref()).unwrap()
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
fn unknown_keys_are_named_with_their_place() {
    assert_eq!(
        refusal("workers: 1\nfoo: 2\n"),
        "sni-proxy.yaml:2:1: foo: unknown key `foo`, expected one of `workers`, `listeners`, `labels`, \
         `idleTimeout`, `buffer`, `ratio`"
    );
    assert_eq!(
        refusal("workers: 1\nlisteners:\n- name: a\n  address: :1\n  foo: 1\n"),
        "sni-proxy.yaml:5:3: listeners[0].foo: unknown key `foo`, expected one of `name`, `address`, \
         `proxyProtocol`, `verbose`"
    );
    assert_eq!(
        refusal(
            "workers: 1\nlisteners:\n- name: a\n  address: :1\n  proxyProtocol: { custom: { versoin: 1 } }\n"
        ),
        "sni-proxy.yaml:5:30: listeners[0].proxyProtocol.custom.versoin: unknown key `versoin`, expected `version`"
    );
}

#[test]
fn duplicate_keys_are_refused_in_structs_and_maps() {
    assert_eq!(
        refusal("workers: 1\nbuffer: 1\nworkers: 2\n"),
        "sni-proxy.yaml:3:1: duplicate key `workers`"
    );
    assert_eq!(
        refusal("workers: 1\nlabels:\n  a: 1\n  \"a\": 2\n"),
        "sni-proxy.yaml:4:3: labels: duplicate key `a`"
    );
    let mut many = "workers: 1\nlabels:\n".to_owned();
    for key in 0..100 {
        many.push_str(&format!("  k{key}: x\n"));
    }
    assert_eq!(proxy(&many).unwrap().labels.len(), 100);
    many.push_str("  k7: x\n");
    assert_eq!(
        refusal(&many),
        "sni-proxy.yaml:103:3: labels: duplicate key `k7`"
    );
}

#[test]
fn wrong_values_are_named_with_their_key() {
    let cases = [
        (
            "workers: many\n",
            "1:10: workers: expected a whole number from 0 to 65535, found `many`",
        ),
        (
            "workers: 65536\n",
            "1:10: workers: expected a whole number from 0 to 65535, found `65536`",
        ),
        (
            "workers: -1\n",
            "1:10: workers: expected a whole number from 0 to 65535, found `-1`",
        ),
        (
            "workers:\n",
            "1:8: workers: expected a whole number from 0 to 65535, found nothing",
        ),
        (
            "workers: [1]\n",
            "1:10: workers: expected text, found a list",
        ),
        ("listeners: []\n", "1:1: missing key `workers`"),
        (
            "workers: 1\nlisteners: a\n",
            "2:12: listeners: expected a list, found `a`",
        ),
        (
            "workers: 1\nlisteners: [a]\n",
            "2:13: listeners[0]: expected a mapping, found `a`",
        ),
        (
            "workers: 1\nlisteners: {}\n",
            "2:12: listeners: expected a list, found a mapping",
        ),
        (
            "workers: 1\nlabels: { a: }\n",
            "2:12: labels.a: expected text, found nothing",
        ),
        (
            "workers: 1\nlabels: { a: [] }\n",
            "2:14: labels.a: expected text, found a list",
        ),
        (
            "workers: 1\nidleTimeout: 10\n",
            "2:14: idleTimeout: a duration needs a unit: `10s`, `10ms`, …",
        ),
        (
            "workers: 1\nidleTimeout: {}\n",
            "2:14: idleTimeout: invalid type: map, expected a duration such as `10s`",
        ),
        (
            "workers: 1\nbuffer: 64K\n",
            "2:9: buffer: `64K` is not a size; write it like `4096`, `64KiB`, `1MiB` or `1GiB`",
        ),
        (
            "workers: 1\nlisteners:\n  - name: a\n    address: localhost:1\n",
            "4:14: listeners[0].address: `localhost:1` is not an address to listen on; write it \
             like `[::]:443` or `10.0.0.1:443`",
        ),
        (
            "workers: 1\nlisteners:\n- name: a\n  address: :1\n- name: b\n",
            "5:3: listeners[1]: missing key `address`",
        ),
        ("- workers\n", "1:1: expected a mapping, found nothing"),
        ("workers\n", "1:1: expected a mapping, found `workers`"),
    ];
    for (text, expected) in cases {
        assert_eq!(
            refusal(text),
            format!("sni-proxy.yaml:{expected}"),
            "{text}"
        );
    }
}

#[test]
fn off_is_a_word_and_no_boolean() {
    let listener =
        |rest: &str| format!("workers: 1\nlisteners:\n- {{ name: on, address: :1, {rest} }}\n");

    let read = proxy(&listener("proxyProtocol: off")).unwrap();

    assert_eq!(read.listeners[0].name, "on");
    assert_eq!(read.listeners[0].proxy_protocol, ProxyProtocol::Off);
    assert_eq!(
        refusal(&listener("verbose: off")),
        "sni-proxy.yaml:3:37: listeners[0].verbose: expected `true` or `false`, found `off`"
    );
    assert_eq!(
        refusal(&listener("proxyProtocol: false")),
        "sni-proxy.yaml:3:43: listeners[0].proxyProtocol: unknown value `false`, expected one of \
         `off`, `optional`, `custom`"
    );
    assert_eq!(
        any(
            "[off, on, yes, no, y, n, Off, 'true', true, False, null, ~, 012, 1_0, 0o17, 1e1, \"1\"]"
        ),
        json!([
            "off", "on", "yes", "no", "y", "n", "Off", "true", true, false, null, null, 12.0,
            "1_0", 15, 10.0, "1"
        ])
    );
}

#[test]
fn choices_take_one_form_each() {
    let protocol = |text: &str| {
        from_str::<ProxyProtocol>(text, "a".as_ref()).map_err(|error| error.to_string())
    };
    assert_eq!(protocol("optional"), Ok(ProxyProtocol::Optional));
    assert_eq!(protocol("{ off: }"), Ok(ProxyProtocol::Off));
    assert_eq!(
        protocol("custom: { version: 1 }"),
        Ok(ProxyProtocol::Custom { version: 1 })
    );
    assert_eq!(
        protocol("custom: { version: 1 }\noff: 1"),
        Err("a:2:1: custom: expected end of mapping after enum variant value".to_owned())
    );
    assert_eq!(
        protocol("custom: { version: 300 }"),
        Err(
            "a:1:20: custom.version: expected a whole number from 0 to 255, found `300`".to_owned()
        )
    );
    assert_eq!(
        protocol("[]"),
        Err("a:1:1: externally tagged enum expected scalar or mapping".to_owned())
    );
    assert_eq!(
        protocol("custom"),
        Err("a:1:7: custom: unexpected end of file".to_owned())
    );
}

#[test]
fn maps_may_have_numbers_as_keys() {
    let ports: BTreeMap<u16, bool> = from_str("{ 443: true, 8443: false }", "a".as_ref()).unwrap();
    assert_eq!(ports, BTreeMap::from([(443, true), (8443, false)]));
}

#[test]
fn several_documents_are_refused() {
    for empty in ["", "\n\n", "# nothing\n", "---\n", "--- ~\n", "null"] {
        assert_eq!(
            refusal(empty),
            "sni-proxy.yaml: the file is empty",
            "{empty:?}"
        );
    }
    assert_eq!(
        refusal("workers: 1\n---\nworkers: 2\n"),
        "sni-proxy.yaml:3:1: only single YAML document expected but multiple found"
    );
    assert!(proxy("---\nworkers: 1\n...\n").is_ok());
}

#[test]
fn syntax_errors_have_a_place() {
    for (text, place) in [
        ("workers: 1\n\tlabels: {}\n", "sni-proxy.yaml:1:10"),
        ("listeners: [\n", "sni-proxy.yaml:1:12: listeners: "),
        ("workers: 'a\n", "sni-proxy.yaml:2:1: "),
        ("{ workers: 1", "sni-proxy.yaml:1:"),
        ("a: b: c\n", "sni-proxy.yaml:1:"),
        ("workers: *absent\n", "sni-proxy.yaml:1:10"),
    ] {
        assert!(refusal(text).starts_with(place), "{}", refusal(text));
    }
}

#[test]
fn tags_and_merge_keys_are_not_configuration() {
    assert_eq!(
        refusal("workers: !ruby/object 1\n"),
        "sni-proxy.yaml:1:23: unsupported tag `!ruby/object`"
    );
    assert_eq!(any("[!!str 1, ! 2, !!int 3]"), json!(["1", "2", 3]));
    assert!(refusal("<<: { workers: 1 }\n").contains(":1:1: merge key not allowed here"));
    assert_eq!(
        refusal("? [a]\n: 1\n"),
        "sni-proxy.yaml:1:3: expected text, found a list"
    );
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
    assert_eq!(
        refusal("workers: 1\nlabels: &a { k: *a }\n"),
        "sni-proxy.yaml:2:17: labels: Recursive reference not allowed here"
    );
}

#[test]
fn multiplying_aliases_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let inner = format!("*a{}", level - 1);
        bomb.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![inner; 10].join(", ")
        ));
    }
    let error = from_str::<Value>(&bomb, "bomb".as_ref())
        .unwrap_err()
        .to_string();
    assert!(error.contains("RecordedAnchorEvents"), "{error}");
    // Nor through keys that are not read.
    let error = from_str::<serde::de::IgnoredAny>(&bomb, "bomb".as_ref())
        .unwrap_err()
        .to_string();
    assert!(error.contains("AnchorEvents"), "{error}");
    // Nor by anchors inside anchors, each kept for all around it.
    let nest = (0..60).map(|n| format!("&n{n} [")).collect::<String>();
    let wide = format!("{nest}{}{}", "x, ".repeat(10_000), "]".repeat(60));
    let error = from_str::<Value>(&wide, "wide".as_ref())
        .unwrap_err()
        .to_string();
    assert!(error.contains("AnchorEvents"), "{error}");
}

#[test]
fn deep_nesting_is_refused_whatever_its_form() {
    let fits = format!("{}1{}", "[".repeat(63), "]".repeat(63));
    assert!(any(&fits).is_array());
    let million = 1_000_000;
    let deep = [
        format!("{}1{}", "[".repeat(65), "]".repeat(65)),
        "[".repeat(million),
        "{a: ".repeat(million),
        "{\"a\":".repeat(million),
        "- ".repeat(million),
        "? ".repeat(million),
        (0..1000)
            .map(|level| format!("{}a:\n", " ".repeat(level)))
            .collect(),
        format!("a: &a {}\n", "[".repeat(40)) + &"]".repeat(40),
    ];
    for text in &deep[..deep.len() - 1] {
        let error = from_str::<Value>(text, "deep".as_ref())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("deep:"),
            "{}: {error}",
            &text[..20.min(text.len())]
        );
    }
    // What an alias adds to the depth counts as well.
    let alias = format!(
        "- &a {}x{}\n- {}*a{}\n",
        "[".repeat(40),
        "]".repeat(40),
        "[".repeat(40),
        "]".repeat(40)
    );
    let error = from_str::<Value>(&alias, "deep".as_ref())
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("Depth { depth: 65 }"), "{error}");
}

#[test]
fn json_is_yaml_and_is_refused_in_the_same_words() {
    let read =
        proxy(r#" {"workers": 1, "labels": {"a": "\u00e9\/"}, "idleTimeout": "5s"}"#).unwrap();
    assert_eq!(read.labels["a"], "é/");
    assert_eq!(read.idle_timeout, Some(HumanDuration::from_secs(5)));
    assert_eq!(
        refusal("{\"workers\": 1,\n \"labels\": {\"a\": \"1\", \"a\": \"2\"}}"),
        "sni-proxy.yaml:2:23: labels: duplicate key `a`"
    );
    assert!(
        refusal("{\"workers\": 1,\n \"foo\": 2}")
            .starts_with("sni-proxy.yaml:2:2: foo: unknown key `foo`")
    );
    assert!(proxy("{ workers: 1, labels: { a: 1 } } # flow, not JSON").is_ok());
    assert!(proxy("{\"workers\": 1} {}").is_err());
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
    let directory = crate::watch::scratch::Scratch::new();
    let path = directory.path("a.yaml");
    let load_error = || load::<Proxy>(&path).unwrap_err();

    assert!(matches!(load_error(), ConfigError::Read { .. }));
    std::fs::write(&path, "workers: 1\n").unwrap();
    assert_eq!(load::<Proxy>(&path).unwrap().workers, 1);
    std::fs::write(&path, b"workers: 1\n# \xff\n").unwrap();
    assert_eq!(
        load_error().to_string(),
        format!("{}:2: not UTF-8 text", path.display())
    );
    File::create(&path)
        .unwrap()
        .set_len(MAX_FILE_BYTES + 1)
        .unwrap();
    assert!(matches!(
        load_error(),
        ConfigError::TooLarge {
            limit: MAX_FILE_BYTES,
            ..
        }
    ));
    std::fs::write(&path, "").unwrap();
    assert_eq!(
        load_error().to_string(),
        format!("{}: the file is empty", path.display())
    );
    assert!(matches!(
        load::<Proxy>(directory.root()),
        Err(ConfigError::Read { .. })
    ));
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
