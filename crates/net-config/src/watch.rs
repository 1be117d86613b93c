//! Which of the kernel's events mean that the addresses have to be looked at again.
//!
//! A node sees many link and address events that are none of ours (pods come and go); only those
//! that may have broken what is wanted end the wait. When in doubt the answer is to look.

use std::net::IpAddr;

use crate::{
    attributes::messages,
    error::NetlinkError,
    netlink::Connection,
    rtnl::{self, Event},
};

/// More datagrams than this are not discarded at once; the look that follows is right anyway.
const DISCARD_LIMIT: usize = 1024;

/// The subscription to link and address events.
#[derive(Debug)]
pub(crate) struct Watch {
    connection: Connection,
}

/// What must stay as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concern<'a> {
    pub(crate) device: &'a str,
    /// The device's index, once known.
    pub(crate) index: Option<u32>,
    pub(crate) addresses: &'a [IpAddr],
}

impl Watch {
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        rtnl::subscribe().map(|connection| Self { connection })
    }

    /// Forgets what has been reported so far; called right before a look, which sees it all.
    pub(crate) fn discard(&mut self) {
        self.connection.discard(DISCARD_LIMIT);
    }

    /// Waits for an event that touches `concern`, or for lost ones. Cancel-safe.
    pub(crate) async fn disturbed(&mut self, concern: Concern<'_>) -> Result<(), NetlinkError> {
        loop {
            let datagram = match self.connection.next().await {
                Ok(datagram) => datagram,
                Err(NetlinkError::Truncated { .. }) => return Ok(()),
                Err(error) if error.errno() == Some(libc::ENOBUFS) => return Ok(()),
                Err(error) => return Err(error),
            };
            if messages(datagram).any(|message| match message {
                Ok(message) => rtnl::decode_event(message.kind, message.payload)
                    .is_some_and(|event| concern.touched_by(&event)),
                Err(_) => true,
            }) {
                return Ok(());
            }
        }
    }
}

impl Concern<'_> {
    /// Whether `event` may mean that something wanted is no longer so.
    fn touched_by(&self, event: &Event) -> bool {
        match event {
            Event::AddressGone(held) => self.addresses.contains(&held.prefix.addr()),
            Event::AddressSet(held) => {
                let in_place = Some(held.index) == self.index && held.usable;
                self.addresses.contains(&held.prefix.addr()) && !in_place
            }
            Event::LinkGone(link) => Some(link.index) == self.index || link.name == self.device,
            Event::LinkSet(link) => {
                let (by_index, by_name) =
                    (Some(link.index) == self.index, link.name == self.device);
                (by_index || by_name) && !(by_index && by_name && link.up)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtnl::{HeldAddress, link::Link};

    fn address(index: u32, address: [u8; 4], usable: bool) -> HeldAddress {
        HeldAddress {
            index,
            prefix: IpAddr::from(address).into(),
            prefix_route: true,
            usable,
        }
    }

    fn link(index: u32, name: &str, up: bool) -> Link {
        Link {
            index,
            name: name.to_owned(),
            up,
            kind: None,
            master: None,
        }
    }

    #[test]
    fn events_that_break_what_is_wanted_concern_us() {
        use Event::{AddressGone, AddressSet, LinkGone, LinkSet};

        let (ours, other) = ([10, 1, 2, 3], [10, 250, 0, 4]);
        let concern = Concern {
            device: "apiserver-proxy",
            index: Some(3),
            addresses: &[IpAddr::from(ours)],
        };
        for (event, touched) in [
            (AddressGone(address(3, ours, true)), true),
            (AddressSet(address(1, ours, true)), true),
            (AddressSet(address(3, ours, true)), false),
            (AddressSet(address(3, ours, false)), true),
            (AddressGone(address(3, other, true)), false),
            (AddressSet(address(2, other, true)), false),
            (LinkGone(link(3, "apiserver-proxy", false)), true),
            (LinkSet(link(3, "apiserver-proxy", false)), true),
            (LinkSet(link(3, "renamed", true)), true),
            (LinkSet(link(9, "apiserver-proxy", true)), true),
            (LinkSet(link(3, "apiserver-proxy", true)), false),
            // The devices of pods.
            (LinkSet(link(8, "veth8", false)), false),
            (LinkGone(link(8, "veth8", false)), false),
        ] {
            assert_eq!(concern.touched_by(&event), touched, "{event:?}");
        }
    }
}
