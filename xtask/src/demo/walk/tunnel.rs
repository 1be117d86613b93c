//! The way back by tunnel: from the seed into the shoot over TCP, then over UDP; the gateway is
//! killed under a watch, the way for datagrams opens and closes; nothing leads the other way.
//!
//! The watch is opened once, and is the same in every step.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::command;
use testkit::netns::{Namespace, Place};
use testkit::wait::{self, Stopwatch};

use super::{Stage, egress};
use crate::console::Console;
use crate::demo::gateway;
use crate::demo::konnectivity::{KUBELET, NODE_NAME};
use crate::demo::tunnel::{self, Credentials, Firewall, POD, Side, Tunnel};
use crate::demo::watcher::Watcher;

pub(super) fn show(console: &mut Console, stage: &mut Stage) -> Result<()> {
    let heading = "The way back by tunnel: WireGuard, over TCP or UDP, whichever gets through";
    console.heading(heading);
    let firewall = start(console, stage)?;
    reach(console, stage, "TCP")?;
    without_certificate(console, stage)?;
    let watch = console.step("a watch runs, from the pod to the seed", || {
        let [shoot, _] = &stage.shoots;
        let target = credentials(stage)?.target(&shoot.kubelets, POD);
        let watch = shoot.watch(Place::In(&stage.network.seed), &target.timeout(LIMIT))?;
        Ok((watch, "events flow, by TCP".to_owned()))
    })?;
    kill_gateway(console, stage, &watch, "tcp")?;
    let name = "the firewall lets UDP through: the tunnel moves to UDP";
    move_to(console, stage, name, (&watch, "udp"), || {
        drop(firewall);
        Ok(())
    })?;
    reach(console, stage, "UDP")?;
    kill_gateway(console, stage, &watch, "udp")?;
    let mut firewall = None;
    let name = "the firewall drops UDP again: the tunnel moves to TCP";
    move_to(console, stage, name, (&watch, "tcp"), || {
        firewall = Some(Firewall::close(&stage.network.seed, node(stage))?);
        Ok(())
    })?;
    drop(firewall);
    not_backwards(console, stage)?;
    console.check("curl --proxy → kubelet on the node", || {
        let text = curl(stage, KUBELET, "/metrics")?;
        ensure!(text.contains(NODE_NAME), "another answered: {text}");
        Ok(text.trim_end().to_owned())
    })
}

fn start(console: &mut Console, stage: &mut Stage) -> Result<Firewall> {
    let [shoot, other] = &stage.shoots;
    let (seed, machines) = (&stage.network.seed, &stage.network.shoots[0]);
    let (place, pod, credentials, server) = console.step(
        "vpn-server in the seed, at the address of shoot a's pod",
        || {
            let place = tunnel::lay(seed)?;
            let pod = tunnel::start_pod(shoot, &machines.pod)?;
            let credentials = Credentials::write(&stage.programs, &stage.dir, &shoot.kubelets)?;
            let server = tunnel::start_server(stage, &place, &credentials)?;
            let status = Side::Server.ready(&place)?;
            ensure!(status == 503, "/readyz answers {status} without a client");
            let detail = format!("{}; not ready: no client has come", tunnel::PROXY);
            Ok(((place, pod, credentials, server), detail))
        },
    )?;
    let firewall = console.step("a firewall in between drops UDP", || {
        let [stream, datagrams] = credentials.routes(shoot);
        let routes = [stream, datagrams, egress::route(stage)];
        stage.change_routes(&[shoot, other], &routes)?;
        let (open, closed) = (gateway::VPN, gateway::WIREGUARD);
        let detail = format!("{open} is open, and {closed}/udp is not");
        Ok((Firewall::close(seed, &machines.node)?, detail))
    })?;
    let client = console.step("vpn-client on the node of shoot a", || {
        let node = &machines.node;
        let clock = Stopwatch::start();
        let client = tunnel::start_client(stage, &credentials)?;
        let took = clock.elapsed();
        expect(node, "tcp")?;
        let ready = || matches!(Side::Server.ready(&place), Ok(200));
        wait::until("the server to be ready", LIMIT, ready)?;
        let detail = format!("{took:.1?} from its start to a tunnel, by TCP");
        Ok((client, detail))
    })?;
    stage.tunnel = Some(Tunnel {
        client,
        server,
        credentials,
        _pod: pod,
        place,
    });
    Ok(firewall)
}

/// Asks the pod by curl, as the API server would.
fn reach(console: &mut Console, stage: &Stage, transport: &str) -> Result<()> {
    let proxy = tunnel::PROXY;
    let name = format!("over {transport}: curl --proxy https://{proxy} → the pod");
    console.check(&name, || {
        expect(node(stage), &transport.to_lowercase())?;
        let answer: serde_json::Value = serde_json::from_str(&curl(stage, POD, "/version")?)?;
        let (who, peer) = (answer["shoot"].as_str(), answer["peer"].as_str());
        let right = who == Some(tunnel::POD_NAME);
        ensure!(right, "another server answered: {answer}");
        let peer: SocketAddr = peer.context("no peer in the answer")?.parse()?;
        ensure!(peer.ip() == KUBELET.ip(), "it was asked by {peer}");
        let large = curl(stage, POD, &format!("/big?bytes={LARGE}"))?;
        ensure!(large.len() == LARGE, "{} bytes came", large.len());
        let (name, whom) = (tunnel::POD_NAME, peer.ip());
        Ok(format!("answered by {name}, which saw {whom}; then 10 MiB"))
    })
}

/// No client asks the proxy without a certificate, and it leads nowhere but into the shoot.
fn without_certificate(console: &mut Console, stage: &Stage) -> Result<()> {
    let seed = &stage.network.seed;
    console.check("without a certificate, and to elsewhere: refused", || {
        let tunnel = stage.tunnel.as_ref().context("no tunnel")?;
        let mut stranger = tunnel.credentials.curl(seed, false)?;
        let output = command::output(stranger.arg(format!("https://{POD}/version")))?;
        ensure!(!output.status.success(), "a stranger was let in");
        let failed = "rhizome_vpn_proxy_handshakes_failed_total";
        wait::until("the failed handshake to be counted", LIMIT, || {
            let count = Side::Server.metric(&tunnel.place, failed, &[]);
            count.is_ok_and(|count| count >= 1.0)
        })?;
        let elsewhere = stage.shoots[0].endpoint;
        let mut curl = tunnel.credentials.curl(seed, true)?;
        curl.args(["--write-out", "%{http_connect}", "--output", "/dev/null"]);
        let output = command::output(curl.arg(format!("https://{elsewhere}/version")))?;
        let status = String::from_utf8_lossy(&output.stdout).into_owned();
        let refused = status == "403";
        ensure!(refused, "CONNECT {elsewhere} was answered with {status}");
        Ok(format!("a failed handshake; CONNECT {elsewhere}: {status}"))
    })
}

/// Kills the gateway and starts it anew: all that is between is gone, but for the watch.
fn kill_gateway(
    console: &mut Console,
    stage: &mut Stage,
    watch: &Watcher,
    transport: &str,
) -> Result<()> {
    let name = "the gateway is killed and started anew: the watch goes on";
    console.check(name, || {
        stage.gateway.kill()?;
        let clock = Stopwatch::start();
        stage.start_gateway()?;
        let ready = clock.elapsed();
        watch.wait_more(1)?;
        let next = clock.elapsed();
        let uses = || Side::Client.uses(node(stage), transport);
        wait::until("the same transport", LIMIT, uses)?;
        let events = watch.wait_more(MORE)?;
        Ok(format!(
            "a gateway after {ready:.1?}, the next event after {next:.1?}; {events} events, \
                     none missing"
        ))
    })
}

/// Changes what gets through, and waits for the client to use `transport`.
fn move_to(
    console: &mut Console,
    stage: &Stage,
    name: &str,
    (watch, transport): (&Watcher, &str),
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    console.check(name, || {
        let before = watch.events()?;
        change()?;
        let clock = Stopwatch::start();
        let uses = || Side::Client.uses(node(stage), transport);
        wait::until("the tunnel to move", MOVE_LIMIT, uses)?;
        let took = clock.elapsed();
        let events = watch.wait_more(MORE)?;
        let more = events - before;
        let events = format!("{more} more events of the same watch, none missing");
        Ok(format!("after {took:.1?}; {events}"))
    })
}

/// From the shoot, through the tunnel, toward the seed.
fn not_backwards(console: &mut Console, stage: &Stage) -> Result<()> {
    let node = node(stage);
    console.check("the shoot reaches no address in the seed by it", || {
        let tunnel = stage.tunnel.as_ref().context("no tunnel")?;
        let own = SocketAddr::new(tunnel::SERVER_INSIDE, tunnel::PROXY.port());
        let inside = || knock(node, own);
        drops(Side::Server, &tunnel.place, "filter_opening", inside)?;
        let elsewhere = stage.shoots[0].endpoint;
        let route = elsewhere.ip().to_string();
        drops(Side::Client, node, "no_peer", || {
            node.ip(&["route", "add", &route, "dev", tunnel::DEVICE])?;
            let knocked = knock(node, elsewhere);
            node.ip(&["route", "del", &route, "dev", tunnel::DEVICE])?;
            knocked
        })?;
        let told = format!("{own}: the server drops it; {elsewhere}: the client drops it");
        Ok(told)
    })
}

/// Fails unless a packet is dropped for `reason` when something knocks.
fn drops(
    side: Side,
    place: &Namespace,
    reason: &str,
    knock: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let reason = [("reason", reason)];
    let count = || side.metric(place, "rhizome_tunnel_dropped_total", &reason);
    let before = count()?;
    knock()?;
    let dropped = || count().is_ok_and(|now| now > before);
    wait::until("the drop to be counted", LIMIT, dropped)
}

fn knock(node: &Namespace, addr: SocketAddr) -> Result<()> {
    match node.run(|| TcpStream::connect_timeout(&addr, KNOCK))? {
        Ok(_) => bail!("the shoot reaches {addr}"),
        Err(_) => Ok(()),
    }
}

fn curl(stage: &Stage, addr: SocketAddr, path: &str) -> Result<String> {
    let mut curl = credentials(stage)?.curl(&stage.network.seed, true)?;
    command::run(curl.arg(format!("https://{addr}{path}")))
}

fn credentials(stage: &Stage) -> Result<&Credentials> {
    Ok(&stage.tunnel.as_ref().context("no tunnel")?.credentials)
}

fn expect(node: &Namespace, transport: &str) -> Result<()> {
    let uses = Side::Client.uses(node, transport);
    ensure!(uses, "the client does not use {transport}");
    Ok(())
}

fn node(stage: &Stage) -> &Namespace {
    &stage.network.shoots[0].node
}

const LARGE: usize = 10 << 20;
/// Events of a watch that are waited for: a second of them.
const MORE: u64 = 5;
const LIMIT: Duration = Duration::from_secs(10);
/// A way that opened is noticed within four seconds and one that died within two; the rest is for
/// a slow machine.
const MOVE_LIMIT: Duration = Duration::from_secs(15);
const KNOCK: Duration = Duration::from_secs(1);
