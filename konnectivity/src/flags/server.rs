//! The flags of `konnectivity-server`, with their defaults.
//!
//! Upstream's have upstream's names and, where upstream has a bound, upstream's defaults. What they
//! mean together is for `server_config`.

use settings::{ByteSize, RelPath};

use super::common::flags;
use super::read::Settings;
use super::value::{AccessWord, FrontendMode, GoDuration, LogWord, OverflowWord};

flags! {
    /// The flags of `konnectivity-server`, which are the keys of its configuration file.
    ServerFlags {
        /// How the line that each tunnel leaves on standard output is written.
        access_log: AccessWord = AccessWord::Off;
        /// Port of the admin endpoint; 0 picks one.
        admin_port: u32 = 8095;
        /// Address for agents; empty is every address.
        agent_bind_address: String = String::new();
        /// Namespace of the service account of agents that come with a token. Not with --registry.
        agent_namespace: String = String::new();
        /// Port for agents; 0 picks one.
        agent_port: u32 = 8091;
        /// Service account of agents that come with a token. Not with --registry.
        agent_service_account: String = String::new();
        /// Audience of the tokens of agents. Not with --registry.
        authentication_audience: String = String::new();
        /// How long a dial may take; 0, which is for ever elsewhere, is the longest there is: 1h.
        backend_dial_timeout: GoDuration = GoDuration::from_secs(10);
        /// Cipher suites of TLS 1.2, by Go's names; empty is all. Those of TLS 1.3 are always on.
        cipher_suites: Vec<String> = Vec::new();
        /// CA bundle that certificates of agents are verified with; without one agents need none.
        /// Not with --registry.
        cluster_ca_cert: RelPath = RelPath::default();
        /// Certificate shown to agents.
        cluster_cert: RelPath = RelPath::default();
        /// Key of the certificate shown to agents.
        cluster_key: RelPath = RelPath::default();
        /// Remove a socket that is in the way of --uds-name.
        delete_existing_uds_file: bool = true;
        /// Keep a lease for this server and count those of others. Not with --registry.
        enable_lease_controller: bool = false;
        /// After how long without traffic a gRPC frontend is pinged.
        frontend_keepalive_time: GoDuration = GoDuration::from_secs(3600);
        /// How long connections are still accepted after SIGTERM, for those who lead them here to see
        /// that it is unready.
        graceful_shutdown_delay: GoDuration = GoDuration::default();
        /// How long tunnels may go on after SIGTERM; 0 is not at all.
        graceful_shutdown_timeout: GoDuration = GoDuration::default();
        /// Address of health and metrics; empty is every address.
        health_bind_address: String = String::new();
        /// Port of health and metrics; 0 picks one.
        health_port: u32 = 8092;
        /// After how long without traffic an agent is pinged; 0 is the default.
        keepalive_time: GoDuration = GoDuration::from_secs(30);
        /// How long an agent or frontend may take to answer a ping.
        keepalive_timeout: GoDuration = GoDuration::from_secs(10);
        /// API server that tokens and leases are for; empty is that of the pod. Not with --registry.
        kubeconfig: RelPath = RelPath::default();
        /// Accepted, has no effect: requests to the API server are few and bounded.
        kubeconfig_burst: u32 = 0;
        /// Accepted, has no effect: requests to the API server are few and bounded.
        kubeconfig_qps: f64 = 0.0;
        /// Labels of the leases of servers. Not with --registry.
        lease_label: String = "k8s-app=konnectivity-server".to_owned();
        /// Namespace of the leases of servers. Not with --registry.
        lease_namespace: String = "kube-system".to_owned();
        /// Streams from agents at most. Not with --registry.
        max_agents: u32 = 10_000;
        /// Dials per second at most; 0 is any number. Not with --registry.
        max_dials_per_second: u32 = 0;
        /// Dials at most that wait for an answer. Not with --registry.
        max_pending_dials: u32 = 1000;
        /// Tunnels at most. Not with --registry.
        max_tunnels: u32 = 10_000;
        /// What API servers speak; with --registry on --server-port only.
        mode: FrontendMode = FrontendMode::Grpc;
        /// Metrics of tunnels and dials per cluster as well, with a label.
        per_cluster_metrics: bool = false;
        /// How an agent is chosen, in order: default, destHost, defaultRoute, destCIDR. Not with
        /// --registry.
        proxy_strategies: Vec<String> = vec!["default".to_owned()];
        /// Directory with one file per cluster: one server for many.
        registry: RelPath = RelPath::default();
        /// Address for API servers; empty is every address.
        server_bind_address: String = String::new();
        /// CA bundle that certificates of API servers are verified with. Not with --registry.
        server_ca_cert: RelPath = RelPath::default();
        /// Certificate shown to API servers.
        server_cert: RelPath = RelPath::default();
        /// Number of servers that agents are told of. Not with --registry.
        server_count: u32 = 1;
        /// Name of this server, different from all others'; empty is PROXY_SERVER_ID or a random one.
        server_id: String = String::new();
        /// Key of the certificate shown to API servers.
        server_key: RelPath = RelPath::default();
        /// Port for API servers; 0 with --uds-name or --registry is none, otherwise it picks one.
        server_port: u32 = 8090;
        /// Oldest version of TLS: VersionTLS12, which empty is too, or VersionTLS13.
        tls_min_version: String = String::new();
        /// Socket for API servers, instead of --server-port. Not with --registry.
        uds_name: RelPath = RelPath::default();
        /// Accepted, has no effect: nothing blocks that could be warned of.
        #[schemars(extend("deprecated" = true))]
        warn_on_channel_limit: bool = true;
        /// Threads that carry data; 0 is one per CPU with --registry and one without.
        workers: u32 = 0;
        /// Accepted, has no effect: what is held is bounded in octets, by --max-buffered-bytes.
        xfr_channel_size: i64 = 10;
    }
}

impl Settings for ServerFlags {
    const ABOUT: &str =
        "Hands connections of API servers to agents in clusters that accept none themselves.";
    const EXAMPLES: &str = "\
Examples:
  # Beside one API server, over a socket.
  konnectivity-server --uds-name=/run/konnectivity/server.sock --server-port=0 --mode=grpc \\
    --cluster-cert=tls.crt --cluster-key=tls.key --kubeconfig=kubeconfig \\
    --agent-namespace=kube-system --agent-service-account=konnectivity-agent \\
    --authentication-audience=system:konnectivity-server
  # For one API server elsewhere.
  konnectivity-server --mode=http-connect --server-ca-cert=ca.crt --server-cert=tls.crt \\
    --server-key=tls.key --cluster-ca-cert=ca.crt --cluster-cert=tls.crt --cluster-key=tls.key
  # For many clusters.
  konnectivity-server --registry=/etc/konnectivity/clusters --mode=http-connect \\
    --server-cert=tls.crt --server-key=tls.key --cluster-cert=tls.crt --cluster-key=tls.key
  # What is in effect, or what is wrong.
  konnectivity-server --config=server.yaml --check

Signals:
  SIGTERM, SIGINT  end gracefully; the second time at once
  SIGHUP           read certificates and the registry again

Environment:
  PROXY_SERVER_ID  name of this server, where --server-id gives none
  RUST_LOG         log levels, such as info or info,konnectivity=debug; wins over -v

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";
    const NAME: &str = "konnectivity-server";
}
