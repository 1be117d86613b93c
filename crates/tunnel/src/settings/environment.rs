//! What Gardener's environment variables say to both ends.

use ::settings::ConfigErrors;

use super::{Cidr, Networks, trailing_number};

/// Returns the shoot's networks as `SHOOT_POD_NETWORKS`, `SHOOT_SERVICE_NETWORKS` and
/// `SHOOT_NODE_NETWORKS` list them, with commas between.
pub fn shoot_networks(
    pods: Option<&str>,
    services: Option<&str>,
    nodes: Option<&str>,
    errors: &mut ConfigErrors,
) -> Networks {
    let mut list = |variable: &str, value: Option<&str>| {
        Cidr::list(value.unwrap_or_default()).unwrap_or_else(|error| {
            errors.add(variable, error);
            Vec::new()
        })
    };
    Networks {
        pods: list("SHOOT_POD_NETWORKS", pods),
        services: list("SHOOT_SERVICE_NETWORKS", services),
        nodes: list("SHOOT_NODE_NETWORKS", nodes),
    }
}

/// Returns which of several servers or clients this is: with `IS_HA` the number at the end of
/// `POD_NAME`, else 0.
pub fn pod_number(
    is_ha: Option<&str>,
    pod_name: Option<&str>,
    errors: &mut ConfigErrors,
) -> Option<u16> {
    match is_ha.map(str::to_ascii_lowercase).as_deref() {
        None | Some("0" | "f" | "false") => return Some(0),
        Some("1" | "t" | "true") => {}
        Some(other) => {
            let other = other.escape_debug();
            errors.add("IS_HA", format_args!("`{other}` is neither true nor false"));
            return None;
        }
    }
    let name = pod_name.unwrap_or_default();
    let number = trailing_number(name);
    if number.is_none() {
        let name = name.escape_debug();
        let why = format_args!("with IS_HA it must end in `-` and a number; it is `{name}`");
        errors.add("POD_NAME", why);
    }
    number
}
