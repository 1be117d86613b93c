//! Agents that come with a token.

use testkit::konnectivity::{AgentMetadata, AgentTarget, End, FakeAgent, connect};

use crate::support::{Agent, AgentFlags, LIMIT, Mode, Server, ServerFlags, TokenReviews};

fn start(reviews: &TokenReviews) -> Server {
    let flags = ServerFlags::new(Mode::Http).any_agent();
    let kubeconfig = reviews.kubeconfig(flags.pki.dir.path());
    flags
        .flag("--agent-namespace=kube-system")
        .flag("--agent-service-account=konnectivity-agent")
        .flag("--authentication-audience=system:konnectivity-server")
        .flag(format!("--kubeconfig={}", kubeconfig.display()))
        .start()
}

fn target(server: &Server) -> AgentTarget {
    AgentTarget {
        identity: None,
        ..server.target()
    }
}

#[test]
fn only_a_good_token_lets_an_agent_in() {
    let reviews = TokenReviews::start();
    let server = start(&reviews);
    let bare = AgentMetadata::new("a");
    for authorization in [
        &[][..],
        &["kube-system/konnectivity-agent"],
        &["Basic kube-system/konnectivity-agent"],
        &["Bearer "],
        &["Bearer unknown"],
        &["Bearer other/konnectivity-agent"],
        &["Bearer kube-system/other"],
        &["Bearer broken"],
        &["Bearer failed"],
        &[
            "Bearer kube-system/konnectivity-agent",
            "Bearer kube-system/konnectivity-agent",
        ],
    ] {
        let said = authorization.iter().fold(bare.clone(), |said, value| {
            said.with("authorization", value)
        });
        let mut wire = connect(&target(&server), &said).unwrap();
        let end = wire.end(LIMIT).unwrap();
        // UNKNOWN as upstream, or UNAUTHENTICATED, or UNAVAILABLE where it could not be checked.
        let refused = matches!(
            end,
            End::Status {
                code: 2 | 14 | 16,
                ..
            }
        );
        assert!(refused, "{authorization:?}: {end:?}");
        assert_eq!(server.readiness(), 500, "{authorization:?}");
    }
    let good = bare.with("authorization", "Bearer kube-system/konnectivity-agent");
    let _agent = FakeAgent::start(&target(&server), &good).unwrap();
    server.wait_ready(200);
    assert_eq!(
        reviews.audiences(),
        serde_json::json!(["system:konnectivity-server"])
    );
}

#[test]
fn reviewed_token_is_cached() {
    let reviews = TokenReviews::start();
    let server = start(&reviews);
    let said = AgentMetadata::new("a");
    let said = said.with("authorization", "Bearer kube-system/konnectivity-agent");
    for _ in 0..5 {
        FakeAgent::start(&target(&server), &said).unwrap();
    }
    assert_eq!(reviews.asked(), 1);
}

#[test]
fn refused_agent_token_backs_off() {
    let reviews = TokenReviews::start();
    let server = start(&reviews);
    let path = server.pki().dir.write("token", "other/account\n").unwrap();
    let flags = AgentFlags::new(server.pki(), "ours", server.agents()).anonymous();
    let flag = format!("--service-account-token-path={}", path.display());
    let agent: Agent = flags.flag(flag).flag("--sync-interval=200ms").start();
    let attempts = "rhizome_konnectivity_connects_total";
    testkit::wait::until("a refusal", LIMIT, || {
        agent.value(attempts, &[("result", "failed")]) > 1.0
    })
    .unwrap();
    assert_eq!((agent.readiness(), server.readiness()), (503, 500));
    server
        .pki()
        .dir
        .replace("token", "kube-system/konnectivity-agent\n")
        .unwrap();
    agent.wait_ready(200);
    server.wait_ready(200);
}
