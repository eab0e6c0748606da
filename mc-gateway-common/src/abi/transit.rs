//! Layout of the XDP program and its devices.

/// Name of the XDP program on the underlay devices of a gateway.
pub const PROGRAM_TRANSIT: &str = "transit";
/// Name of the devices that the program may send from: device hash map of each index to itself.
pub const TRANSIT_DEVICES: &str = "mc_transit_devs";
/// Capacity of `mc_transit_devs`.
pub const MAX_TRANSIT_DEVICES: u32 = 64;

/// Value of `mc_transit_devs` (`struct bpf_devmap_val`, Linux 5.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TransitDevice {
    /// Index of the device.
    pub ifindex: u32,
    /// Program that runs before the device sends a frame: none, 0.
    pub program: u32,
}
