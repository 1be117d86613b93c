//! A link over HTTP/2 in memory, whose time is the test's.

use bytes::{Bytes, BytesMut};
use knp_proto::{
    Budget, ConnectId, DialId, DialTarget, EndReason, Extensions, Link, LinkConfig, StreamId,
    Tenant, TenantId, TenantLimits, Transmit,
};
use telemetry::Registry;
use tokio::io::{DuplexStream, duplex};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::*;
use crate::grpc::{CONNECT_PATH, Side, client_builder, request, server_builder};
use crate::metrics::ServerMetrics;

const LIVENESS: Liveness = Liveness {
    interval: Duration::from_secs(30),
    timeout: Duration::from_secs(20),
};
const WINDOW: u32 = 1 << 20;

/// An agent that answers one dial, sends bytes, closes, and is gone.
async fn agent(io: DuplexStream) {
    let (requests, connection) = client_builder().handshake(io).await.unwrap();
    spawn_local(connection);
    let mut requests = requests.ready().await.unwrap();
    let request = request(CONNECT_PATH, "server").unwrap();
    let (response, stream) = requests.send_request(request, false).unwrap();
    let mut sender = PacketSender::new(stream, Side::Client);
    let mut receiver = PacketReceiver::new(response.await.unwrap().into_body(), 1 << 20);
    let mut packets = VecDeque::new();
    while packets.is_empty() {
        let read = poll_fn(|cx| receiver.poll_packets(cx, &mut packets)).await;
        assert!(read.unwrap().is_some());
    }
    let Some(Packet::DialRequest { random, .. }) = packets.pop_front() else {
        panic!("something else than a dial");
    };
    let (connect_id, error) = (ConnectId(1), String::new());
    let data = Bytes::from_static(b"unread");
    for packet in [
        Packet::DialResponse {
            error: error.clone(),
            connect_id,
            random,
        },
        Packet::Data { connect_id, data },
        Packet::CloseResponse { connect_id, error },
    ] {
        poll_fn(|cx| sender.poll_ready(cx)).await.unwrap();
        let kind = packet.kind();
        let encode = |buf: &mut BytesMut| {
            packet.encode(buf);
            let payload = None;
            Some(Transmit { kind, payload })
        };
        sender.transmit(encode).unwrap();
    }
    sender.end(GrpcCode::OK, "");
    // To drop it would reset the stream.
    while let Ok(Some(_)) = poll_fn(|cx| receiver.poll_packets(cx, &mut packets)).await {}
}

#[tokio::test(start_paused = true)]
async fn unread_tunnel_ends_in_time_after_its_link() {
    let test = async {
        let (near, far) = duplex(1 << 20);
        spawn_local(agent(far));
        let server = server_builder(WINDOW, WINDOW).handshake(near);
        let mut connection = server.await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let stream = respond.send_response(http::Response::new(()), false);
        spawn_local(async move { while connection.accept().await.is_some() {} });
        let (limits, budget) = (TenantLimits::default(), Budget::new(1 << 20));
        let tenant = Tenant::new(TenantId::new("a"), limits, budget);
        let (none, config) = (Extensions::default(), LinkConfig::default());
        let link = Link::server(&tenant, StreamId(1), none, config).unwrap();
        let metrics = ServerMetrics::new(&Registry::new(), false).tenant(&tenant);
        let link = LinkHandle::new(link, metrics.link().clone());
        let pump = Pump::new(
            link.clone(),
            PacketSender::new(stream.unwrap(), Side::Server),
            PacketReceiver::new(request.into_body(), 1 << 20),
            None,
            LIVENESS,
            Rc::default(),
        );
        let running = spawn_local(pump.run(|_| {}));
        let target = DialTarget {
            protocol: "tcp".to_owned(),
            address: "10.0.0.1:443".to_owned(),
        };
        let limit = Duration::from_secs(10);
        let dialed = link.dial(DialId::from_random(1), target, limit).await;
        let Ok(tunnel) = dialed else {
            panic!("{:?}", running.await)
        };
        let end = running.await.unwrap();
        assert!(matches!(end, LinkEnd::Finished(_)), "{end}");
        assert_eq!(link.tunnels(), 1);

        let ended = timeout(
            2 * config.linger_timeout,
            poll_fn(|cx| tunnel.poll_ended(cx)),
        )
        .await;

        assert_eq!(ended, Ok(EndReason::LingerTimeout));
        assert_eq!((link.tunnels(), tenant.tunnels()), (0, 0));
    };
    LocalSet::new().run_until(test).await;
}
