//! Which figures the README shows, by the part of the suite that measures them.

/// One figure of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headline {
    /// Which setup is ours.
    pub(super) setup: &'static str,
    /// The case, as in the results.
    pub(super) case: &'static str,
    /// The figure, as in the results.
    pub(super) figure: &'static str,
    /// What the README calls it.
    pub(super) words: &'static str,
}

const fn ours(case: &'static str, figure: &'static str, words: &'static str) -> Headline {
    of("rhizome", case, figure, words)
}

const fn of(
    setup: &'static str,
    case: &'static str,
    figure: &'static str,
    words: &'static str,
) -> Headline {
    Headline {
        setup,
        case,
        figure,
        words,
    }
}

/// The README's figures, in its order.
pub(super) const HEADLINES: &[(&str, &[Headline])] = &[
    ("tls", TLS),
    ("conns", CONNS),
    ("routes", ROUTES),
    ("tunnel", TUNNEL),
    ("long", LONG),
    ("konnectivity", KONNECTIVITY),
    ("controller", CONTROLLER),
];

const TLS: &[Headline] = &[
    ours(
        "sni bulk down ×8",
        "proxy cpu",
        "bytes to 8 clients, CPU time",
    ),
    ours(
        "sni bulk down ×64",
        "proxy cpu",
        "bytes to 64 clients, CPU time",
    ),
    of(
        "rhizome-copy",
        "sni bulk down ×8",
        "proxy cpu",
        "the same to 8 where splicing does not apply",
    ),
    ours(
        "sni bulk down ×8",
        "throughput",
        "bytes to 8 clients, one processor",
    ),
    ours(
        "sni rtt, one cpu",
        "p50",
        "64 bytes there and back, all on one processor",
    ),
    ours(
        "sni idle ×4000",
        "memory each",
        "memory of an idle connection",
    ),
];

const CONNS: &[Headline] = &[
    ours(
        "sni conns ×32",
        "proxy cpu each",
        "new connections by server name, CPU time",
    ),
    ours("sni conns ×32", "rate", "the same, one processor"),
    ours(
        "proxy conns ×32",
        "proxy cpu each",
        "new connections by PROXY header, CPU time",
    ),
];

const ROUTES: &[Headline] = &[
    ours(
        "10000 names",
        "start",
        "10,000 names: from start until the last one answers",
    ),
    ours(
        "10000 names",
        "apply one more name",
        "one more name: until it answers",
    ),
    ours(
        "10000 names",
        "longest stall",
        "longest stall of 100 connections meanwhile",
    ),
    ours("10000 names", "resident", "memory with 10,000 names"),
    ours(
        "10000 names",
        "cpu per connection, more",
        "new connections, against 1 name",
    ),
    ours(
        "10000 names",
        "memory per idle connection, more",
        "idle connections, against 1 name",
    ),
];

const TUNNEL: &[Headline] = &[
    of(
        "rhizome udp",
        "bulk ×1",
        "throughput",
        "tunnel by UDP, one stream",
    ),
    of(
        "rhizome udp",
        "bulk ×1",
        "cpu of both ends",
        "the same, CPU time",
    ),
    of(
        "rhizome udp",
        "bulk ×8",
        "throughput",
        "tunnel by UDP, eight streams",
    ),
    of(
        "rhizome tcp+gateway",
        "bulk ×1",
        "throughput",
        "tunnel by CONNECT, one stream",
    ),
    of(
        "rhizome udp",
        "idle",
        "pings in turn p50",
        "ping through the idle tunnel",
    ),
];

const LONG: &[Headline] = &[
    of(
        "rhizome udp",
        "50 ms ×1",
        "throughput",
        "tunnel by UDP, round trip of 50 ms, one stream",
    ),
    of(
        "rhizome tcp+gateway",
        "50 ms ×1",
        "throughput",
        "the same by CONNECT",
    ),
    of(
        "rhizome tcp+gateway",
        "50 ms ×8",
        "ping meanwhile p99",
        "ping beside eight streams, p99",
    ),
    of(
        "rhizome tcp+gateway",
        "50 ms, 1 % lost ×8",
        "throughput",
        "by CONNECT, eight streams, one packet of 100 lost",
    ),
];

const KONNECTIVITY: &[Headline] = &[
    of(
        "http-uds",
        "down ×1",
        "throughput",
        "konnectivity, from the shoot",
    ),
    of("http-uds", "rtt c=1", "p50", "konnectivity, round trip"),
    of("http-uds", "dials c=16", "rate", "konnectivity, dials"),
    of(
        "http-uds",
        "idle ×1000",
        "server per tunnel",
        "konnectivity, server's memory per idle tunnel",
    ),
];

const CONTROLLER: &[Headline] = &[
    ours("policies from none", "time", "10,000 policies from none"),
    ours(
        "policies from none",
        "controller at most",
        "the controller's memory meanwhile",
    ),
    ours(
        "one service changes",
        "delay p99",
        "one Service changes, until its last policy is written, p99",
    ),
    ours(
        "a gateway's first sync",
        "start to ready",
        "a gateway starts with 10,000 routes",
    ),
    ours(
        "one endpoint changes",
        "delay p50",
        "one endpoint changes, until in effect, p50",
    ),
    ours("one endpoint changes", "delay p99", "the same, p99"),
];
