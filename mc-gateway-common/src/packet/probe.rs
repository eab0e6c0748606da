//! Probes: what a tunnel frame with our own inner ethertype carries. Numbers are in network order.
//!
//! ```text
//!  0  version  kind  size
//!  4  slot
//!  8  next hop id
//! 12  sequence
//! 16  time of sending, nanoseconds of the sender's CLOCK_MONOTONIC
//! 24  zero up to the end: 16 bytes, or as many as it takes to reach `size`
//! ```

use super::{Aligned, Packet};

/// Ethertype of probes: IEEE 802 local experimental 1.
pub const ETHERTYPE: u16 = 0x88b5;
/// Bytes of a probe without padding. As long as an IPv6 header, so that a receiver need not know the
/// shortest frame of each kind.
pub const LEN: usize = 40;
/// Version of this layout; a probe of another one is not understood.
const VERSION: u8 = 1;
/// Bytes that differ between a request and its reply, in front of everything that stays.
pub const HEAD: usize = 2;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Are you alive?
    Request = 1,
    /// Yes.
    Reply = 2,
    /// Do you get packets of this size?
    SizeRequest = 3,
    /// Yes, and here is one.
    SizeReply = 4,
}

impl Kind {
    #[inline(always)]
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Request),
            2 => Some(Self::Reply),
            3 => Some(Self::SizeRequest),
            4 => Some(Self::SizeReply),
            _ => None,
        }
    }

    /// The answer to this; none to an answer, so that nothing goes round in circles.
    #[inline(always)]
    #[must_use]
    pub const fn reply(self) -> Option<Self> {
        match self {
            Self::Request => Some(Self::Reply),
            Self::SizeRequest => Some(Self::SizeReply),
            Self::Reply | Self::SizeReply => None,
        }
    }

    /// First bytes of a probe of this kind.
    #[inline(always)]
    #[must_use]
    pub const fn head(self) -> [u8; HEAD] {
        [VERSION, self as u8]
    }
}

/// A probe. Everything but the kind comes back as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What it is for.
    pub kind: Kind,
    /// Length of the outer IP packet in bytes, of size probes; 0 of others.
    pub size: u16,
    /// Slot of the next hop in the sender's tables.
    pub slot: u32,
    /// Stable id of the next hop there.
    pub id: u32,
    /// Number of the probe: liveness probes and size probes count on their own.
    pub sequence: u32,
    /// When it was sent, in nanoseconds of the sender's `CLOCK_MONOTONIC`.
    pub sent_at: u64,
}

impl Probe {
    /// The bytes behind the inner Ethernet header, without padding.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let fields = self
            .kind
            .head()
            .into_iter()
            .chain(self.size.to_be_bytes())
            .chain(self.slot.to_be_bytes())
            .chain(self.id.to_be_bytes())
            .chain(self.sequence.to_be_bytes())
            .chain(self.sent_at.to_be_bytes());
        let mut bytes = [0; LEN];
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// Reads the probe at `offset`; `None` where it is cut off, of another version or kind.
    #[inline(always)]
    pub fn load<P: Packet>(packet: &P, offset: u32) -> Option<Self> {
        let bytes = Aligned(packet.load::<LEN>(offset)?);
        let [head, slot, id, sequence, high, low, ..] = *bytes.0.as_chunks::<4>().0 else {
            return None;
        };
        let [version, kind, s0, s1] = head;
        if version != VERSION {
            return None;
        }
        Some(Self {
            kind: Kind::from_byte(kind)?,
            size: u16::from_be_bytes([s0, s1]),
            slot: u32::from_be_bytes(slot),
            id: u32::from_be_bytes(id),
            sequence: u32::from_be_bytes(sequence),
            sent_at: u64::from(u32::from_be_bytes(high)) << 32 | u64::from(u32::from_be_bytes(low)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::SlicePacket;

    #[test]
    fn layout() {
        let probe = Probe {
            kind: Kind::SizeRequest,
            size: 0x0506,
            slot: 0x0708_090a,
            id: 0x0b0c_0d0e,
            sequence: 0x0f10_1112,
            sent_at: 0x1314_1516_1718_191a,
        };
        let mut expected = [0; LEN];
        expected[..4].copy_from_slice(&[1, 3, 5, 6]);
        for (at, byte) in expected.iter_mut().enumerate().take(24).skip(4) {
            *byte = u8::try_from(at + 3).unwrap();
        }
        assert_eq!(probe.bytes(), expected);
    }

    #[test]
    fn another_version_kind_or_length_is_no_probe() {
        let good = Probe {
            kind: Kind::Request,
            size: 0,
            slot: 1,
            id: 2,
            sequence: 3,
            sent_at: 4,
        }
        .bytes();
        assert!(Probe::load(&SlicePacket::new(good.to_vec()), 0).is_some());
        for (at, value) in [(0, 0), (0, 2), (1, 0), (1, 5)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Probe::load(&SlicePacket::new(bytes.to_vec()), 0), None);
        }
        assert_eq!(Probe::load(&SlicePacket::new(good[..LEN - 1].to_vec()), 0), None);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(kind in 1..5_u8, size: u16, slot: u32, id: u32, sequence: u32, sent_at: u64) {
            let probe = Probe { kind: Kind::from_byte(kind).unwrap(), size, slot, id, sequence, sent_at };
            prop_assert_eq!(Probe::load(&SlicePacket::new(probe.bytes().to_vec()), 0), Some(probe));
        }
    }
}
