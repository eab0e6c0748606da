//! The sockets that send probes: one for each local address, and one for each next hop with an unanswered size probe.
#![expect(
    unsafe_code,
    reason = "rustix 1.1 has neither SO_NO_CHECK nor UDP_NO_CHECK6_TX"
)]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use socket2::SockRef;

pub(super) use crate::clock::monotonic_ns;
use crate::host::PROBE_MARK;

/// `UDP_NO_CHECK6_TX` of linux/udp.h.
const UDP_NO_CHECK6_TX: libc::c_int = 101;

/// One socket for each local address, opened at its first use.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    open: BTreeMap<IpAddr, UdpSocket>,
    udp_checksum: bool,
}

impl Sockets {
    /// Turns the UDP checksum of the outer header on or off.
    pub(super) fn configure(&mut self, udp_checksum: bool) {
        if self.udp_checksum != udp_checksum {
            self.open.clear();
            self.udp_checksum = udp_checksum;
        }
    }

    /// A socket for size probes; `None` without a free descriptor, or if the address was removed.
    pub(super) fn connect(&self, local: IpAddr, to: (IpAddr, u16)) -> Option<SizeSocket> {
        let socket = open_socket(local, self.udp_checksum).ok()?;
        socket.connect(to).ok()?;
        Some(SizeSocket(socket))
    }

    /// Sends a datagram. An error of the network is a lost probe: it has no reply.
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
            // The address was removed from the node; a new socket is opened once it is back.
            self.open.remove(&local);
        }
    }
}

/// A socket for the size probes to one next hop, whose ICMP errors the kernel reports.
#[derive(Debug)]
pub(super) struct SizeSocket(UdpSocket);

impl SizeSocket {
    /// Whether an ICMP error about a probe of this socket has arrived: "fragmentation needed" or "packet too big" (for
    /// a connected socket `EMSGSIZE`, `__udp4_lib_err` of Linux 5.15 and later).
    pub(super) fn is_too_big(&self) -> bool {
        let error = self.0.take_error().ok().flatten();
        error.is_some_and(|error| error.raw_os_error() == Some(libc::EMSGSIZE))
    }

    /// Sends a datagram. An error of the network is a lost probe.
    pub(super) fn send(&self, payload: &[u8]) {
        // An earlier ICMP error would be returned in place of this datagram's.
        drop(self.0.take_error());
        drop(self.0.send(payload));
    }
}

/// A socket that sends from `local`, never fragments and never blocks.
fn open_socket(local: IpAddr, udp_checksum: bool) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((local, 0))?;
    SockRef::from(&socket).set_mark(PROBE_MARK)?;
    socket.set_nonblocking(true)?;
    // Sets DF and accepts every size, regardless of the kernel's cached path MTU.
    if local.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
    }
    if !udp_checksum {
        disable_checksum(&socket, local.is_ipv6())?;
    }
    Ok(socket)
}

fn disable_checksum(socket: &UdpSocket, ipv6: bool) -> io::Result<()> {
    let (level, option) = if ipv6 {
        (libc::IPPROTO_UDP, UDP_NO_CHECK6_TX)
    } else {
        (libc::SOL_SOCKET, libc::SO_NO_CHECK)
    };
    let value: libc::c_int = 1;
    let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    // SAFETY: the descriptor is open, and the value has `len` bytes and outlives the call.
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
