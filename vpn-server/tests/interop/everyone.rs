//! One test with every other WireGuard, at once: most of their time is waiting.

use std::thread;

use testkit::peers::wireguard::Program;

/// With whom, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Whom our end meets.
    pub(crate) program: Program,
    /// Whether both ends have a preshared key.
    pub(crate) preshared: bool,
}

impl Case {
    /// Returns what errors and files call it.
    pub(crate) fn name(self) -> String {
        let key = if self.preshared { "with" } else { "without" };
        format!("{}, {key} a preshared key", self.program.name())
    }
}

/// Runs `test` with every program, with a preshared key and without, and fails if any failed.
pub(crate) fn with_everyone_twice(test: impl Fn(Case) + Sync) {
    let both = |program| [true, false].map(|preshared| Case { program, preshared });
    run(Program::ALL.into_iter().flat_map(both).collect(), &test);
}

/// Runs `test` with every program, and fails if any failed. Every other one has a preshared key.
pub(crate) fn with_everyone(test: impl Fn(Case) + Sync) {
    let cases = Program::ALL.into_iter().enumerate();
    let cases = cases.map(|(at, program)| Case {
        program,
        preshared: at % 2 == 0,
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
