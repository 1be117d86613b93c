//! One test with every other WireGuard, at once: most of their time is waiting.

use std::thread;

use testkit::peers::wireguard::Program;

use crate::addresses::{Addresses, V4, V6};

/// With whom, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Whom our end meets.
    pub(crate) program: Program,
    /// Whether both ends have a preshared key.
    pub(crate) preshared: bool,
    /// Who has which address.
    pub(crate) addresses: &'static Addresses,
}

impl Case {
    /// Returns what errors and files call it.
    pub(crate) fn name(self) -> String {
        let key = if self.preshared { "with" } else { "without" };
        let family = if self.addresses.pod.is_ipv4() {
            "IPv4"
        } else {
            "IPv6"
        };
        let program = self.program.name();
        format!("{program}, {family}, {key} a preshared key")
    }
}

/// Runs `test` with every program, by IPv4 with a preshared key and by IPv6 without, and fails if
/// any failed.
pub(crate) fn with_everyone_twice(test: impl Fn(Case) + Sync) {
    let both = |program| {
        [(true, &V4), (false, &V6)].map(|(preshared, addresses)| Case {
            program,
            preshared,
            addresses,
        })
    };
    run(Program::ALL.into_iter().flat_map(both).collect(), &test);
}

/// Runs `test` with every program, and fails if any failed. Every other one has a preshared key, and
/// half of them use IPv6.
pub(crate) fn with_everyone(test: impl Fn(Case) + Sync) {
    let cases = Program::ALL.into_iter().enumerate();
    let cases = cases.map(|(at, program)| Case {
        program,
        preshared: at % 2 == 0,
        addresses: if at < 2 { &V4 } else { &V6 },
    });
    run(cases.collect(), &test);
}

fn run(cases: Vec<Case>, test: &(impl Fn(Case) + Sync)) {
    let failed: Vec<String> = thread::scope(|scope| {
        let threads = cases.into_iter().map(|case| {
            println!(
                "{}: {}",
                case.name(),
                case.program.binary().unwrap().display()
            );
            let named = thread::Builder::new().name(case.name());
            let started = named.spawn_scoped(scope, move || test(case)).unwrap();
            (case, started)
        });
        let threads: Vec<_> = threads.collect();
        let outcomes = threads.into_iter();
        let failed = outcomes.filter_map(|(case, thread)| thread.join().err().map(|_| case.name()));
        failed.collect()
    });
    assert!(failed.is_empty(), "it failed with {failed:?}");
}
