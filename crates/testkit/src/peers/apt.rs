//! Where this machine's apt takes Debian's packages from: other releases are in the same archive.
//!
//! ```text
//!   sources of apt ── apt-get indextargets ─▶ the archive's URI ─▶ lists of our own
//! ```

use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// Returns the URI of the Debian archive that this machine is set up with, a mirror if it is one.
pub(super) fn archive() -> Result<String> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", FORMAT, "Identifier: Packages"]);
    let targets = command::run(&mut targets)?;
    let archive = archive_of(&targets).context(
        "apt knows no Debian archive; `apt-get update` fetches the lists that tell which one it is",
    )?;
    Ok(archive.to_owned())
}

/// Other vendors' repositories have an origin of their own, Debian's security updates a label.
fn archive_of(targets: &str) -> Option<&str> {
    let mut lines = targets.lines();
    lines.find_map(|line| line.strip_suffix(DEBIAN))
}

const FORMAT: &str = "$(REPO_URI) $(COMPONENT) $(ORIGIN) $(LABEL)";
const DEBIAN: &str = " main Debian Debian";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_debians_own() {
        let targets = "https://packages.example/apt main Vendor Vendor\n\
            http://mirror.example/debian-security/ main Debian Debian-Security\n\
            http://mirror.example/debian/ contrib Debian Debian\n\
            http://mirror.example/debian/ main Debian Debian\n";
        assert_eq!(archive_of(targets), Some("http://mirror.example/debian/"));
        // Without lists apt leaves what it does not know as it stands in the format.
        let unknown = "http://mirror.example/debian/ main $(ORIGIN) $(LABEL)\n";
        assert_eq!(archive_of(unknown), None);
    }
}
