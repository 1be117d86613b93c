//! Build script of programs that are built for size: links them without their table of symbols in
//! release builds.
//!
//! The release profile says so for everything, but cargo forgets it of a package that the profile
//! has a section of its own for (`strip` may not stand in one).
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "how cargo speaks to build scripts"
)]

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=../strip.rs");
    let is = |name, wanted: &str| env::var(name).is_ok_and(|value| value == wanted);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
