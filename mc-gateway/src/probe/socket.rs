//! The sockets probes leave through: one for each own address.
#![expect(
    unsafe_code,
    reason = "socket options and a clock the standard library does not know"
)]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

/// `UDP_NO_CHECK6_TX` of linux/udp.h.
const UDP_NO_CHECK6_TX: libc::c_int = 101;

/// One socket for each own address, made when it is needed.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    open: BTreeMap<IpAddr, UdpSocket>,
    udp_checksum: bool,
}

impl Sockets {
    /// Whether packets carry a UDP checksum.
    pub(super) fn configure(&mut self, udp_checksum: bool) {
        if self.udp_checksum != udp_checksum {
            self.open.clear();
            self.udp_checksum = udp_checksum;
        }
    }

    /// Sends a datagram. One that cannot be sent is lost like one that gets lost: nobody answers it.
    pub(super) fn send(&mut self, payload: &[u8], local: IpAddr, to: (IpAddr, u16)) {
        if !self.open.contains_key(&local)
            && let Ok(socket) = open_socket(local, self.udp_checksum)
        {
            self.open.insert(local, socket);
        }
        let Some(socket) = self.open.get(&local) else {
            return;
        };
        if let Err(error) = socket.send_to(payload, to)
            && error.kind() == io::ErrorKind::InvalidInput
        {
            // The address is no longer ours: a new socket when it is again.
            self.open.remove(&local);
        }
    }
}

/// A socket that sends from `local`, never fragments and never blocks.
fn open_socket(local: IpAddr, udp_checksum: bool) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((local, 0))?;
    socket.set_nonblocking(true)?;
    // DF is set, and no size is refused because of what the kernel believes about the path.
    if local.is_ipv4() {
        set_option(
            &socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )?;
    } else {
        let probe = libc::IPV6_PMTUDISC_PROBE;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
    }
    if !udp_checksum {
        if local.is_ipv4() {
            set_option(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
        } else {
            set_option(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)?;
        }
    }
    Ok(socket)
}

fn set_option(
    socket: &UdpSocket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    // SAFETY: the descriptor is open, and the value is `len` bytes long and lives through the call.
    let ret = unsafe {
        let value = std::ptr::from_ref(&value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, option, value, len)
    };
    if ret == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`: the clock the programs read.
pub(super) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours.
    let ret = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    if ret != 0 {
        return 0;
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
