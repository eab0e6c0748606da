//! Packet capture on a device inside a namespace, and the pcap format of its file.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{netns::Netns, process::Process, traffic::Traffic};

/// Line that the capture prints once it receives frames.
pub const CAPTURING: &str = "capturing";
/// Timeout for the start of a capture and for its end after SIGTERM.
const TIMEOUT: Duration = Duration::from_secs(5);

/// pcap file header fields (<https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html>).
const PCAP_MAGIC: u32 = 0xa1b2_c3d4;
const PCAP_VERSION: [u16; 2] = [2, 4];
const PCAP_FILE_HEADER: usize = 24;
const PCAP_ETHERNET: u32 = 1;
/// Longest captured frame; a GSO packet is not longer.
pub const SNAP_LENGTH: usize = 1 << 18;

/// Direction of frames, seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by the device.
    In,
    /// Sent by the device.
    Out,
    /// Both.
    Both,
}

/// A running capture; dropping it stops it.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

// === impl Capture ===

impl Capture {
    /// Starts a capture on a device inside a namespace and returns once it receives frames. The capture stops
    /// after `count` frames.
    pub fn start(
        traffic: &Traffic,
        netns: &Netns,
        device: &str,
        direction: Direction,
        count: Option<u64>,
        file: &Path,
    ) -> Result<Self> {
        let file_name = file.to_string_lossy();
        let direction = match direction {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::Both => "both",
        };
        let mut args = vec![
            "capture",
            "--device",
            device,
            "--direction",
            direction,
            "--out",
            &file_name,
        ];
        let count = count.map(|count| count.to_string());
        if let Some(count) = &count {
            args.extend(["--count", count]);
        }
        let mut process = traffic.spawn(netns, &args)?;
        process.wait_for_line(CAPTURING, TIMEOUT)?;
        Ok(Self {
            process,
            file: file.to_owned(),
        })
    }

    /// Stops the capture and returns the frames.
    pub fn finish(mut self) -> Result<Vec<Vec<u8>>> {
        self.process.terminate()?;
        self.process.finish(TIMEOUT)?;
        read(&self.file)
    }

    /// Waits for the requested number of frames, at most for `deadline`, and returns the frames captured so far.
    pub fn wait(mut self, deadline: Duration) -> Result<Vec<Vec<u8>>> {
        // Fewer frames are no error here: the caller checks the number.
        drop(self.process.wait(deadline));
        self.finish()
    }
}

/// Writes a pcap file, frame by frame.
#[derive(Debug)]
pub struct PcapWriter<W> {
    out: W,
}

// === impl PcapWriter ===

impl<W: Write> PcapWriter<W> {
    /// Starts the file.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&PCAP_MAGIC.to_le_bytes())?;
        for part in PCAP_VERSION {
            out.write_all(&part.to_le_bytes())?;
        }
        out.write_all(&[0; 8])?;
        out.write_all(&u32::try_from(SNAP_LENGTH).unwrap_or(u32::MAX).to_le_bytes())?;
        out.write_all(&PCAP_ETHERNET.to_le_bytes())?;
        Ok(Self { out })
    }

    /// Adds a frame with its time of arrival since 1970.
    pub fn frame(&mut self, at: Duration, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        // The format's seconds end in 2106.
        let seconds = u32::try_from(at.as_secs()).unwrap_or(u32::MAX);
        for field in [seconds, at.subsec_micros(), length, length] {
            self.out.write_all(&field.to_le_bytes())?;
        }
        self.out.write_all(frame)
    }

    /// Writes buffered frames.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads the frames of a file that [`PcapWriter`] wrote.
pub fn read(file: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    frames(&bytes).with_context(|| format!("invalid pcap file {}", file.display()))
}

fn frames(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let Some((header, mut rest)) = bytes.split_at_checked(PCAP_FILE_HEADER) else {
        bail!("only {} bytes", bytes.len());
    };
    if !header.starts_with(&PCAP_MAGIC.to_le_bytes()) {
        bail!("starts with {:02x?}", header.get(..4).unwrap_or_default());
    }
    let mut found = Vec::new();
    while !rest.is_empty() {
        let Some((record, after)) = rest.split_first_chunk::<16>() else {
            bail!("ends inside the header of frame {}", found.len());
        };
        let [.., a, b, c, d, _, _, _, _] = *record;
        let length = usize::try_from(u32::from_le_bytes([a, b, c, d]))?;
        let Some((frame, after)) = after.split_at_checked(length) else {
            bail!("ends inside frame {} of {length} bytes", found.len());
        };
        found.push(frame.to_vec());
        rest = after;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(frames: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = PcapWriter::new(&mut bytes).unwrap();
        for frame in frames {
            writer
                .frame(Duration::from_micros(1_700_000_000_123_456), frame)
                .unwrap();
        }
        bytes
    }

    #[test]
    fn written_frames_are_read_back() {
        let bytes = file(&[b"first", b"", b"third frame"]);
        assert_eq!(frames(&bytes).unwrap(), [&b"first"[..], b"", b"third frame"]);
        assert!(frames(&file(&[])).unwrap().is_empty());
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        let bytes = file(&[b"frame"]);
        for length in [0, 10, 30, bytes.len() - 1] {
            assert!(frames(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
