//! `cargo xtask soak`: what the programs use as shipped, against the limits they are held to.
//!
//! ```text
//!     clients ── n connections ──▶ binary under test ──▶ echo server      (all on loopback)
//!                                   └ /proc: resident memory, descriptors
//! ```
//!
//! Prints every figure with its limit and fails when one is above. Measures memory and
//! descriptors, which are the same on a busy machine; no speed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::client_hello::ClientHello;
use testkit::command;
use testkit::netns::Place;
use testkit::process::{ChildGuard, Usage};
use testkit::proxy_header;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::console::Console;
use crate::workspace;

const ROUTES: usize = 10_000;
/// Connections held; four descriptors each are ours or the binary's, within 20,000 together.
const HELD: usize = 4_000;
/// Connections that move bulk at once, more than there are pipes, and how much each.
const BULK: usize = 200;
const BULK_BYTES: usize = 4 * 1024 * 1024;

const NODE_PROXY_KIB: u64 = 6 * 1024;
const GATEWAY_KIB: u64 = 30 * 1024;
/// After a reload the allocator keeps part of what the old table and the reading needed.
const GATEWAY_AFTER_KIB: u64 = 40 * 1024;
const CONNECTION_BYTES: u64 = 2 * 1024;

const PROGRAMS: [&str; 2] = ["sni-proxy", "apiserver-proxy"];

const CHUNK: usize = 128 * 1024;

pub(crate) fn run() -> Result<ExitCode> {
    let mut console = Console::new();
    console.heading("Soak: memory and descriptors of the programs as shipped");
    let programs = workspace::build(&PROGRAMS)?;
    let (gateway, node) = (programs.get("sni-proxy")?, programs.get("apiserver-proxy")?);
    let runtime = Runtime::new().context("starting a runtime")?;
    let upstream = Upstream::start(Behavior::Echo)?;
    let echo = upstream.addr();
    let _ = console.check("apiserver-proxy", || node_proxy(node, &runtime, echo));
    let _ = console.check("sni-proxy", || sni_proxy(gateway, &runtime, echo));
    Ok(ExitCode::from(u8::from(!console.result())))
}

/// Begins to build the programs with what other processes leave of the processors.
pub(crate) fn build_meanwhile() -> Result<Child> {
    let mut build = workspace::build_command(&PROGRAMS)?;
    build.args(["--quiet", "--jobs", "1"]);
    build
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let building = build.spawn().context("starting a build")?;
    let mut renice = Command::new("renice");
    renice.args(["-n", "19", "-p", &building.id().to_string()]);
    command::run(&mut renice)?;
    Ok(building)
}

fn node_proxy(program: &Path, runtime: &Runtime, echo: SocketAddr) -> Result<String> {
    let dir = TempDir::new("soak-node")?;
    let (listen, probes) = (Place::Here.free_address()?, Place::Here.free_address()?);
    dir.write(
        "proxy.yaml",
        format!(
            "listen: [\"{listen}\"]\nupstream: {{ address: \"{echo}\", mode: proxy-protocol }}\n\
             interface: {{ manage: false }}\nnoTrack: off\nprobes: {{ address: \"{probes}\" }}\n"
        ),
    )?;
    let child = start(program, &dir, "proxy.yaml", listen)?;
    let idle = settled(&child)?;
    let mut told = Vec::new();
    limit(&mut told, "idle", idle.rss_kib, NODE_PROXY_KIB, "KiB")?;
    let held = runtime.block_on(hold(listen, HELD, Vec::new))?;
    connections(&mut told, idle, settled(&child)?)?;
    drop(held);
    runtime.block_on(bulk(listen, Vec::new))?;
    descriptors(&mut told, &child, idle)?;
    Ok(told.join(", "))
}

fn sni_proxy(program: &Path, runtime: &Runtime, echo: SocketAddr) -> Result<String> {
    let dir = TempDir::new("soak-gateway")?;
    let (tls, node) = (Place::Here.free_address()?, Place::Here.free_address()?);
    let routes = |count: usize| {
        let cluster = |i: usize| format!("outbound|443||kube-apiserver.shoot--p{}--s{i}", i % 100);
        let clusters = (0..count).map(|i| {
            let name = cluster(i);
            format!("- {{ name: \"{name}\", endpoints: [{{ address: \"{echo}\" }}] }}\n")
        });
        let routes = (0..count).map(|i| {
            let (name, cluster) = (server_name(i), cluster(i));
            format!("- {{ serverNames: [\"{name}\"], cluster: \"{cluster}\" }}\n")
        });
        let (clusters, routes): (String, String) = (clusters.collect(), routes.collect());
        let one = cluster(0);
        let node = format!("- {{ destinations: [\"10.1.2.3\"], port: 443, cluster: \"{one}\" }}\n");
        format!("clusters:\n{clusters}routes:\n{routes}{node}")
    };
    dir.write("routes.yaml", routes(ROUTES))?;
    dir.write(
        "gateway.yaml",
        format!(
            "workers: 2\nprobes: {{ address: \"127.0.0.1:0\" }}\nadmin: {{ address: \"\" }}\n\
             listeners:\n- {{ name: tls, address: \"{tls}\", protocol: tls }}\n\
             - {{ name: node, address: \"{node}\", protocol: proxy-or-connect }}\n\
             routing: {{ file: routes.yaml }}\n"
        ),
    )?;
    let mut child = start(program, &dir, "gateway.yaml", tls)?;
    let idle = settled(&child)?;
    let mut told = Vec::new();
    let what = "10,000 routes, idle";
    limit(&mut told, what, idle.rss_kib, GATEWAY_KIB, "KiB")?;
    let mut next = 0;
    let hello = || {
        next += 1;
        ClientHello::for_name(&server_name(next % ROUTES)).encode()
    };
    let held = runtime.block_on(hold(tls, HELD, hello))?;
    connections(&mut told, idle, settled(&child)?)?;
    // Reloads under held connections; the last one has other routes.
    for generation in 2..=4 {
        dir.replace("routes.yaml", routes(ROUTES + generation))?;
        let line = format!("generation={generation} ");
        child.wait_log(&line, Duration::from_secs(10))?;
    }
    let held = runtime.block_on(still_there(held))?;
    drop(held);
    let destination = "10.1.2.3:443".parse().context("an address")?;
    let header = || proxy_header::v2(tls, destination, &[]);
    runtime.block_on(bulk(node, header))?;
    descriptors(&mut told, &child, idle)?;
    let (what, after) = ("after reloads and load", child.usage()?.rss_kib);
    limit(&mut told, what, after, GATEWAY_AFTER_KIB, "KiB")?;
    Ok(told.join(", "))
}

fn server_name(i: usize) -> String {
    format!("api.s{i}.p{}.internal.example.com", i % 100)
}

fn start(program: &Path, dir: &TempDir, config: &str, listens: SocketAddr) -> Result<ChildGuard> {
    let mut command = Command::new(program);
    command.arg("--config").arg(dir.join(config));
    command.env("RUST_LOG", "info");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let mut child = ChildGuard::spawn(&name, &command, &dir.join("log"))?;
    child.wait_listening(listens, Duration::from_secs(10))?;
    Ok(child)
}

/// Reads what the process uses once two readings a moment apart agree.
fn settled(child: &ChildGuard) -> Result<Usage> {
    let mut last = child.usage()?;
    for _ in 0..50 {
        wait::pause(Duration::from_millis(200));
        let now = child.usage()?;
        if now.rss_kib == last.rss_kib && now.descriptors == last.descriptors {
            return Ok(now);
        }
        last = now;
    }
    bail!("what the process uses does not settle: {last:?}")
}

fn limit(told: &mut Vec<String>, what: &str, is: u64, most: u64, unit: &str) -> Result<()> {
    told.push(format!("{what} {is} {unit} (limit {most})"));
    ensure!(is <= most, "{}", told.join(", "));
    Ok(())
}

/// Judges the memory of [`HELD`] idle connections.
fn connections(told: &mut Vec<String>, before: Usage, held: Usage) -> Result<()> {
    let grown = held.anonymous_kib.saturating_sub(before.anonymous_kib) * 1024;
    let (what, each) = ("each idle connection", grown / HELD as u64);
    limit(told, what, each, CONNECTION_BYTES, "bytes")
}

/// Waits until every descriptor that load needed is given back.
fn descriptors(told: &mut Vec<String>, child: &ChildGuard, before: Usage) -> Result<()> {
    let limit = Duration::from_secs(40);
    wait::until("descriptors are given back", limit, || {
        let now = child.usage();
        now.is_ok_and(|now| now.descriptors <= before.descriptors)
    })
    .with_context(|| format!("{:?} before, now {:?}", before.descriptors, child.usage()))?;
    told.push(format!("descriptors back to {}", before.descriptors));
    Ok(())
}

/// Opens `count` connections, each of which has sent `first` and received an echo of it.
async fn hold(
    addr: SocketAddr,
    count: usize,
    mut first: impl FnMut() -> Vec<u8>,
) -> Result<Vec<TcpStream>> {
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(addr).await?;
        let mut bytes = first();
        bytes.push(b'x');
        echoed(&mut stream, &bytes, b'x').await?;
        held.push(stream);
    }
    Ok(held)
}

async fn still_there(mut held: Vec<TcpStream>) -> Result<Vec<TcpStream>> {
    for (index, stream) in held.iter_mut().enumerate() {
        let echoed = echoed(stream, b"y", b'y').await;
        echoed.with_context(|| format!("connection {index} was lost"))?;
    }
    Ok(held)
}

/// Sends `bytes`, and waits for an answer that ends with `last`.
async fn echoed(stream: &mut TcpStream, bytes: &[u8], last: u8) -> Result<()> {
    stream.write_all(bytes).await?;
    let mut buf = [0; 4096];
    let answered = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            let read = stream.read(&mut buf).await?;
            ensure!(read > 0, "the connection ended");
            if buf[..read].last() == Some(&last) {
                return Ok(());
            }
        }
    });
    answered.await.context("no echo within 10 s")?
}

async fn bulk(addr: SocketAddr, first: impl Fn() -> Vec<u8>) -> Result<()> {
    let mut transfers = Vec::new();
    for _ in 0..BULK {
        let header = first();
        transfers.push(tokio::spawn(async move {
            let stream = TcpStream::connect(addr).await?;
            let (mut read, mut write) = stream.into_split();
            let sending = tokio::spawn(async move {
                write.write_all(&header).await?;
                let chunk = vec![b'b'; CHUNK];
                for _ in 0..BULK_BYTES / CHUNK {
                    write.write_all(&chunk).await?;
                }
                write.shutdown().await
            });
            let all = tokio::io::copy(&mut read, &mut tokio::io::sink()).await?;
            sending.await??;
            let complete = all >= BULK_BYTES as u64;
            ensure!(complete, "{all} bytes came back of {BULK_BYTES}");
            Ok(())
        }));
    }
    for transfer in transfers {
        transfer.await??;
    }
    Ok(())
}
