//! Probes: payload of tunnel frames with the probe ethertype. Numbers are in network order.
//!
//! ```text
//!  0  version  kind  size
//!  4  slot
//!  8  next hop ID
//! 12  sequence
//! 16  time of sending, nanoseconds of the sender's CLOCK_MONOTONIC
//! 24  zeros: 16 bytes, or as many as a packet of `size` needs
//! ```

use super::{access::Packet, aligned::Aligned};

/// Ethertype of probes: IEEE 802 local experimental 1.
pub const ETHERTYPE: u16 = 0x88b5;
/// Bytes of a probe without padding. As long as an IPv6 header, so that the shortest frame of every kind has the
/// same length.
pub const LEN: usize = 40;
/// Version of this layout; probes of other versions are dropped.
const VERSION: u8 = 1;
/// Offset of [`Probe::slot`].
pub const SLOT: u32 = 4;
/// Leading bytes that differ between a request and its reply.
pub const HEAD: usize = 2;

/// Type of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Liveness request.
    Request = 1,
    /// Reply to a liveness request.
    Reply = 2,
    /// Path MTU request of [`Probe::size`] bytes.
    SizeRequest = 3,
    /// Reply to a path MTU request, of the same size.
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

    /// The reply to a probe of this kind. A reply has none, so that probes do not loop.
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

/// A probe. A reply repeats everything but the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Type of the probe.
    pub kind: Kind,
    /// Length of the outer IP packet of a size probe in bytes; 0 in other probes.
    pub size: u16,
    /// Slot of the next hop in the sender's maps.
    pub slot: u32,
    /// Stable ID of that next hop.
    pub id: u32,
    /// Sequence number; liveness probes and size probes are numbered separately.
    pub sequence: u32,
    /// Time of sending in nanoseconds of the sender's `CLOCK_MONOTONIC`.
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

    /// Parses the probe at `offset`; `None` if it is truncated or of an unknown version or kind.
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
    fn unknown_versions_kinds_and_truncated_probes_are_rejected() {
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
        fn a_written_probe_parses_back(kind in 1..5_u8, size: u16, slot: u32, id: u32, sequence: u32, sent_at: u64) {
            let probe = Probe { kind: Kind::from_byte(kind).unwrap(), size, slot, id, sequence, sent_at };
            prop_assert_eq!(Probe::load(&SlicePacket::new(probe.bytes().to_vec()), 0), Some(probe));
        }
    }
}
