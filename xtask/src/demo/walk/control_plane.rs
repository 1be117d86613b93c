//! Routes and NetworkPolicies from Kubernetes objects: the controller takes over from the file.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use testkit::http;
use testkit::process::Signal;
use testkit::wait::{self, Stopwatch};

use super::{STOP_LIMIT, Stage};
use crate::console::Console;
use crate::demo::Programs;
use crate::demo::gateway::Gateway;
use crate::demo::seed_cluster::{SeedCluster, expect_listed, objects_of};

pub(super) fn show(
    console: &mut Console,
    stage: &mut Stage,
    programs: &Programs,
    dir: &Path,
) -> Result<()> {
    console.chapter("A controller takes over: routes and NetworkPolicies from Kubernetes objects");
    let seed = &stage.network.seed;
    let missing = || "the demo cannot go on without it";
    let mut cluster = console
        .step(
            CONTROL,
            "the seed's own API server, with Istio's definitions",
            || {
                let cluster = SeedCluster::start(seed, dir)?;
                Ok((
                    cluster,
                    "kube-apiserver v1.20.2 at 10.8.0.10:6443".to_owned(),
                ))
            },
        )
        .with_context(missing)?;
    console
        .step(CONTROL, "the controller: netpol-controller", || {
            cluster.start_controller(&programs.netpol_controller, seed, dir)?;
            Ok((
                (),
                "everything is known to it; nothing to do yet".to_owned(),
            ))
        })
        .with_context(missing)?;
    console
        .step(
            CONTROL,
            "the gateway is started with routes from it",
            || {
                stage.gateway.child.signal(Signal::TERM)?;
                stage.gateway.child.wait_exit(STOP_LIMIT)?;
                let program = &programs.sni_proxy;
                stage.gateway = Gateway::start_with_server(program, seed, dir)?;
                Ok(((), "ready, over xDS".to_owned()))
            },
        )
        .with_context(missing)?;
    let name = format!(
        "{} is closed: nobody has applied it",
        stage.shoots[0].host()
    );
    console.step(CONTROL, &name, || {
        stage.expect_refused()?;
        Ok(((), "no route".to_owned()))
    });
    console.step(
        CONTROL,
        "kubectl apply: a shoot, as Gardener writes it",
        || {
            let objects = objects_of(&stage.shoots[0]);
            cluster.kubectl(&stage.network.seed, &["apply"], &objects)?;
            let clock = Stopwatch::start();
            let shoot = &stage.shoots[0];
            let answer = wait::until_ok("the shoot to be reachable", LIMIT, || {
                stage.ask_by_name(shoot)
            })?;
            let took = clock.elapsed().as_millis();
            Ok((
                (),
                format!("by name {took} ms after kubectl had returned: {answer}"),
            ))
        },
    );
    console.step(
        CONTROL,
        "pod in shoot a → its node → the same gateway",
        || {
            let shoot = &stage.shoots[0];
            let address = super::address(super::Mode::Connect, shoot);
            let target = shoot.target(std::net::SocketAddr::new(address, 443));
            let answer = stage.network.shoots[0].pod.run(|| shoot.ask(&target))??;
            Ok(((), format!("by CONNECT: {answer}")))
        },
    );
    list_policies(console, stage, &cluster);
    console.step(CONTROL, "kubectl delete: the shoot is gone", || {
        let namespace = stage.shoots[0].technical_id();
        let arguments = [
            "delete",
            "service",
            "kube-apiserver",
            "--namespace",
            &namespace,
        ];
        cluster.kubectl(&stage.network.seed, &arguments, &[])?;
        wait::until_ok("the route to go", LIMIT, || stage.expect_refused())?;
        wait::until("the policies to go", LIMIT, || {
            cluster
                .policies(&stage.network.seed)
                .is_ok_and(|policies| policies.is_empty())
        })?;
        Ok(((), "no endpoint any more, and no policy".to_owned()))
    });
    stage.cluster = Some(cluster);
    Ok(())
}

fn list_policies(console: &mut Console, stage: &Stage, cluster: &SeedCluster) {
    let listed = console.step(CONTROL, "kubectl get networkpolicies", || {
        let shoot = &stage.shoots[0];
        let policies = wait::until_ok("the policies", LIMIT, || {
            let policies = cluster.policies(&stage.network.seed)?;
            expect_listed(&policies, shoot).map(|()| policies)
        })?;
        let count = policies.len();
        Ok((
            policies,
            format!("{count}, both ways between gateway and API server"),
        ))
    });
    for policy in listed.unwrap_or_default() {
        console.say(&format!("      {policy}"));
    }
}

impl Stage {
    /// Fails when somebody answers a user in the place of the first shoot.
    fn expect_refused(&self) -> Result<()> {
        let target = self.by_name(&self.shoots[0]);
        match self.network.user.run(|| http::get(&target, "/version"))? {
            Ok(answer) => bail!("somebody answered: {}", answer.text()),
            Err(error) if super::timed_out(&error) => Err(error.context("it is left hanging")),
            Err(_) => Ok(()),
        }
    }
}

const CONTROL: &str = "control plane";
const LIMIT: Duration = Duration::from_secs(10);
