//! The flags of `konnectivity-agent`, with their defaults.
//!
//! Upstream's have upstream's names and, but for pings, upstream's defaults. What they mean
//! together is for `agent_config`.

use settings::{ByteSize, RelPath};

use crate::agent::DrainParams;

use super::common::flags;
use super::read::Settings;
use super::value::{CountWord, GoDuration, LogWord, OverflowWord};

flags! {
    /// The flags of `konnectivity-agent`, which are the keys of its configuration file.
    AgentFlags {
        /// Port of the admin endpoint; 0 picks one.
        admin_server_port: u32 = 8094;
        /// Certificate shown to servers.
        agent_cert: RelPath = RelPath::default();
        /// Name of this agent; empty is PROXY_AGENT_ID or a random one.
        agent_id: String = String::new();
        /// What this agent is meant for: ipv4, ipv6, host, cidr and default-route, as in
        /// host=node-1&default-route=true.
        agent_identifiers: String = String::new();
        /// Key of the certificate shown to servers.
        agent_key: RelPath = RelPath::default();
        /// Destinations that may be dialled, each CIDR, CIDR:PORT or CIDR:FIRST-LAST, with an IPv6
        /// CIDR before a port in brackets; all when it is not given, and never empty.
        allow_destinations: Vec<String> = Vec::new();
        /// Protocols offered to servers besides h2.
        alpn_proto: Vec<String> = Vec::new();
        /// CA bundle that servers are verified with; empty is what the system trusts.
        ca_cert: RelPath = RelPath::default();
        /// Take the number of servers from their leases.
        count_server_leases: bool = false;
        /// How long a dial may take, the look-up of a name included.
        dial_timeout: GoDuration = GoDuration::from_secs(5);
        /// How long tunnels may go on after SIGTERM; the agent ends earlier once idle for 5s. Less
        /// than a pod is given, which is 30s by default.
        grace_period: GoDuration = GoDuration(DrainParams::default().grace);
        /// Address of health and metrics; empty is every address.
        health_server_host: String = String::new();
        /// Port of health and metrics; 0 picks one.
        health_server_port: u32 = 8093;
        /// After how long without traffic a server is pinged, at least 10s; 0 is 10s for servers
        /// of ours and 35s for upstream's, which close links that are pinged more often than every
        /// 30s.
        keepalive_time: GoDuration = GoDuration::default();
        /// API server with the leases; empty is that of the pod.
        kubeconfig: RelPath = RelPath::default();
        /// Former name of --lease-label-selector.
        #[schemars(extend("deprecated" = true))]
        lease_label: String = String::new();
        /// Labels of the leases of servers.
        lease_label_selector: String = "k8s-app=konnectivity-server".to_owned();
        /// Namespace of the leases of servers.
        lease_namespace: String = "kube-system".to_owned();
        /// Dials at most that wait for an answer.
        max_pending_dials: u32 = 1000;
        /// Tunnels at most.
        max_tunnels: u32 = 10_000;
        /// Accepted, has no effect: the end of a link is noticed at once.
        probe_interval: GoDuration = GoDuration::from_secs(1);
        /// Host name or address of the servers, or of what stands in front of them.
        proxy_server_host: String = "127.0.0.1".to_owned();
        /// Port of the servers.
        proxy_server_port: u32 = 8091;
        /// Where the number of servers is taken from.
        server_count_source: CountWord = CountWord::Default;
        /// File with the token that is sent to servers; empty is none.
        service_account_token_path: RelPath = RelPath::default();
        /// Go on looking for more servers when all are connected.
        sync_forever: bool = false;
        /// Time between attempts to connect to one more server.
        sync_interval: GoDuration = GoDuration::from_secs(1);
        /// Longest time between attempts when they fail.
        sync_interval_cap: GoDuration = GoDuration::from_secs(10);
        /// Accepted, has no effect: nothing blocks that could be warned of.
        warn_on_channel_limit: bool = false;
        /// Accepted, has no effect: what is held is bounded in octets, by --max-buffered-bytes.
        xfr_channel_size: i64 = 150;
    }
}

impl Settings for AgentFlags {
    const ABOUT: &str =
        "Opens connections inside a cluster for the konnectivity servers it connects to.";
    const EXAMPLES: &str = "\
Examples:
  # With a service account's token.
  konnectivity-agent --ca-cert=ca.crt --proxy-server-host=konnectivity.example.com \\
    --proxy-server-port=8132 --service-account-token-path=/var/run/secrets/tokens/token
  # With a certificate, for nodes of one range and port only.
  konnectivity-agent --ca-cert=ca.crt --agent-cert=tls.crt --agent-key=tls.key \\
    --proxy-server-host=a.kn.example.com --proxy-server-port=443 \\
    --allow-destinations=10.250.0.0/16:10250,[fd00:10::/64]:10250
  # What is in effect, or what is wrong.
  konnectivity-agent --config=agent.yaml --check

Signals:
  SIGTERM, SIGINT  take no new dials where others can, and end once idle; the second time at once
  SIGHUP           read certificates again

Environment:
  PROXY_AGENT_ID  name of this agent, where --agent-id gives none
  RUST_LOG        log levels, such as info or info,konnectivity=debug; wins over -v

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";
    const NAME: &str = "konnectivity-agent";
}
