//! One piece of work: how often it is done at once, and what it must find.

use std::hint::black_box;
use std::rc::Rc;

/// The work itself, with its input at hand; returns what it found.
pub type Operation = Box<dyn FnOnce() -> usize>;

/// A piece of work that is measured.
pub struct Workload {
    /// What it is called.
    pub name: &'static str,
    /// How many pieces of work one [`Operation`] is.
    pub times: usize,
    /// What an [`Operation`] must find.
    pub expected: usize,
    prepare: Box<dyn Fn() -> Operation>,
}

impl Workload {
    /// Makes a workload that does the same over one input, [`TIMES`] times, and finds `each` each time.
    pub(crate) fn repeated<T: 'static>(
        name: &'static str,
        each: usize,
        input: T,
        one: impl Fn(&T) -> usize + Copy + 'static,
    ) -> Self {
        let all = move |input: &T| (0..TIMES).map(|_| one(black_box(input))).sum();
        Self::shared(name, TIMES, TIMES * each, input, all)
    }

    /// Makes a workload of `times` pieces of work on one input, which find `expected` in all.
    pub(crate) fn shared<T: 'static>(
        name: &'static str,
        times: usize,
        expected: usize,
        input: T,
        all: impl Fn(&T) -> usize + Copy + 'static,
    ) -> Self {
        let input = Rc::new(input);
        Self::consuming(
            name,
            times,
            expected,
            move || Rc::clone(&input),
            move |input| all(&input),
        )
    }

    /// Makes a workload whose input is used up and made anew each time, without being measured.
    /// It counts as `times` pieces of work and finds `expected` in all.
    pub(crate) fn consuming<T: 'static>(
        name: &'static str,
        times: usize,
        expected: usize,
        input: impl Fn() -> T + 'static,
        all: impl Fn(T) -> usize + Copy + 'static,
    ) -> Self {
        let prepare = move || -> Operation {
            let input = input();
            Box::new(move || all(black_box(input)))
        };
        Self {
            name,
            times,
            expected,
            prepare: Box::new(prepare),
        }
    }

    /// Makes the input, and returns the work on it.
    #[must_use]
    pub fn prepare(&self) -> Operation {
        (self.prepare)()
    }
}

impl std::fmt::Debug for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workload")
            .field("name", &self.name)
            .field("times", &self.times)
            .finish_non_exhaustive()
    }
}

const TIMES: usize = 1000;
