//! Who a certificate names, by the gateway and by kube-apiserver itself, for every form that OpenSSL writes.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use testkit::certs::Identity;
use testkit::command;
use testkit::wait;

use super::{NAME, Stage};
use crate::ours::LIMIT;
use crate::programs::{announce, client};

/// What the gateway makes of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Seen {
    /// The same user and groups as without it.
    Same,
    /// Nothing reaches an API server: 400.
    Refused,
}

/// In one test: API servers take their time to start.
#[test]
fn subjects_name_whom_the_api_server_finds() {
    announce("openssl");
    let stage = Stage::new();
    let utf8 = subjects().into_iter();
    let utf8 = utf8.map(|(subject, seen)| ("utf8only", subject, seen));
    // Kinds of strings by their bits: PrintableString, IA5String; T61String, BMPString.
    let others = [
        ("MASK:0x2", Seen::Same),
        ("MASK:0x10", Seen::Same),
        ("MASK:0x4", Seen::Refused),
        ("MASK:0x800", Seen::Refused),
    ];
    let others = others.map(|(mask, seen)| (mask, "O=devs\nCN=jane".to_owned(), seen));
    for (number, (mask, subject, seen)) in utf8.chain(others).enumerate() {
        let identity = sign(&stage, number, mask, &subject);
        let subject = format!("{mask}: {subject}");
        let mut users = Vec::new();
        for direct in [true, false] {
            let path = format!("/api/v1/namespaces/subject-{number}-{direct}");
            let (status, text) = ask(&stage, direct, &identity, &path);
            if !direct && seen == Seen::Refused {
                assert_eq!(status, 400, "{subject}: {text}");
                continue;
            }
            let audited = wait::until_some("an audited request", LIMIT, || {
                let all = stage.audited().into_iter();
                let mut of_path = all.filter(|(_, line)| line["requestURI"] == *path);
                of_path.next().map(|(_, line)| line["user"].clone())
            });
            let user = audited.unwrap_or_else(|error| panic!("{subject}: {error:#}; {text}"));
            users.push(user);
        }
        if seen == Seen::Same {
            assert_eq!(users[0], users[1], "{subject}");
            assert_ne!(users[0]["username"], "system:anonymous", "{subject}");
        }
    }
}

/// Sections of OpenSSL's configuration: `[dn]`, with `+` before an attribute of the same set.
fn subjects() -> Vec<(String, Seen)> {
    let dn = |lines: &[&str]| lines.join("\n");
    vec![
        (dn(&["CN=jane"]), Seen::Same),
        (dn(&["O=devs", "CN=jane"]), Seen::Same),
        // The last one counts, in the order of DER.
        (dn(&["0.CN=first", "1.CN=second"]), Seen::Same),
        (
            dn(&["0.CN=first", "O=devs", "1.CN=second", "1.O=ops"]),
            Seen::Same,
        ),
        (dn(&["CN=jane", "+O=devs"]), Seen::Same),
        (dn(&["0.CN=b", "+1.CN=a"]), Seen::Same),
        (dn(&["0.O=b", "1.O=a", "2.O=c", "CN=jane"]), Seen::Same),
        (dn(&["CN=jan\u{e9}", "O=d\u{e9}vs"]), Seen::Same),
        (
            dn(&["CN=system:node:a/b,c=d+e\\;f", "O=system:nodes"]),
            Seen::Same,
        ),
        (dn(&["OU=x", "C=DE", "CN=jane", "L=y"]), Seen::Same),
        // Nothing that a header could not carry as it is.
        (dn(&["CN=\" jane\""]), Seen::Refused),
        (dn(&["CN=\"jane \""]), Seen::Refused),
        (dn(&["CN=ja\u{85}ne"]), Seen::Refused),
        (dn(&["CN=\"\u{2003}jane\""]), Seen::Refused),
        (dn(&["O=devs"]), Seen::Refused),
    ]
}

/// Signs a certificate with the authority of clients.
fn sign(stage: &Stage, number: usize, mask: &str, subject: &str) -> Identity {
    let path = |name: &str| -> PathBuf { stage.dir.join(format!("subject-{number}.{name}")) };
    let mut config = String::new();
    writeln!(config, "[req]\nprompt=no\nutf8=yes\nstring_mask={mask}").unwrap();
    writeln!(config, "distinguished_name=dn\n[dn]\n{subject}").unwrap();
    writeln!(config, "[ext]\nextendedKeyUsage=clientAuth").unwrap();
    std::fs::write(path("cnf"), config).unwrap();
    let ca = stage
        .dir
        .write("signer.key", stage.secrets.clients.key_pem());
    let run = |command: &mut Command| {
        command::run(command).unwrap_or_else(|error| panic!("{subject}: {error:#}"))
    };
    let mut request = client("openssl");
    request.args([
        "req",
        "-new",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ]);
    request.arg("-config").arg(path("cnf"));
    request.arg("-keyout").arg(path("key"));
    request.arg("-out").arg(path("csr"));
    run(&mut request);
    let mut signing = client("openssl");
    signing.args(["x509", "-req", "-days", "2", "-set_serial"]);
    signing.arg((number + 1000).to_string());
    signing.arg("-CA").arg(stage.dir.join("clients.crt"));
    signing.arg("-CAkey").arg(ca.unwrap());
    signing
        .arg("-extfile")
        .arg(path("cnf"))
        .args(["-extensions", "ext"]);
    signing
        .arg("-in")
        .arg(path("csr"))
        .arg("-out")
        .arg(path("crt"));
    run(&mut signing);
    Identity {
        cert_pem: std::fs::read_to_string(path("crt")).unwrap(),
        key_pem: std::fs::read_to_string(path("key")).unwrap(),
    }
}

/// Asks with curl, which shows the certificate.
fn ask(stage: &Stage, direct: bool, identity: &Identity, path: &str) -> (u16, String) {
    let (addr, authority) = stage.way(direct);
    let dir = stage.dir.path();
    let files = identity.write(dir, "subject").unwrap();
    let ca = stage.dir.write("subject.ca", authority).unwrap();
    let mut curl = client("curl");
    curl.args(["--silent", "--show-error", "--write-out", "\n%{http_code}"]);
    curl.args(["--noproxy", "*", "--cacert"]).arg(ca);
    curl.arg("--cert")
        .arg(files.cert)
        .arg("--key")
        .arg(files.key);
    curl.arg("--resolve")
        .arg(format!("{NAME}:{}:{}", addr.port(), addr.ip()));
    curl.arg(format!("https://{NAME}:{}{path}", addr.port()));
    let said = command::run(&mut curl).unwrap_or_else(|error| panic!("{error:#}"));
    let (text, status) = said.trim_end().rsplit_once('\n').unwrap_or(("", &said));
    (status.parse().unwrap(), text.to_owned())
}
