//! Bytes of a connection: requests of the client, records of the server.

use std::net::{IpAddr, Ipv6Addr};

/// Bytes of a request.
pub(crate) const REQUEST: usize = 16;
/// Bytes of a record without its padding.
pub(crate) const RECORD: usize = 32;
/// Padding of each record of a bulk stream: several segments, so that the kernel sends super-packets.
pub(crate) const BULK: usize = 16_384;
/// Length of a datagram of a bulk flow.
pub(crate) const BULK_DATAGRAM: usize = 256;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The server sends a stream of records instead of one record for each request.
    pub(crate) bulk: bool,
    /// Counts from 1.
    pub(crate) number: u64,
}

/// A record, the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Address of the backend.
    pub(crate) backend: IpAddr,
    /// Position in a bulk stream, from 0.
    pub(crate) position: u64,
    /// Number of the latest request.
    pub(crate) number: u64,
}

// === impl Request ===

impl Request {
    pub(crate) fn encode(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..8].copy_from_slice(&u64::from(self.bulk).to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; REQUEST]) -> Self {
        let ([bulk, number], _) = bytes.as_chunks::<8>() else {
            return Self {
                bulk: false,
                number: 0,
            };
        };
        Self {
            bulk: u64::from_be_bytes(*bulk) != 0,
            number: u64::from_be_bytes(*number),
        }
    }
}

// === impl Record ===

impl Record {
    pub(crate) fn encode(self) -> [u8; RECORD] {
        let backend = match self.backend {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        let mut bytes = [0; RECORD];
        bytes[..16].copy_from_slice(&backend.octets());
        bytes[16..24].copy_from_slice(&self.position.to_be_bytes());
        bytes[24..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; RECORD]) -> Self {
        let mut backend = [0; 16];
        backend.copy_from_slice(&bytes[..16]);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        };
        Self {
            backend: Ipv6Addr::from(backend).to_canonical(),
            position: word(16),
            number: word(24),
        }
    }

    /// Byte of the padding of a record: another position has another one.
    #[expect(clippy::cast_possible_truncation, reason = "the low byte is meant")]
    pub(crate) fn padding(self) -> u8 {
        self.position as u8
    }
}

#[test]
fn decode_reverses_encode() {
    for backend in ["10.12.1.11", "fd00:12:0:1::11"] {
        let record = Record {
            backend: backend.parse().expect("an address"),
            position: 7,
            number: 300,
        };
        assert_eq!(Record::decode(&record.encode()), record);
    }
    let request = Request {
        bulk: true,
        number: 9,
    };
    assert_eq!(Request::decode(&request.encode()), request);
}
