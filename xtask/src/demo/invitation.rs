//! What `--keep` prints: how to look around in what is running.

use testkit::command;
use testkit::netns::Namespace;
use testkit::tempdir::TempDir;

use super::gateway;
use super::shoot::Shoot;
use super::tunnel;
use super::walk::Stage;
use crate::console::Console;

pub(super) fn print(console: &Console, stage: &Stage) {
    let dir = &stage.dir;
    console.heading("It is still running. In another terminal:");
    if !is_real_root() {
        console.say(&format!(
            "  # first, into the user namespace of the demo:\n  \
             nsenter --target {} --user --net --mount --preserve-credentials bash\n",
            std::process::id()
        ));
    }
    let inside = |namespace: &Namespace| format!("ip netns exec {}", namespace.name());
    let (user, seed) = (inside(&stage.network.user), inside(&stage.network.seed));
    for (index, shoot) in stage.shoots.iter().enumerate() {
        let curl = curl(shoot, dir);
        let (host, path, letter) = (&shoot.host, "/version", shoot.letter);
        let pod = inside(&stage.network.shoots[index].pod);
        let gateway = gateway::TLS.ip();
        console.say(&format!(
            "  # shoot {letter} by server name, and from its pod\n  \
             {user} {curl} --resolve {host}:443:{gateway} https://{host}{path}\n  \
             {pod} {curl} https://10.1.2.3{path}"
        ));
    }
    if let Some(tunnel) = &stage.tunnel
        && let Ok(curl) = tunnel.credentials.curl(&stage.network.seed, true)
    {
        let curl = command::line(&curl);
        console.say(&format!(
            "  # the pod of shoot a, from the seed, through the tunnel\n  {curl} https://{}/version",
            tunnel::POD
        ));
    }
    let pid = stage.gateway.pid();
    let (routes, dir) = (dir.join("routes.yaml"), dir.path().display());
    console.say(&format!(
        "  # the gateway: its page, figures, routes and connections; a drain\n  \
         {seed} curl -s http://127.0.0.1:9901/\n  \
         {seed} curl -s http://127.0.0.1:9901/metrics\n  \
         {seed} curl -s http://127.0.0.1:9901/snapshot\n  \
         {seed} curl -s http://127.0.0.1:9901/connections\n  \
         kill -TERM {pid}\n  \
         # routes (in effect within 2 s of a change), configurations and logs\n  \
         $EDITOR {}\n  ls {dir}\n\n  Ctrl-C ends it and removes everything.",
        routes.display()
    ));
}

fn curl(shoot: &Shoot, dir: &TempDir) -> String {
    let ca = dir.join(format!("ca-{}.crt", shoot.letter));
    // A file that cannot be written is missed when the command is typed.
    let _ = std::fs::write(&ca, &shoot.authority_pem);
    format!("curl -s --cacert {}", ca.display())
}

/// Tells whether user 0 here is user 0 of the machine (`user_namespaces(7)`).
fn is_real_root() -> bool {
    std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}
