//! The tunnels that can be measured.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use testkit::command;
use testkit::peers::envoy;
use testkit::peers::wireguard::Program;

use crate::report::DIRECT;

/// A tunnel, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Setup {
    /// Routed, without a tunnel: the ceiling.
    Direct,
    /// Ours by UDP, from end to end.
    RhizomeUdp,
    /// Ours by UDP through our gateway.
    RhizomeUdpGateway,
    /// Ours by TCP through our gateway, by HTTP CONNECT.
    RhizomeTcp,
    /// Ours through our gateway, as it chooses.
    RhizomeAuto,
    /// Go's of Debian 12.
    #[value(name = "wireguard-go-2022")]
    WireguardGo2022,
    /// Go's of Debian 13, with offloads.
    #[value(name = "wireguard-go-2023")]
    WireguardGo2023,
    /// Cloudflare's.
    Boringtun,
    /// OpenVPN by UDP.
    OpenvpnUdp,
    /// OpenVPN by TCP through Envoy, by HTTP CONNECT.
    OpenvpnTcp,
    /// The same with BBR on all outer sockets.
    OpenvpnTcpBbr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    /// Ours, by the transport that the client's configuration names.
    Rhizome {
        /// `udp`, `tcp` or `auto`.
        transport: &'static str,
        gateway: bool,
    },
    Wireguard(Program),
    Openvpn {
        tcp: bool,
    },
}

impl Setup {
    pub(crate) fn name(self) -> &'static str {
        self.facts().0
    }

    pub(crate) fn kind(self) -> Kind {
        self.facts().1
    }

    fn facts(self) -> (&'static str, Kind) {
        let rhizome = |transport, gateway| Kind::Rhizome { transport, gateway };
        let openvpn = |tcp| Kind::Openvpn { tcp };
        let (go_2022, go_2023) = (Program::WireguardGo2022, Program::WireguardGo2023);
        match self {
            Self::Direct => (DIRECT, Kind::None),
            Self::RhizomeUdp => ("rhizome udp", rhizome("udp", false)),
            Self::RhizomeUdpGateway => ("rhizome udp+gateway", rhizome("udp", true)),
            Self::RhizomeTcp => ("rhizome tcp+gateway", rhizome("tcp", true)),
            Self::RhizomeAuto => ("rhizome auto+gateway", rhizome("auto", true)),
            Self::WireguardGo2022 => ("wireguard-go 2022", Kind::Wireguard(go_2022)),
            Self::WireguardGo2023 => ("wireguard-go 2023", Kind::Wireguard(go_2023)),
            Self::Boringtun => ("boringtun", Kind::Wireguard(Program::BoringTun)),
            Self::OpenvpnUdp => ("openvpn udp", openvpn(false)),
            Self::OpenvpnTcp => ("openvpn tcp+envoy", openvpn(true)),
            Self::OpenvpnTcpBbr => ("openvpn tcp+envoy, bbr", openvpn(true)),
        }
    }

    /// Returns the congestion control of outer sockets that do not choose one themselves.
    pub(crate) fn congestion(self) -> &'static str {
        let bbr = self == Self::OpenvpnTcpBbr;
        if bbr { "bbr" } else { "reno" }
    }

    /// Tells what is missing on this machine for it.
    pub(crate) fn missing(self) -> Option<String> {
        let found: Result<PathBuf> = match self.kind() {
            Kind::None | Kind::Rhizome { .. } => return None,
            Kind::Wireguard(program) => program.binary().and_then(|_| command::require("wg")),
            Kind::Openvpn { tcp: false } => command::require("openvpn"),
            Kind::Openvpn { tcp: true } => {
                command::require("openvpn").and_then(|_| envoy::binary())
            }
        };
        found.err().map(|error| format!("{error:#}"))
    }
}
