//! What is parsed and written before a connection is relayed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use preamble::{
    ClientHello, Progress, ProxyHeader, RequestHead, encode_connect, encode_v1, encode_v2,
};

use crate::workload::Workload;

pub(crate) fn workloads() -> Vec<Workload> {
    let mut all = hellos();
    all.extend(headers());
    all.extend(heads());
    all
}

fn hellos() -> Vec<Workload> {
    let records = in_records(POST_QUANTUM, 3);
    let reads: [usize; 4] = std::array::from_fn(|nth| POST_QUANTUM.len() * (nth + 1) / 4);
    let once = |hello: &Vec<u8>| server_name(hello);
    let whole =
        |name, hello: &[u8]| Workload::repeated(name, server_name(hello), hello.to_vec(), once);
    vec![
        whole("client hello, 133 bytes", PLAIN),
        whole("client hello of openssl, 517 bytes", OPENSSL),
        whole("client hello, post-quantum, 1338 bytes", POST_QUANTUM),
        whole("client hello, post-quantum, in three records", &records),
        Workload::repeated(
            "client hello, post-quantum, in four reads",
            server_name(POST_QUANTUM),
            POST_QUANTUM.to_vec(),
            move |hello| {
                let prefixes = reads.iter().filter_map(|end| hello.get(..*end));
                prefixes.map(server_name).sum()
            },
        ),
    ]
}

/// Returns the bytes of the server's name; 0 while the hello is incomplete.
fn server_name(hello: &[u8]) -> usize {
    match ClientHello::parse(hello, LIMIT) {
        Ok(Progress::Done { value, .. }) => value.server_name().map_or(0, str::len),
        Ok(Progress::Need { .. }) | Err(_) => 0,
    }
}

/// Cuts a hello in one record into `count` records of about the same size (RFC 8446 §5.1).
fn in_records(hello: &[u8], count: usize) -> Vec<u8> {
    let (head, message) = hello.split_at_checked(RECORD_HEAD).unwrap_or_default();
    let version = head.get(..3).unwrap_or_default();
    let mut records = Vec::new();
    for fragment in message.chunks(message.len().div_ceil(count)) {
        records.extend_from_slice(version);
        let len = u16::try_from(fragment.len()).unwrap_or(u16::MAX);
        records.extend_from_slice(&len.to_be_bytes());
        records.extend_from_slice(fragment);
    }
    records
}

fn headers() -> Vec<Workload> {
    let parsed = |name, header: Vec<u8>| {
        let len = header.len();
        Workload::repeated(name, len, header, |header| {
            match ProxyHeader::parse(header, LIMIT) {
                Ok(Progress::Done { consumed, .. }) => consumed,
                Ok(Progress::Need { .. }) | Err(_) => 0,
            }
        })
    };
    let (mut first, mut second) = (Vec::new(), Vec::new());
    encode_v1(SOURCE, DESTINATION, &mut first);
    second.extend_from_slice(V2_TCP4);
    vec![
        parsed("proxy header 1", first),
        parsed("proxy header 2", second),
        parsed("proxy header 2 with a checksum", V2_CHECKSUM.to_vec()),
        Workload::repeated(
            "proxy header 2, written",
            V2_TCP4.len(),
            (SOURCE, DESTINATION),
            |(source, destination)| {
                let mut out = Vec::new();
                let written = encode_v2(*source, *destination, &[], false, &mut out);
                written.map_or(0, |()| out.len())
            },
        ),
    ]
}

fn heads() -> Vec<Workload> {
    vec![
        Workload::repeated(
            "connect head of a node proxy",
            CONNECT.len(),
            CONNECT.to_vec(),
            |head| match RequestHead::parse(head, LIMIT) {
                Ok(Progress::Done { value, consumed }) => {
                    let found = value.header_values(DESTINATION_HEADER).count();
                    consumed * found
                }
                Ok(Progress::Need { .. }) | Err(_) => 0,
            },
        ),
        Workload::repeated("connect head, written", WRITTEN_HEAD, (), |()| {
            // Whether one without room grows in place depends on what else is on the heap.
            let mut out = Vec::with_capacity(WRITTEN_HEAD);
            let fields = [(DESTINATION_HEADER, DESTINATION_VALUE)];
            let written = encode_connect("api.example.com:8443", &fields, &mut out);
            written.map_or(0, |()| out.len())
        }),
    ]
}

const WRITTEN_HEAD: usize = 157;
/// As a gateway's listener has it by default.
const LIMIT: usize = 16 * 1024;
const RECORD_HEAD: usize = 5;

const PLAIN: &[u8] = include_bytes!("../../../fuzz/corpora/client_hello/plain");
const OPENSSL: &[u8] = include_bytes!("../../../fuzz/corpora/client_hello/openssl_tls13_h2");
const POST_QUANTUM: &[u8] = include_bytes!("../../../fuzz/corpora/client_hello/post_quantum");
const V2_TCP4: &[u8] = include_bytes!("../../../fuzz/corpora/proxy_header/v2_tcp4");
const V2_CHECKSUM: &[u8] = include_bytes!("../../../fuzz/corpora/proxy_header/v2_crc_last");
const CONNECT: &[u8] = include_bytes!("../../../fuzz/corpora/connect_head/gardener");

const DESTINATION_HEADER: &str = "X-Gardener-Destination";
const DESTINATION_VALUE: &str = "outbound|443||kube-apiserver.shoot--foo--bar.svc.cluster.local";
const SOURCE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(100, 96, 0, 17)), 41_234);
const DESTINATION: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)), 443);
