//! A real kube-apiserver with an egress selector, our pair behind it, and a kubelet's stand-in:
//!
//! ```text
//!   kubectl, HTTPS ─▶ kube-apiserver ─┬─ HTTP CONNECT over a Unix socket ─┐
//!                                     ├─ HTTP CONNECT over mTLS ──────────┼─▶ konnectivity-server
//!                                     └─ gRPC over a Unix socket ─────────┘           ▲
//!                                                         (sni-proxy) ───────────────┘ agents
//!   kubelet ◀──────────────────────────────────────────── konnectivity-agent ─────────┘
//! ```
//!
//! Everything runs on loopback, so no privileges are needed. What is asked goes through the API
//! server's node proxy. An upgrade there is proxied with plain bytes behind it; SPDY, which `kubectl
//! exec` puts there, would show nothing more about tunnels, and the stand-in does not speak it.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails where its step fails"
)]

mod gateway;
mod pair;
mod registry;
mod restarts;
mod stage;
mod transports;
