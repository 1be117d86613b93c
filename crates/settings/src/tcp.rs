//! The `tcp:` block: socket options of a hop, for all, and differently for one listener or cluster.

use std::time::Duration;

use route::TcpOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ByteSize, ConfigErrors, HumanDuration};

/// TCP options of every socket, unless overridden by [`TcpOverrides`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TcpSettings {
    /// Idle time before the first keepalive probe; 0 sends none. Whole seconds.
    pub keepalive: HumanDuration,
    /// Time between probes. Whole seconds.
    pub keepalive_interval: HumanDuration,
    /// Probes without an answer until the peer is taken for dead.
    pub keepalive_probes: u32,
    /// How long sent data may stay unacknowledged; 0 leaves it to the kernel's retransmissions.
    /// Also cuts peers that are alive but do not read.
    pub user_timeout: HumanDuration,
    /// Congestion control by the kernel's name, such as `bbr`; empty for the kernel's default, `auto`
    /// for `bbr` where the kernel has it and permits it.
    pub congestion: String,
    /// Unsent data the kernel holds before the socket stops being writable; 0 for no limit.
    pub notsent_lowat: ByteSize,
    /// Received data the kernel holds until it is read, and so about the window that the peer may
    /// fill; 0 leaves it to the kernel, which lets it grow with the path's delay.
    pub receive_buffer: ByteSize,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            keepalive: HumanDuration::from_secs(55),
            keepalive_interval: HumanDuration::from_secs(55),
            keepalive_probes: 3,
            user_timeout: HumanDuration::default(),
            congestion: String::new(),
            notsent_lowat: ByteSize(0),
            receive_buffer: ByteSize(0),
        }
    }
}

impl TcpSettings {
    /// See [`TcpOptions::AUTO`].
    pub const AUTO: &str = TcpOptions::AUTO;

    /// The longest idle time and the longest interval of keepalive that the kernel takes: seconds,
    /// from 1 to MAX_TCP_KEEPIDLE of linux/tcp.h.
    pub const MAX_KEEPALIVE: Duration = Duration::from_secs(32_767);

    /// MAX_TCP_KEEPCNT of linux/tcp.h.
    pub const MAX_KEEPALIVE_PROBES: u32 = 127;

    /// Adds to `errors` what the kernel would not take. `key` is the path of this block.
    pub fn validate(&self, key: &str, errors: &mut ConfigErrors) {
        if self.keepalive.non_zero().is_some() {
            keepalive_seconds(self.keepalive, &format!("{key}.keepalive"), errors);
            keepalive_seconds(
                self.keepalive_interval,
                &format!("{key}.keepaliveInterval"),
                errors,
            );
            if !(1..=Self::MAX_KEEPALIVE_PROBES).contains(&self.keepalive_probes) {
                let message = format_args!("must be from 1 to {}", Self::MAX_KEEPALIVE_PROBES);
                errors.add(format_args!("{key}.keepaliveProbes"), message);
            }
        }
        let user_timeout = self.user_timeout.0;
        if !user_timeout.subsec_nanos().is_multiple_of(1_000_000) {
            errors.add(
                format_args!("{key}.userTimeout"),
                "must be whole milliseconds",
            );
        } else if i32::try_from(user_timeout.as_millis()).is_err() {
            errors.add(format_args!("{key}.userTimeout"), "must be at most 24 days");
        }
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if self.congestion.len() > MAX_CONGESTION_NAME || !self.congestion.bytes().all(word) {
            let message = format_args!(
                "`{}` is not the name of a congestion control (at most {MAX_CONGESTION_NAME} letters)",
                self.congestion.escape_debug()
            );
            errors.add(format_args!("{key}.congestion"), message);
        }
        if i32::try_from(self.notsent_lowat.0).is_err() {
            errors.add(format_args!("{key}.notsentLowat"), "must be below 2GiB");
        }
        let receive = self.receive_buffer.0;
        if receive != 0 && !RECEIVE_BUFFER.contains(&receive) {
            errors.add(
                format_args!("{key}.receiveBuffer"),
                "must be from 4KiB to 512MiB, or 0 for what the kernel chooses",
            );
        }
    }
}

/// Less holds no segment of a path with large ones; the kernel doubles it within 31 bits.
const RECEIVE_BUFFER: std::ops::RangeInclusive<u64> = 4 << 10..=512 << 20;
/// TCP_CA_NAME_MAX of linux/tcp.h without the closing zero.
const MAX_CONGESTION_NAME: usize = 15;

fn keepalive_seconds(value: HumanDuration, key: &str, errors: &mut ConfigErrors) {
    let whole = value.0.subsec_nanos() == 0;
    let most = TcpSettings::MAX_KEEPALIVE;
    if !whole || !(Duration::from_secs(1)..=most).contains(&value.0) {
        errors.add(
            key,
            format_args!("must be whole seconds from 1s to {most:?}"),
        );
    }
}

impl From<&TcpSettings> for TcpOptions {
    fn from(settings: &TcpSettings) -> Self {
        Self {
            keepalive: settings.keepalive.0,
            keepalive_interval: settings.keepalive_interval.0,
            keepalive_probes: settings.keepalive_probes,
            user_timeout: settings.user_timeout.0,
            congestion: settings.congestion.clone(),
            notsent_lowat: option_bytes(settings.notsent_lowat),
            receive_buffer: option_bytes(settings.receive_buffer),
            max_segment: 0,
        }
    }
}

/// The `tcp:` block of one listener or cluster: what it does not name is as for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TcpOverrides {
    /// See [`TcpSettings::keepalive`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<HumanDuration>,
    /// See [`TcpSettings::keepalive_interval`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive_interval: Option<HumanDuration>,
    /// See [`TcpSettings::keepalive_probes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive_probes: Option<u32>,
    /// See [`TcpSettings::user_timeout`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_timeout: Option<HumanDuration>,
    /// See [`TcpSettings::congestion`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// See [`TcpSettings::notsent_lowat`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notsent_lowat: Option<ByteSize>,
    /// See [`TcpSettings::receive_buffer`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<ByteSize>,
}

impl From<TcpSettings> for TcpOverrides {
    fn from(tcp: TcpSettings) -> Self {
        Self {
            keepalive: Some(tcp.keepalive),
            keepalive_interval: Some(tcp.keepalive_interval),
            keepalive_probes: Some(tcp.keepalive_probes),
            user_timeout: Some(tcp.user_timeout),
            congestion: Some(tcp.congestion),
            notsent_lowat: Some(tcp.notsent_lowat),
            receive_buffer: Some(tcp.receive_buffer),
        }
    }
}

impl TcpOverrides {
    /// Returns `base` with everything replaced that is named here.
    pub fn over(&self, base: &TcpSettings) -> TcpSettings {
        TcpSettings {
            keepalive: self.keepalive.unwrap_or(base.keepalive),
            keepalive_interval: self.keepalive_interval.unwrap_or(base.keepalive_interval),
            keepalive_probes: self.keepalive_probes.unwrap_or(base.keepalive_probes),
            user_timeout: self.user_timeout.unwrap_or(base.user_timeout),
            congestion: self.congestion.as_ref().unwrap_or(&base.congestion).clone(),
            notsent_lowat: self.notsent_lowat.unwrap_or(base.notsent_lowat),
            receive_buffer: self.receive_buffer.unwrap_or(base.receive_buffer),
        }
    }

    /// Returns `base`, options in effect, with everything replaced that is named here.
    pub fn upon(&self, base: &TcpOptions) -> TcpOptions {
        TcpOptions {
            keepalive: self.keepalive.map_or(base.keepalive, HumanDuration::get),
            keepalive_interval: { self.keepalive_interval }
                .map_or(base.keepalive_interval, HumanDuration::get),
            keepalive_probes: self.keepalive_probes.unwrap_or(base.keepalive_probes),
            user_timeout: self
                .user_timeout
                .map_or(base.user_timeout, HumanDuration::get),
            congestion: self.congestion.as_ref().unwrap_or(&base.congestion).clone(),
            notsent_lowat: self.notsent_lowat.map_or(base.notsent_lowat, option_bytes),
            receive_buffer: self
                .receive_buffer
                .map_or(base.receive_buffer, option_bytes),
            max_segment: base.max_segment,
        }
    }
}

/// Returns what a socket option can say; larger values were refused before.
fn option_bytes(size: ByteSize) -> u32 {
    u32::try_from(size.0).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
        crate::yaml::from_str(text, "a.yaml".as_ref()).unwrap()
    }

    #[test]
    fn overrides_replace_only_what_they_name() {
        let overrides: TcpOverrides =
            read("{ congestion: bbr, notsentLowat: 64KiB, userTimeout: 10s }");
        let base = TcpSettings {
            keepalive_probes: 9,
            ..TcpSettings::default()
        };
        let over = overrides.over(&base);
        let merged = TcpSettings {
            congestion: "bbr".to_owned(),
            notsent_lowat: ByteSize(65536),
            user_timeout: HumanDuration::from_secs(10),
            ..base
        };
        assert_eq!(over, merged);
    }

    #[test]
    fn equal_overrides_change_nothing() {
        let overrides: TcpOverrides = read(
            "{ keepalive: 0, keepaliveInterval: 7s, keepaliveProbes: 9, userTimeout: 10s, congestion: bbr, notsentLowat: 64KiB, receiveBuffer: 128KiB }",
        );
        let base = TcpSettings::default();
        let upon = overrides.upon(&(&base).into());
        assert_eq!(upon, (&overrides.over(&base)).into());
        assert_eq!(TcpOverrides::default().upon(&upon), upon);
    }

    #[test]
    fn validate_finds_values_the_kernel_refuses() {
        let documented = r#"{ keepalive: 55s, keepaliveInterval: 55s, keepaliveProbes: 3, userTimeout: 0s, congestion: "", notsentLowat: 0, receiveBuffer: 0 }"#;
        assert_eq!(read::<TcpSettings>(documented), TcpSettings::default());
        // Without keepalive its other keys do not matter.
        let off = "{ keepalive: 0, keepaliveInterval: 0, keepaliveProbes: 0 }";
        let wrong = "{ keepalive: 1500ms, keepaliveInterval: 10h, keepaliveProbes: 0, userTimeout: 600h, congestion: 'b r', notsentLowat: 2GiB, receiveBuffer: 1KiB }";
        for (text, found) in [
            (documented, ""),
            (off, ""),
            (
                wrong,
                "keepalive keepaliveInterval keepaliveProbes userTimeout congestion notsentLowat receiveBuffer",
            ),
        ] {
            let mut errors = ConfigErrors::new();
            read::<TcpSettings>(text).validate("tcp", &mut errors);
            let keys: Vec<_> = errors
                .iter()
                .filter_map(|(key, _)| key.strip_prefix("tcp."))
                .collect();
            assert_eq!(keys.join(" "), found, "{text}");
        }
    }
}
