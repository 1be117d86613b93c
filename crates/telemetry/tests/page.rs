//! The page in a real browser: with and without JavaScript, in both color schemes.
//!
//! Needs a `chromium` program, hence the feature. Screenshots are left in the target directory's
//! `tmp/`, for people to look at.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that fails is a test that fails"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use telemetry::{
    Bound, ClusterStatus, EndpointAddr, EndpointStatus, Endpoints, Fact, ListenerStatus,
    LogControl, Process, Registry, Status, admin,
};
use tokio::sync::oneshot;

/// Would rename the page if any of it were taken for markup.
const HOSTILE: &str = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
const HOSTILE_ESCAPED: &str = "&lt;/script&gt;&lt;img src=x onerror=";

/// A gateway with some load, whose numbers grow with every look at them.
#[derive(Default)]
struct Sample {
    looks: AtomicU64,
    /// From this look on `/status` fails.
    fails_from: Option<u64>,
}

impl Sample {
    fn listener(
        name: &str,
        address: &str,
        protocol: &str,
        look: u64,
        share: u64,
    ) -> ListenerStatus {
        ListenerStatus {
            name: name.to_owned(),
            address: address.to_owned(),
            protocol: protocol.to_owned(),
            active: 1200 * share + look,
            total: 812_345 * share + look,
            rx_bytes: (61 << 30) * share + look * share * 3_456_789,
            tx_bytes: (447 << 30) * share + look * share * 23_456_789,
        }
    }

    fn cluster(number: u64) -> ClusterStatus {
        let state = match number {
            1 => ["ejected", "ready", "ejected"],
            2 => ["unresolved", "ready", "ready"],
            _ => ["ready", "ready", "ready"],
        };
        let endpoint = |at: usize| EndpointStatus {
            address: format!("10.{}.{}.{}:443", number / 200, number % 200, at + 7),
            zone: Some(["eu-west-1a", "eu-west-1b", "eu-west-1c"][at].to_owned()),
            state: state[at],
            active: number % 17 + at as u64,
        };
        let name =
            format!("outbound|443||kube-apiserver.shoot--team-{number}--prod.svc.cluster.local");
        ClusterStatus {
            name: if number == 3 {
                HOSTILE.to_owned()
            } else {
                name
            },
            active: number % 17 * 3 + 3,
            failures: if number == 1 { 1204 } else { 0 },
            endpoints: if number == 4 {
                Vec::new()
            } else {
                (0..3).map(endpoint).collect()
            },
        }
    }

    fn status_at(&self, filter: &str) -> Status {
        let look = self.looks.fetch_add(1, Ordering::SeqCst) + 1;
        let mut clusters: Vec<_> = (1..=600).map(Self::cluster).collect();
        clusters.retain(|cluster| cluster.matches(filter));
        Status {
            version: "0.1.0",
            uptime: Duration::from_secs(273_600 + look * 2),
            generation: Some(4711),
            generation_age: Some(Duration::from_secs(754)),
            facts: vec![Fact {
                name: "zone".to_owned(),
                value: "eu-west-1a".to_owned(),
            }],
            listeners: vec![
                Self::listener("tls", "[::]:8443", "tls", look, 4),
                Self::listener("node", "[::]:9443", "proxy-or-connect", look, 2),
                Self::listener("vpn", "[::]:8132", "connect", look, 1),
            ],
            clusters_total: clusters.len(),
            clusters,
            ..Status::default()
        }
    }
}

impl Process for Sample {
    fn binary(&self) -> &'static str {
        "sni-proxy"
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn snapshot(&self) -> Value {
        json!({})
    }

    fn connections(&self, _limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        Box::pin(async { json!([]) })
    }

    fn drain(&self) {}

    fn status(&self) -> Status {
        self.status_at("")
    }

    fn status_of(&self, filter: &str) -> Status {
        self.status_at(filter)
    }

    fn extra_admin(&self, _method: &str, path: &str, _query: Option<&str>) -> Option<admin::Extra> {
        let failing = self
            .fails_from
            .is_some_and(|look| self.looks.load(Ordering::SeqCst) >= look);
        (path == "/status" && failing).then(|| (503, "text/plain", "no".to_owned()))
    }
}

/// The admin endpoints on a thread of their own, until dropped.
struct Server {
    process: Arc<Sample>,
    address: EndpointAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start(sample: Sample) -> Self {
        let process = Arc::new(sample);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let bound = {
            let _runtime = runtime.enter();
            Bound::new(&"127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let address = bound.local_addr().clone();
        let endpoints = Endpoints::admin(process.clone(), Registry::new(), LogControl::detached());
        let (end, ended) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            runtime.block_on(endpoints.serve(bound, async { drop(ended.await) }));
        });
        Self {
            process,
            address,
            end: Some(end),
            thread: Some(thread),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A place of its own for one run of the browser.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

#[derive(Clone, Copy, PartialEq)]
enum Script {
    Allowed,
    Blocked,
}

/// Runs the browser for eight seconds of its own time, which pass as fast as the network answers.
fn chromium(name: &str, url: &str, script: Script, more: &[&str]) -> Output {
    let profile = scratch(name);
    if script == Script::Blocked {
        // What a person sets in the browser's settings. The switch that turns scripts off
        // everywhere also stops the browser's own page that does the dumping.
        let preferences =
            json!({ "profile": { "default_content_setting_values": { "javascript": 2 } } });
        fs::create_dir(profile.join("Default")).unwrap();
        fs::write(profile.join("Default/Preferences"), preferences.to_string()).unwrap();
    }
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args([
            "--no-proxy-server",
            "--hide-scrollbars",
            "--enable-logging=stderr",
        ])
        .arg("--virtual-time-budget=8000")
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(more)
        .arg(url)
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(profile);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    output
}

/// Returns the document as it is in the end, and what the browser complained about.
fn dom(name: &str, url: &str, script: Script) -> (String, Vec<String>) {
    let output = chromium(name, url, script, &["--dump-dom"]);
    let complaints = String::from_utf8_lossy(&output.stderr);
    let complaints = complaints.lines().filter(|line| line.contains("CONSOLE"));
    let complaints = complaints.map(str::to_owned).collect();
    (String::from_utf8(output.stdout).unwrap(), complaints)
}

/// Returns what lies between `start` and `end`, for the first time.
fn between<'a>(html: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = html
        .split_once(start)
        .unwrap_or_else(|| panic!("{start} is not in {html}"));
    rest.split_once(end).unwrap().0
}

fn card<'a>(html: &'a str, id: &str) -> &'a str {
    between(
        between(html, &format!("id=\"card-{id}\""), "</div>"),
        "class=\"value\">",
        "<",
    )
}

fn first_listener(html: &str) -> Vec<&str> {
    let row = between(
        between(html, "id=\"listeners\"", "</tbody>"),
        "<tbody>",
        "</tr>",
    );
    row.split("</td>")
        .filter_map(|cell| cell.rsplit('>').next())
        .collect()
}

#[test]
fn page_without_javascript_is_whole_and_static() {
    let server = Server::start(Sample::default());
    let (html, complaints) = dom("static", &server.url(""), Script::Blocked);

    assert_eq!(server.process.looks.load(Ordering::SeqCst), 1);
    assert_eq!(card(&html, "connections"), "8,403");
    assert_eq!(first_listener(&html)[6..8], ["–", "–"]);
    assert!(html.contains("Reload for newer values"));
    assert!(html.contains("kube-apiserver.shoot--team-200--prod"));
    assert!(!html.contains("kube-apiserver.shoot--team-201--prod"));
    assert!(html.contains("The first 200 of 600."));
    assert!(html.contains(HOSTILE_ESCAPED));
    assert!(html.contains("<title>sni-proxy 0.1.0</title>"));
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn page_with_javascript_updates_values_and_rates() {
    let server = Server::start(Sample::default());
    let (html, complaints) = dom("live", &server.url(""), Script::Allowed);

    let looks = server.process.looks.load(Ordering::SeqCst);
    assert!(looks >= 4, "{looks} looks in eight seconds");
    // The document shows what one of the later answers said.
    let connections: u64 = card(&html, "connections").replace(',', "").parse().unwrap();
    assert!(
        (8403 + 3..=8400 + 3 * looks).contains(&connections),
        "{connections}"
    );
    assert!(
        card(&html, "rx").ends_with("MiB/s"),
        "{}",
        card(&html, "rx")
    );
    assert!(
        card(&html, "tx").ends_with("MiB/s"),
        "{}",
        card(&html, "tx")
    );
    let row = first_listener(&html);
    assert!(row[6].ends_with("/s") && row[7].ends_with("/s"), "{row:?}");
    assert_eq!(
        html.matches("scope=\"row\" class=\"code\"").count(),
        0,
        "rows were replaced"
    );
    assert!(html.contains("The first 200 of 600."));
    assert!(html.contains(HOSTILE_ESCAPED));
    assert!(html.contains("<title>sni-proxy 0.1.0</title>"));
    assert!(between(&html, "id=\"stale\"", ">").contains("hidden"));
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn filter_searches_all_clusters() {
    for (name, script) in [
        ("filter-static", Script::Blocked),
        ("filter-live", Script::Allowed),
    ] {
        let server = Server::start(Sample::default());
        let (html, _) = dom(name, &server.url("?filter=TEAM-59"), script);
        assert!(html.contains("value=\"TEAM-59\""), "{name}");
        assert!(html.contains("11 matching."), "{name}");
        assert!(
            html.contains("kube-apiserver.shoot--team-599--prod"),
            "{name}"
        );
        assert!(
            !html.contains("kube-apiserver.shoot--team-1--prod"),
            "{name}"
        );
    }
}

#[test]
fn page_reports_a_process_that_stops_answering() {
    let server = Server::start(Sample {
        fails_from: Some(3),
        ..Sample::default()
    });
    let (html, _) = dom("stale", &server.url(""), Script::Allowed);
    let notice = between(&html, "id=\"stale\"", "</p>");
    assert!(!notice.contains("hidden"), "{notice}");
    assert!(notice.contains("it answers 503"), "{notice}");
    assert_eq!(card(&html, "connections"), "8,409", "the last values stay");
}

#[test]
fn both_color_schemes_are_drawn() {
    let server = Server::start(Sample::default());
    // Blink numbers the schemes: 0 dark, 1 light.
    let shots = [("light", 1, 1280), ("dark", 0, 1280), ("narrow", 1, 500)].map(|shot| {
        let (name, scheme, width) = shot;
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}.png"));
        let _ = fs::remove_file(&path);
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        let size = format!("--window-size={width},1500");
        let target = format!("--screenshot={}", path.display());
        let more = [scheme.as_str(), &size, &target];
        chromium(
            &format!("shot-{name}"),
            &server.url(""),
            Script::Allowed,
            &more,
        );
        fs::read(&path).unwrap()
    });
    for shot in &shots {
        assert!(
            shot.starts_with(b"\x89PNG\r\n") && shot.len() > 20_000,
            "{}",
            shot.len()
        );
    }
    assert_ne!(shots[0], shots[1]);
}
