//! The keeper called once: what it makes, finds, moves and takes away.

use std::{fs, io::ErrorKind};

use net_config::{AddressKeeper, AddressParams, Change, DeviceKind, NetConfigError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::*;

#[test]
fn missing_device_is_created_with_next_kind() {
    in_namespace(async {
        let changes = keeper(&[V4, V6]).ensure().await.unwrap();

        let created = Change::CreateDevice {
            device: DEVICE.to_owned(),
            kind: best_kind(),
        };
        assert_eq!(changes.applied.first(), Some(&created));
        assert_eq!(changes.applied.len(), 3);
        assert!(changes.is_settled());
        let shown = ip(&["-d", "-o", "link", "show", DEVICE]);
        assert!(
            shown.contains(best_kind().as_str()) && shown.contains(",UP"),
            "{shown}"
        );
        assert_eq!(
            addresses_of(DEVICE),
            [format!("{V4}/32"), format!("{V6}/128")]
        );
        assert!(TcpListener::bind((V4, 443)).await.is_ok());
        assert!(TcpListener::bind((V6, 443)).await.is_ok(), "usable at once");
    });
}

#[test]
fn a_second_call_changes_nothing() {
    in_namespace(async {
        keeper(&[V4, V6]).ensure().await.unwrap();

        assert!(keeper(&[V4, V6]).ensure().await.unwrap().is_empty());
    });
}

#[test]
fn address_of_a_network_stays_on_its_device() {
    in_namespace(async {
        let own = format!("{V4}/24");
        ip(&["addr", "add", &own, "dev", "lo"]);

        let error = keeper(&[V4, V6]).ensure().await.unwrap_err();

        assert_eq!(error.reason(), "held_elsewhere", "{error}");
        assert!(
            error.to_string().contains(&format!("{own} on lo")),
            "{error}"
        );
        assert!(addresses_of("lo").contains(&own));
        assert_eq!(addresses_of(DEVICE), [format!("{V6}/128")]);
    });
}

#[test]
fn an_existing_device_is_used_whatever_its_kind() {
    in_namespace(async {
        ip(&[
            "link", "add", DEVICE, "type", "veth", "peer", "name", "other",
        ]);

        let changes = keeper(&[V4]).ensure().await.unwrap();

        assert_eq!(labels(&changes.applied), ["set_up", "add_address"]);
        assert_eq!(addresses_of(DEVICE), [format!("{V4}/32")]);
    });
}

#[test]
fn every_device_kind_carries_both_families() {
    in_namespace(async {
        ip(&["link", "set", "lo", "up"]);
        for kind in [DeviceKind::Dummy, DeviceKind::Ifb, DeviceKind::Bridge] {
            let params = AddressParams {
                kind,
                ..params(&[V4, V6])
            };
            let mut keeper = AddressKeeper::new(params);
            match keeper.ensure().await {
                Ok(changes) => assert!(changes.is_settled()),
                Err(NetConfigError::Kind { .. }) => {
                    println!("this kernel has no {kind}");
                    continue;
                }
                Err(error) => panic!("{kind}: {error}"),
            }
            let listener = TcpListener::bind((V6, 443)).await.unwrap();
            assert!(TcpStream::connect((V6, 443)).await.is_ok(), "{kind}");
            drop(listener);
            keeper.cleanup().await.unwrap();
            assert!(!exists(DEVICE), "{kind}");
        }
    });
}

#[test]
fn reported_ipv6_address_is_local() {
    in_namespace(async {
        ip(&["link", "set", "lo", "up"]);
        for _ in 0..50 {
            keeper(&[V6]).ensure().await.unwrap();
            // No socket listens: only the node itself can refuse.
            let answer = TcpStream::connect((V6, 443)).await.unwrap_err();
            assert_eq!(answer.kind(), ErrorKind::ConnectionRefused);
            ip(&["addr", "del", &format!("{V6}/128"), "dev", DEVICE]);
        }
    });
}

#[test]
fn only_wanted_address_moves_from_lo() {
    in_namespace(async {
        ip(&["link", "set", "lo", "up"]);
        ip(&["addr", "add", &format!("{V4}/32"), "dev", "lo"]);
        ip(&["addr", "add", &format!("{V6}/128"), "dev", "lo"]);
        ip(&["addr", "add", "10.9.9.9/32", "dev", "lo"]);
        let listener = TcpListener::bind((V4, 443)).await.unwrap();
        let mut client = TcpStream::connect((V4, 443)).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();

        keeper(&[V4, V6]).ensure().await.unwrap();

        assert_eq!(
            addresses_of("lo"),
            ["127.0.0.1/8", "10.9.9.9/32", "::1/128"]
        );
        assert_eq!(
            addresses_of(DEVICE),
            [format!("{V4}/32"), format!("{V6}/128")]
        );
        client.write_all(b"still here").await.unwrap();
        let mut heard = [0; 10];
        served.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"still here");
    });
}

#[test]
fn kind_lo_uses_lo_and_cleanup_keeps_others() {
    in_namespace(async {
        let params = AddressParams {
            kind: DeviceKind::Loopback,
            ..params(&[V4, V6])
        };
        let mut keeper = AddressKeeper::new(params);

        let changes = keeper.ensure().await.unwrap();

        assert_eq!(
            labels(&changes.applied),
            ["set_up", "add_address", "add_address"]
        );
        assert!(addresses_of("lo").contains(&format!("{V4}/32")));
        assert!(addresses_of("lo").contains(&format!("{V6}/128")));
        assert!(keeper.ensure().await.unwrap().is_empty());
        keeper.cleanup().await.unwrap();
        assert_eq!(addresses_of("lo"), ["127.0.0.1/8", "::1/128"]);
        assert!(!exists(DEVICE));
    });
}

#[test]
fn disabled_ipv6_is_named_and_ipv4_serves() {
    in_namespace(async {
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();

        let error = keeper(&[V4, V6]).ensure().await.unwrap_err();

        assert!(
            matches!(error, NetConfigError::Ipv6Disabled { .. }),
            "{error}"
        );
        assert_eq!(addresses_of(DEVICE), [format!("{V4}/32")]);
    });
}

#[test]
fn duplicate_address_is_replaced() {
    in_namespace(async {
        // A bridge without carrier leaves an address tentative for ever.
        ip(&["link", "add", DEVICE, "type", "bridge"]);
        ip(&["link", "set", DEVICE, "up"]);
        ip(&["addr", "add", &format!("{V6}/64"), "dev", DEVICE]);
        assert!(TcpListener::bind((V6, 443)).await.is_err());

        let changes = keeper(&[V6]).ensure().await.unwrap();

        assert_eq!(labels(&changes.applied), ["remove_address", "add_address"]);
        assert!(TcpListener::bind((V6, 443)).await.is_ok());
    });
}

#[test]
fn without_manage_it_only_reports() {
    in_namespace(async {
        let unmanaged = || {
            AddressKeeper::new(AddressParams {
                manage: false,
                ..params(&[V4])
            })
        };

        let changes = unmanaged().ensure().await.unwrap();

        assert_eq!(labels(&changes.pending), ["create_device", "add_address"]);
        assert!(changes.applied.is_empty() && !changes.is_settled());
        assert!(!exists(DEVICE));
        keeper(&[V4]).ensure().await.unwrap();
        assert!(unmanaged().ensure().await.unwrap().is_empty());
        assert!(unmanaged().cleanup().await.unwrap().is_empty());
        assert!(exists(DEVICE));
    });
}

#[test]
fn cleanup_is_complete_and_repeatable() {
    in_namespace(async {
        keeper(&[V4, V6]).ensure().await.unwrap();

        let changes = keeper(&[V4, V6]).cleanup().await.unwrap();

        assert_eq!(
            labels(&changes.applied),
            ["remove_address", "remove_address", "delete_device"]
        );
        assert!(!exists(DEVICE));
        assert!(keeper(&[V4, V6]).cleanup().await.unwrap().is_empty());
    });
}

#[test]
fn cleanup_keeps_device_with_foreign_address() {
    in_namespace(async {
        keeper(&[V4]).ensure().await.unwrap();
        ip(&["addr", "add", "10.9.9.9/32", "dev", DEVICE]);

        keeper(&[V4]).cleanup().await.unwrap();

        assert_eq!(addresses_of(DEVICE), ["10.9.9.9/32"]);
    });
}

#[test]
fn missing_kind_error_names_it() {
    if best_kind() == DeviceKind::Dummy {
        println!("this kernel has dummy: the choice is proven by the unit tests alone");
        return;
    }
    in_namespace(async {
        let params = AddressParams {
            kind: DeviceKind::Dummy,
            ..params(&[V4])
        };

        let error = AddressKeeper::new(params).ensure().await.unwrap_err();

        assert_eq!(error.reason(), "kind");
        assert!(!exists(DEVICE));
    });
}
