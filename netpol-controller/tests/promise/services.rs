//! Services' policies: the labels of clients open what they name, whichever mode is set.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpol_controller::plan::Compatibility;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use testkit::netpol::{Blocks, Cluster, End, Labels, Protocol, Verdict};

use crate::generate::{model, tried};
use crate::model::Model;
use crate::planned::{Planned, cluster, plan};
use crate::promised::name;

/// Addresses outside the cluster.
const OUTSIDE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn policies_match_labels_and_annotations(model in model()) {
        let both = [Blocks::LeaveOutPods, Blocks::MatchPods];
        // Only the document's policies have blocks at all.
        for (compatibility, blocks) in [
            (Compatibility::Document, &both[..]),
            (Compatibility::Upstream, &both[..1]),
        ] {
            let planned = plan(&model, compatibility);
            for blocks in blocks {
                let namespaces = model.namespaces.iter();
                let namespaces: BTreeMap<String, Labels> = namespaces
                    .map(|(name, own)| (name.clone(), own.labels.clone()))
                    .collect();
                let cluster = cluster(namespaces, &planned.policies, *blocks);
                let comparison = Comparison { model: &model, planned: &planned, cluster };
                comparison.pods()?;
                comparison.outside()?;
            }
            for policy in &planned.policies {
                let namespace = &model.namespaces[&*policy.key.namespace];
                prop_assert!(!namespace.terminating, "{} cannot be created", policy.key);
            }
        }
    }
}

struct Comparison<'a> {
    model: &'a Model,
    planned: &'a Planned,
    cluster: Cluster,
}

impl Comparison<'_> {
    fn pods(&self) -> Result<(), TestCaseError> {
        for client in &self.model.pods {
            for server in &self.model.pods {
                if client.name == server.name {
                    continue;
                }
                let promises = self.model.promises(client, server);
                for (protocol, port) in tried() {
                    let meant = promises.iter();
                    let meant = meant.filter(|(_, entry)| entry.covers(server, protocol, port));
                    let promising: Vec<_> = meant.map(|(service, _)| *service).collect();
                    let ends = (End::Pod(client), End::Pod(server));
                    self.compare(ends, protocol, port, &promising)?;
                }
            }
        }
        Ok(())
    }

    fn outside(&self) -> Result<(), TestCaseError> {
        for address in OUTSIDE {
            let address = End::Address(address);
            for pod in &self.model.pods {
                for (protocol, port) in tried() {
                    let promising = self.model.promising_world(pod, protocol, port);
                    self.compare((address, End::Pod(pod)), protocol, port, &promising)?;
                    self.compare((End::Pod(pod), address), protocol, port, &[])?;
                }
            }
        }
        Ok(())
    }

    /// Two Services may ask for one policy, and then only one of them gets it: what the other has
    /// promised need not hold, but nothing holds that was not promised.
    fn compare(
        &self,
        (from, to): (End<'_>, End<'_>),
        protocol: Protocol,
        port: u16,
        promising: &[usize],
    ) -> Result<(), TestCaseError> {
        let verdict = self.cluster.connection(from, to, protocol, port);
        let held = |index: &usize| !self.planned.deprived.contains(index);
        let wrong = match verdict.allowed() {
            true => promising.is_empty(),
            false => promising.iter().any(held),
        };
        prop_assert!(
            !wrong,
            "{}",
            self.reported((from, to), protocol, port, promising, &verdict)
        );
        Ok(())
    }

    fn reported(
        &self,
        (from, to): (End<'_>, End<'_>),
        protocol: Protocol,
        port: u16,
        promising: &[usize],
        verdict: &Verdict,
    ) -> String {
        let services = promising.iter();
        let services: Vec<_> = services
            .map(|index| self.model.services[*index].key_of().to_string())
            .collect();
        let policies = self.planned.policies.iter();
        let policies: Vec<_> = policies.map(|policy| policy.key.to_string()).collect();
        format!(
            "{from} to {to} at {} {port}: promised by {services:?}, but {verdict}\nof {policies:#?}",
            name(protocol)
        )
    }
}
