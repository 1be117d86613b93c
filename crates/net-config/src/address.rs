//! Keeps host addresses on one device of the node.
//!
//! ```text
//!   ensure:   read links and addresses ──▶ plan ──▶ apply what differs ──▶ Changes
//!   run:      ensure ──▶ wait for a kernel event that concerns us, or a minute ──▶ ensure …
//! ```
//!
//! Knows neither who listens on the addresses nor how anything is counted: an [`Observer`] is told.

use std::{convert::Infallible, net::IpAddr, pin::pin, sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::{
    DeviceKind,
    attributes::messages,
    error::{NetConfigError, NetlinkError},
    netlink::Connection,
    pace::{Outcome, Pace},
    plan::{Actual, Change, network_elsewhere, plan, plan_cleanup},
    rtnl::{self, link::links},
    watch::{Concern, Watch},
};

/// The same failure is logged as a warning once in this time, and at debug level in between.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How long the kernel may take to make an IPv6 address local once it has accepted it. Usually it
/// takes microseconds.
const LOCAL_LIMIT: Duration = Duration::from_secs(1);

/// Which addresses to keep where.
#[derive(Clone, Debug)]
pub struct AddressParams {
    /// Name of the device, 1 to 15 bytes. With [`DeviceKind::Loopback`] it is always `lo`.
    pub device: String,
    /// What to create when the device is missing; one that exists is used whatever its kind.
    pub kind: DeviceKind,
    /// Addresses to keep on the device, each with prefix length 32 or 128.
    pub addresses: Vec<IpAddr>,
    /// False: nothing is changed, only checked and reported.
    pub manage: bool,
}

/// What a look at the kernel's state found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changes that were made, in order.
    pub applied: Vec<Change>,
    /// Changes that would be needed but are not ours to make (`manage: false`).
    pub pending: Vec<Change>,
}

impl Changes {
    /// Whether everything wanted is now in place.
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether nothing was changed and nothing has to be.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.pending.is_empty()
    }
}

/// Is told what an [`AddressKeeper`] does, for metrics and readiness. Called on the runtime's
/// thread, so it must not block.
pub trait Observer: Send + Sync {
    /// A change was made.
    fn applied(&self, _change: &Change) {}
    /// A look failed, wholly or in part.
    fn failed(&self, _error: &NetConfigError) {}
    /// A look found everything in place, or put it there (`true`), or did not (`false`).
    fn looked(&self, _settled: bool) {}
}

impl Observer for () {}

/// Keeps the addresses of [`AddressParams`] on their device.
pub struct AddressKeeper {
    params: AddressParams,
    observer: Arc<dyn Observer>,
    /// The device's index as last seen.
    index: Option<u32>,
    warned: Option<(&'static str, Instant)>,
}

impl std::fmt::Debug for AddressKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressKeeper")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl AddressKeeper {
    /// A keeper without an observer; nothing is touched before the first call.
    pub fn new(mut params: AddressParams) -> Self {
        if params.kind == DeviceKind::Loopback {
            "lo".clone_into(&mut params.device);
        }
        params.addresses.sort_unstable();
        params.addresses.dedup();
        Self {
            params,
            observer: Arc::new(()),
            index: None,
            warned: None,
        }
    }

    /// The same keeper, reporting to `observer`.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Puts everything in place once: the device exists and is up, holds every address, and no
    /// other device holds any of them; one that another has in a network stays there. With
    /// `manage: false` it only says what differs.
    ///
    /// An IPv6 address is usable at once: duplicate address detection is skipped, since the address
    /// belongs to this node alone. A change that fails does not keep the others from being made.
    ///
    /// Not cancel-safe in the sense that some changes may have been made; calling it again is
    /// always right.
    ///
    /// # Errors
    /// The first failure, after everything else was tried: `Permission` without `CAP_NET_ADMIN`,
    /// `Kind` when this kernel has no suitable device kind, `Ipv6Disabled` and `Ipv6Missing`,
    /// `Address` and `DeviceName` for parameters no kernel takes, `HeldElsewhere` for an address that
    /// another device has in a network, `Netlink` for the rest.
    pub async fn ensure(&mut self) -> Result<Changes, NetConfigError> {
        let result = self.put_in_place().await;
        if let Err(error) = &result {
            self.observer.failed(error);
        }
        self.observer
            .looked(result.as_ref().is_ok_and(Changes::is_settled));
        result
    }

    /// Keeps everything in place until `shutdown` completes: reacts to the kernel's link and
    /// address events, and looks once a minute besides. Failures are reported and retried, never a
    /// reason to return. If another process keeps undoing the changes, they are repaired at most
    /// twice a second.
    pub async fn run(&mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => {}
            never = self.keep() => match never {},
        }
    }

    /// Takes the addresses off the device, and deletes the device if it is of a kind this crate
    /// creates and nothing else uses it. Never deletes `lo`; does nothing with `manage: false`.
    ///
    /// # Errors
    /// As for [`AddressKeeper::ensure`]; what could be cleaned up is.
    pub async fn cleanup(&mut self) -> Result<Changes, NetConfigError> {
        self.check_params()?;
        if !self.params.manage {
            return Ok(Changes::default());
        }
        let mut connection = connect()?;
        let actual = read(&mut connection).await?;
        self.index = actual.link(&self.params.device).map(|link| link.index);
        let planned = plan_cleanup(&self.params, &actual);
        self.apply_all(&mut connection, planned, &actual).await
    }

    async fn keep(&mut self) -> Infallible {
        let mut pace = Pace::default();
        let mut watch = None;
        loop {
            if watch.is_none() {
                let opened = Watch::open();
                watch = opened.map_err(|source| self.watch_failed(source)).ok();
            }
            if let Some(watch) = &mut watch {
                watch.discard();
            }
            let outcome = self.look().await;
            let now = Instant::now();
            pace.looked(now, outcome);
            sleep(pace.gap(now)).await;
            self.wait(&mut watch, pace.patience()).await;
        }
    }

    fn watch_failed(&mut self, source: NetlinkError) {
        let error = NetConfigError::during("watching links and addresses")(source);
        self.observer.failed(&error);
        self.warn(&error);
    }

    async fn look(&mut self) -> Outcome {
        match self.ensure().await {
            Ok(changes) if changes.applied.is_empty() => {
                for change in &changes.pending {
                    debug!(%change, "left alone, not managed");
                }
                Outcome::Settled
            }
            Ok(_) => Outcome::Repaired,
            Err(error) => {
                self.warn(&error);
                Outcome::Failed
            }
        }
    }

    /// Waits for a disturbance, at most `patience`.
    async fn wait(&mut self, watch: &mut Option<Watch>, patience: Duration) {
        let Some(open) = watch else {
            // Without events, looking once a second keeps the promise.
            return sleep(patience.min(Duration::from_secs(1))).await;
        };
        let concern = Concern {
            device: &self.params.device,
            index: self.index,
            addresses: &self.params.addresses,
        };
        if let Ok(Err(source)) = timeout(patience, open.disturbed(concern)).await {
            *watch = None;
            self.watch_failed(source);
        }
    }

    fn warn(&mut self, error: &NetConfigError) {
        let source = std::error::Error::source(error).map(ToString::to_string);
        let now = Instant::now();
        let repeated = self.warned.is_some_and(|(reason, at)| {
            reason == error.reason() && now.duration_since(at) < WARN_EVERY
        });
        if repeated {
            debug!(device = self.params.device, %error, source, "addresses are not in place");
            return;
        }
        warn!(device = self.params.device, %error, source, "addresses are not in place");
        self.warned = Some((error.reason(), now));
    }

    async fn put_in_place(&mut self) -> Result<Changes, NetConfigError> {
        self.check_params()?;
        let mut connection = connect()?;
        let actual = read(&mut connection).await?;
        self.index = actual.link(&self.params.device).map(|link| link.index);
        let planned = plan(&self.params, &actual);
        if !self.params.manage {
            return Ok(Changes {
                applied: Vec::new(),
                pending: planned,
            });
        }
        let changes = self.apply_all(&mut connection, planned, &actual).await?;
        match network_elsewhere(&self.params, &actual) {
            Some((device, prefix)) => Err(NetConfigError::HeldElsewhere { device, prefix }),
            None => Ok(changes),
        }
    }

    /// Makes every change that can be made; the first failure is the result.
    async fn apply_all(
        &mut self,
        connection: &mut Connection,
        planned: Vec<Change>,
        actual: &Actual,
    ) -> Result<Changes, NetConfigError> {
        let mut changes = Changes::default();
        let mut failure = None;
        for change in planned {
            match self.apply(connection, change, actual).await {
                Ok(change) => {
                    info!(%change, "network configuration changed");
                    self.observer.applied(&change);
                    changes.applied.push(change);
                }
                // Without the device nothing else can be done.
                Err(error @ (NetConfigError::Kind { .. } | NetConfigError::Uncreatable { .. })) => {
                    return Err(error);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(changes), Err)
    }

    /// Makes one change and returns it as made.
    async fn apply(
        &mut self,
        connection: &mut Connection,
        change: Change,
        actual: &Actual,
    ) -> Result<Change, NetConfigError> {
        // A change to a device that is gone meanwhile is refused with ENODEV for index 0, and the
        // event of its going brings the next look.
        let index = |device: &str| {
            let own = self.index.filter(|_| device == self.params.device);
            own.or_else(|| actual.link(device).map(|link| link.index))
                .unwrap_or_default()
        };
        let request = connection.request();
        let (request, done_already) = match &change {
            Change::AddAddress { address, device } => {
                let (index, prefix) = (index(device), IpNet::from(*address));
                let added = add_address(connection, index, *address).await;
                added.map_err(NetConfigError::adding(prefix, device))?;
                return Ok(change);
            }
            Change::CreateDevice { device, kind } => {
                let kind = create(connection, device, *kind).await?;
                self.index = read(connection).await?.link(device).map(|link| link.index);
                return Ok(Change::CreateDevice {
                    device: device.clone(),
                    kind,
                });
            }
            Change::DeleteDevice { device } => (
                rtnl::delete_link(request, index(device)),
                Some(libc::ENODEV),
            ),
            Change::RemoveAddress { device, prefix } => {
                let request = rtnl::delete_address(request, index(device), *prefix);
                (request, Some(libc::EADDRNOTAVAIL))
            }
            Change::SetUp { device } => (rtnl::set_up(request, index(device)), None),
        };
        match connection.acknowledged(&request).await {
            Err(source) if done_already.is_some() && source.errno() == done_already => {}
            answer => answer.map_err(NetConfigError::during(format!("trying to {change}")))?,
        }
        Ok(change)
    }

    fn check_params(&self) -> Result<(), NetConfigError> {
        let device = &self.params.device;
        NetConfigError::check_device(device)?;
        let unfit = |address: &&IpAddr| address.is_unspecified() || address.is_multicast();
        match self.params.addresses.iter().find(unfit) {
            Some(address) => Err(NetConfigError::Address {
                device: device.clone(),
                prefix: (*address).into(),
            }),
            None => Ok(()),
        }
    }
}

/// Adds `address` to the device; that it is there already is as good.
async fn add_address(
    connection: &mut Connection,
    index: u32,
    address: IpAddr,
) -> Result<(), NetlinkError> {
    // IPv6 would also get a route of 128 bits out of the device, into which connections go that come
    // before the kernel's own local route: neighbor discovery then fails them after 3 s.
    let request = connection.request();
    let request = rtnl::add_address(request, index, address.into(), address.is_ipv4());
    put_address(connection.acknowledged(&request), address).await
}

/// Awaits `added`, which adds `address`; returns when packets to it stay on the node.
///
/// For IPv4 that is at once. The kernel makes an IPv6 address local in a work queue, after having
/// accepted it: until then it can be bound, but packets to it take the default route.
pub(crate) async fn put_address(
    added: impl Future<Output = Result<(), NetlinkError>>,
    address: IpAddr,
) -> Result<(), NetlinkError> {
    let mut routes = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(_) => Some(rtnl::subscribe_routes()?),
    };
    match added.await {
        Err(source) if source.errno() == Some(libc::EEXIST) => return Ok(()),
        answer => answer?,
    }
    if let Some(routes) = &mut routes
        && timeout(LOCAL_LIMIT, until_local(routes, address)).await != Ok(true)
    {
        debug!(%address, "accepted, but not seen to become local");
    }
    Ok(())
}

/// Waits until the kernel tells that `address` is local; false if that may have been missed.
async fn until_local(routes: &mut Connection, address: IpAddr) -> bool {
    loop {
        let Ok(datagram) = routes.next().await else {
            return false;
        };
        let mut read = messages(datagram).map_while(Result::ok);
        if read.any(|message| rtnl::makes_local(message.kind, message.payload, address)) {
            return true;
        }
    }
}

pub(crate) fn connect() -> Result<Connection, NetConfigError> {
    rtnl::connect().map_err(NetConfigError::during("opening a netlink socket"))
}

async fn read(connection: &mut Connection) -> Result<Actual, NetConfigError> {
    let links = links(connection).await;
    let links = links.map_err(NetConfigError::during("reading the node's devices"))?;
    let addresses = rtnl::addresses(connection).await;
    let addresses = addresses.map_err(NetConfigError::during("reading the node's addresses"))?;
    Ok(Actual { links, addresses })
}

/// Creates `device` with the best kind this kernel has, and returns that kind. It also succeeds if
/// another process has created the device meanwhile.
async fn create(
    connection: &mut Connection,
    device: &str,
    wanted: DeviceKind,
) -> Result<DeviceKind, NetConfigError> {
    for kind in wanted.candidates() {
        let request = rtnl::create_link(connection.request(), device, kind.as_str());
        match connection.acknowledged(&request).await {
            Err(source) if source.errno() == Some(libc::EOPNOTSUPP) => {}
            Err(source) if source.errno() != Some(libc::EEXIST) => {
                let attempt = format!("creating device {device} of kind {kind}");
                return Err(NetConfigError::during(attempt)(source));
            }
            _ => return Ok(*kind),
        }
    }
    let (device, kind) = (device.to_owned(), wanted);
    Err(if kind == DeviceKind::Loopback {
        NetConfigError::Uncreatable { device, kind }
    } else {
        NetConfigError::Kind { device, kind }
    })
}

/// What `dev_valid_name` of the kernel accepts.
pub(crate) fn is_device_name(name: &str) -> bool {
    let banned = |c: char| c == '/' || c == ':' || c == '\0' || c.is_ascii_whitespace();
    (1..=15).contains(&name.len()) && name != "." && name != ".." && !name.contains(banned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(device: &str, kind: DeviceKind) -> AddressParams {
        AddressParams {
            device: device.to_owned(),
            kind,
            addresses: vec![IpAddr::from([10, 1, 2, 3]); 2],
            manage: true,
        }
    }

    #[test]
    fn device_names_are_those_the_kernel_takes() {
        for name in ["apiserver-proxy", "a", "eth0.5"] {
            assert!(is_device_name(name), "{name}");
        }
        for name in [
            "",
            "sixteen-bytes-xy",
            "a/b",
            "a b",
            "a:1",
            ".",
            "..",
            "nul\0",
        ] {
            assert!(!is_device_name(name), "{name:?}");
        }
    }

    #[test]
    fn kind_lo_is_loopback_device() {
        let keeper = AddressKeeper::new(params("apiserver-proxy", DeviceKind::Loopback));

        assert_eq!(keeper.params.device, "lo");
        assert_eq!(keeper.params.addresses.len(), 1);
    }

    #[test]
    fn a_running_keeper_can_be_spawned() {
        fn is_send(_: impl Send) {}
        let mut keeper = AddressKeeper::new(params("apiserver-proxy", DeviceKind::Auto));

        is_send(keeper.run(std::future::pending()));
    }

    #[tokio::test]
    async fn invalid_parameters_change_nothing() {
        let mut long = params("a-name-far-too-long", DeviceKind::Auto);
        let refused = AddressKeeper::new(long.clone()).ensure().await.unwrap_err();
        assert_eq!(refused.reason(), "device_name");

        "apiserver-proxy".clone_into(&mut long.device);
        long.addresses = vec![IpAddr::from([0; 4])];
        let refused = AddressKeeper::new(long).ensure().await.unwrap_err();
        assert_eq!(refused.reason(), "address");
    }
}
