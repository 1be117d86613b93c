//! Reads what the kernel has counted of a connection (`TCP_INFO`, tcp(7)).
//!
//! The structure only ever grows; what is wanted of it is complete since Linux 5.4. Kernels before it
//! are not asked: less than was asked for would end the process.

use std::os::fd::AsFd;
use std::sync::LazyLock;

use nix::libc;
use nix::sys::socket::GetSockOpt;
use nix::sys::socket::sockopt::GetStruct;
use tunnel_proto::path::Segments;

/// Returns the counts; `None` where the kernel does not tell them.
pub(super) fn counted(socket: &impl AsFd) -> Option<Segments> {
    if !*TELLS {
        return None;
    }
    let info: Words = Info.get(socket).ok()?;
    Some(Segments {
        sent: info[DATA_SEGS_OUT],
        // What a busy machine sends again too early, and the other end says that it had it (RFC 2883).
        resent: info[TOTAL_RETRANS].saturating_sub(info[DSACK_DUPS]),
        in_flight: info[UNACKED],
        received: info[DATA_SEGS_IN],
        out_of_order: info[RCV_OOOPACK],
    })
}

static TELLS: LazyLock<bool> = LazyLock::new(|| {
    let release = rustix::system::uname();
    is_new_enough(&release.release().to_string_lossy())
});

/// Answers whether the release of a kernel, as `uname -r` says it, is 5.4 or later.
fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = number().zip(number());
    version.is_some_and(|version| version >= (5, 4))
}

#[derive(Clone, Copy)]
struct Info;
nix::getsockopt_impl!(
    Info,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    Words,
    GetStruct<Words>
);

/// `struct tcp_info` of `linux/tcp.h` up to and with `tcpi_rcv_ooopack`, in words of four octets.
type Words = [u32; 57];
const UNACKED: usize = 6;
const TOTAL_RETRANS: usize = 25;
const DATA_SEGS_IN: usize = 38;
const DATA_SEGS_OUT: usize = 39;
const DSACK_DUPS: usize = 54;
const RCV_OOOPACK: usize = 56;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn kernels_of_which_the_structure_is_too_short_are_not_asked() {
        for release in ["5.4.0", "5.10", "6.18.44-fc-v657", "10.0-rc1"] {
            assert!(is_new_enough(release), "{release}");
        }
        for release in ["4.4.0", "4.19.112+", "5.3.18-lp152", "5", "", "gVisor"] {
            assert!(!is_new_enough(release), "{release}");
        }
    }

    #[test]
    fn segments_with_data_are_counted_each_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        assert_eq!(counted(&ours), Some(Segments::default()));
        for _ in 0..3 {
            ours.write_all(b"to").unwrap();
            other.read_exact(&mut [0; 2]).unwrap();
        }
        other.write_all(b"fro").unwrap();
        ours.read_exact(&mut [0; 3]).unwrap();
        let expected = Segments {
            sent: 3,
            received: 1,
            ..Segments::default()
        };
        assert_eq!(counted(&ours), Some(expected));
    }
}
