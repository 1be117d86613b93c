//! Agents' connections within the shares of their tenants.

use std::cell::Cell;

use knp_proto::TenantId;
use tokio::task::{LocalSet, spawn_local, yield_now};

use super::*;
use crate::fair_share::FairScheduler;

/// Reads without end what an agent sends without end.
async fn read(flow: impl FnOnce(&Flow), bytes: Rc<Cell<usize>>) {
    let mut source = ReadBudget::new(repeat(7));
    flow(&source.flow());
    let mut part = vec![0; 16 << 10];
    loop {
        let len = source.read(&mut part).await.unwrap();
        bytes.set(bytes.get() + len);
    }
}

#[test]
fn tenants_read_equally_whatever_their_agents() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        let shares = FairScheduler::default();
        let scheduler = shares.clone();
        spawn_local(async move { scheduler.run().await });
        let [hostile, modest] = [("a", 50), ("b", 1)].map(|(tenant, agents)| {
            let bytes = Rc::<Cell<usize>>::default();
            for _ in 0..agents {
                let share = shares.share(&TenantId::new(tenant));
                spawn_local(read(|flow| flow.join(share), Rc::clone(&bytes)));
            }
            bytes
        });
        while modest.get() < 64 << 20 {
            yield_now().await;
        }
        let (hostile, modest) = (hostile.get() >> 20, modest.get() >> 20);
        // A round has 1 MiB for each tenant, and 256 KiB for each connection.
        assert!(hostile <= modest * 5, "{hostile} MiB beside {modest} MiB");
    });
}
