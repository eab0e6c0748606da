//! Frames captured on a device inside a namespace, as a pcap file any other tool can read too.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{netns::Netns, process::Process, traffic::Traffic};

/// Line the capture prints once no frame is missed any more.
pub const CAPTURING: &str = "capturing";
/// How long the capture may take to start, and to end once asked to.
const PROMPT: Duration = Duration::from_secs(5);

/// pcap file header fields (<https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html>).
const PCAP_MAGIC: u32 = 0xa1b2_c3d4;
const PCAP_VERSION: [u16; 2] = [2, 4];
const PCAP_FILE_HEADER: usize = 24;
const PCAP_ETHERNET: u32 = 1;
/// Longest frame kept; a GSO super-packet is not longer.
pub const SNAP_LENGTH: usize = 1 << 18;

/// Which way frames go, seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by the device.
    In,
    /// Sent by the device.
    Out,
    /// Both.
    Both,
}

/// A running capture. Dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

// === impl Capture ===

impl Capture {
    /// Starts to capture on a device inside a namespace and returns once no frame is missed any more.
    /// The capture ends by itself after `count` frames.
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
        process.wait_for_line(CAPTURING, PROMPT)?;
        Ok(Self {
            process,
            file: file.to_owned(),
        })
    }

    /// Ends the capture and returns the frames.
    pub fn finish(mut self) -> Result<Vec<Vec<u8>>> {
        self.process.terminate()?;
        self.process.finish(PROMPT)?;
        read(&self.file)
    }

    /// Waits until the wanted number of frames is there, at most for `deadline`, and returns what there
    /// is then.
    pub fn wait(mut self, deadline: Duration) -> Result<Vec<Vec<u8>>> {
        // Fewer frames than wanted are an answer too; the caller sees how many.
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

    /// Adds a frame that was seen at `at` (time since 1970).
    pub fn frame(&mut self, at: Duration, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        // The format's seconds end in 2106.
        let seconds = u32::try_from(at.as_secs()).unwrap_or(u32::MAX);
        for field in [seconds, at.subsec_micros(), length, length] {
            self.out.write_all(&field.to_le_bytes())?;
        }
        self.out.write_all(frame)
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads the frames of a pcap file that [`PcapWriter`] wrote.
pub fn read(file: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    frames(&bytes).with_context(|| format!("{} is not a pcap file of ours", file.display()))
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
    fn frames_come_back_as_they_were_written() {
        let bytes = file(&[b"first", b"", b"third frame"]);
        assert_eq!(frames(&bytes).unwrap(), [&b"first"[..], b"", b"third frame"]);
        assert!(frames(&file(&[])).unwrap().is_empty());
    }

    #[test]
    fn cut_file_is_an_error() {
        let bytes = file(&[b"frame"]);
        for length in [0, 10, 30, bytes.len() - 1] {
            assert!(frames(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
