//! Frames seen on a device, received and sent ones, in front of the programs on receipt.

use std::{
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    time::Duration,
};

use anyhow::{Context as _, Result};
use mc_tests::{injection::link_address, netns::Netns};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
    },
};

/// Bytes that hold every frame of a burst.
const BUFFER: usize = 64 << 20;

/// A packet socket on a device of a namespace.
#[derive(Debug)]
pub(crate) struct Tap {
    socket: OwnedFd,
    /// Namespace and device, for messages.
    pub(crate) name: String,
}

impl Tap {
    /// Opens the socket; it remains in the namespace.
    pub(crate) fn open(netns: &Netns, device: &str) -> Result<Self> {
        let name = format!("{} {device}", netns.name());
        let socket = netns
            .enter(|| {
                let socket = socket(
                    AddressFamily::Packet,
                    SockType::Raw,
                    SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
                    SockProtocol::EthAll,
                )?;
                setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
                bind(socket.as_raw_fd(), &link_address(device)?)?;
                Ok(socket)
            })
            .with_context(|| format!("no tap on {name}"))?;
        let tap = Self { socket, name };
        // Those of other devices, from before the socket had one.
        tap.frames()?;
        Ok(tap)
    }

    /// Waits for a frame, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<()> {
        let mut sockets = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut sockets, PollTimeout::try_from(timeout)?)?;
        Ok(())
    }

    /// The frames since the last call.
    pub(crate) fn frames(&self) -> Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => frames.push(buffer[..len].to_vec()),
                Err(Errno::EAGAIN) => return Ok(frames),
                // The device was down for a moment.
                Err(Errno::ENETDOWN) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.name)),
            }
        }
    }
}
