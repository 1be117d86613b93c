//! `cargo xtask images`: one image for each program, tried out, with a list of what is in it.
//!
//! ```text
//!     dist build, static ─▶ context ─ Dockerfile, buildah ▶ image ─▶ NAME.tar
//!              │                                                └ run: --version
//!              └─ what is linked ─▶ NAME.cdx.json
//! ```
//!
//! Prints every image with its size and fails when one is above the limit, runs as another user than
//! it should, or does not run in a root file system with nothing else: it is static then. Pushes
//! nothing. That programs work under their manifests is covered by the manifests' own tests.

mod engine;
mod sbom;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::console::Console;
use crate::workspace::{self, Programs};

pub(crate) use self::engine::Buildah;
use self::sbom::Lists;

/// What is built.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Options {
    /// Build this image alone; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = IMAGES.map(|image| image.name))]
    only: Vec<String>,
}

struct Image {
    name: &'static str,
    package: &'static str,
    /// The user that it is for.
    user: &'static str,
}

/// Every image, with what may run without any right as the user of no rights.
const IMAGES: [Image; 8] = [
    image("apiserver-proxy", "apiserver-proxy", ROOT),
    image("konnectivity-agent", "konnectivity", UNPRIVILEGED),
    image("konnectivity-server", "konnectivity", UNPRIVILEGED),
    image("netpol-controller", "netpol-controller", UNPRIVILEGED),
    image("sni-proxy", "sni-proxy", UNPRIVILEGED),
    image("vpn-client", "vpn-client", ROOT),
    image("vpn-provision", "vpn-provision", UNPRIVILEGED),
    image("vpn-server", "vpn-server", ROOT),
];

const fn image(name: &'static str, package: &'static str, user: &'static str) -> Image {
    Image {
        name,
        package,
        user,
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut console = Console::new();
    let only = &options.only;
    let wanted = |image: &&Image| only.is_empty() || only.iter().any(|name| name == image.name);
    let images: Vec<&Image> = IMAGES.iter().filter(wanted).collect();
    console.heading("Programs");
    let packages: BTreeSet<&str> = images.iter().map(|image| image.package).collect();
    let programs = workspace::build(&Vec::from_iter(packages))?;
    let any = images.first().context("no images")?;
    // By where cargo put a program: `TARGET/TRIPLE/dist/NAME`.
    let target = programs.get(any.name)?.ancestors().nth(3);
    let out = target.context("no target directory")?.join("images");
    let context = context(&out, &images, &programs)?;
    console.heading("Images");
    let engine = Buildah::find(&out, &|text| console.say(&format!("  {text}")))?;
    let store = engine.store.display();
    console.say(&format!("  built by buildah, in {store}"));
    let lists = Lists::make(&console)?;
    for image in images {
        let program = programs.get(image.name)?;
        let _ = console.check(image.name, || {
            let size = fs::metadata(program)?.len();
            ensure!(size <= LIMIT, "{size} bytes, above the limit of {LIMIT}");
            let built = engine.build(image.name, VERSION, &context, &out)?;
            let (user, wanted) = (&built.user, image.user);
            ensure!(user == wanted, "it runs as {user}, not as {wanted}");
            let told = engine.run(&built, &["--version"])?;
            let (version, wanted) = (told.trim(), format!("{} {VERSION}", image.name));
            ensure!(version == wanted, "it says `{version}`");
            let list = out.join(format!("{}.cdx.json", image.name));
            let count = lists.write(image, program, &list)?;
            let packed = fs::metadata(&built.archive)?.len();
            let (size, packed) = (mebibytes(size), mebibytes(packed));
            Ok(format!(
                "{size} MiB, packed {packed}; user {user}; {version}; {count} components"
            ))
        });
    }
    console.say(&format!("\n  images and lists: {}", out.display()));
    Ok(ExitCode::from(u8::from(!console.result())))
}

/// Lays the programs where the Dockerfile expects them, and nothing else.
fn context(out: &Path, images: &[&Image], programs: &Programs) -> Result<PathBuf> {
    let context = out.join("context");
    if context.exists() {
        fs::remove_dir_all(&context).context("clearing the context of the last time")?;
    }
    fs::create_dir_all(&context).with_context(|| format!("making {}", context.display()))?;
    for image in images {
        let from = programs.get(image.name)?;
        fs::copy(from, context.join(image.name))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(context)
}

fn mebibytes(bytes: u64) -> String {
    let tenths = (bytes * 10).div_ceil(1 << 20);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Bytes of the largest program that goes into an image.
const LIMIT: u64 = 15 << 20;

const VERSION: &str = env!("CARGO_PKG_VERSION");

const UNPRIVILEGED: &str = "65532:65532";
const ROOT: &str = "0:0";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn dockerfile_matches_images() {
        let path = workspace::root().join(engine::DOCKERFILE);
        let text = fs::read_to_string(path).unwrap();
        let mut found: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("FROM scratch AS ") {
                found.push((name.to_owned(), String::new()));
            } else if let (Some(user), Some(last)) = (line.strip_prefix("USER "), found.last_mut())
            {
                user.clone_into(&mut last.1);
            }
        }
        found.sort();
        let expected = IMAGES.map(|one| (one.name.to_owned(), one.user.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn unknown_image_is_refused_by_name() {
        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let parse = |name| Line::try_parse_from(["images", "--only", name]);
        let error = parse("vpn-sever").unwrap_err().to_string();
        let both = error.contains("vpn-sever") && error.contains("vpn-server");
        assert!(both, "{error}");
        assert_eq!(parse("vpn-client").unwrap().options.only, ["vpn-client"]);
    }

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(mebibytes(0), "0.0");
        assert_eq!(mebibytes(15 << 20), "15.0");
        assert_eq!(mebibytes((15 << 20) + 1), "15.1");
    }
}
