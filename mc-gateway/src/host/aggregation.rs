//! Aggregation of tunnel packets on the host: tunnel sockets, and generic receive offload (GRO) of devices.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::{
    InfoData, InfoGeneve, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::features::Features;
use super::{HostError, netlink};
use crate::aggregation::Aggregation;
use crate::config::EncapFormat;

/// Aggregation on each of `devices` for packets of a format to a UDP port. `features` are those of the devices.
pub async fn observe(
    handle: &Handle,
    devices: impl IntoIterator<Item = &String>,
    features: &BTreeMap<String, Features>,
    format: EncapFormat,
    port: u16,
) -> Result<BTreeMap<String, Aggregation>, HostError> {
    let mut sockets = Vec::new();
    let mut messages = handle.link().get().execute();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        sockets.extend(socket(&message).filter(|socket| (socket.format, socket.port) == (format, port)));
    }
    let sockets: Vec<String> = sockets.into_iter().map(|socket| socket.device).collect();
    let aggregation = |device: &String| Aggregation {
        sockets: sockets.clone(),
        gro: features.get(device).map(|features| features.gro),
    };
    let found = devices
        .into_iter()
        .map(|device| (device.clone(), aggregation(device)));
    Ok(found.collect())
}

/// An open tunnel socket.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    device: String,
    format: EncapFormat,
    port: u16,
}

/// The socket of a tunnel device that is up.
fn socket(message: &LinkMessage) -> Option<Socket> {
    let (mut device, mut port) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device = Some(name.clone()),
            LinkAttribute::LinkInfo(infos) => port = infos.iter().find_map(port_of),
            _ => {}
        }
    }
    let (format, port) = port.filter(|_| message.header.flags.contains(LinkFlags::Up))?;
    Some(Socket {
        device: device?,
        format,
        port,
    })
}

/// Format and UDP port in the settings of a tunnel device.
fn port_of(info: &LinkInfo) -> Option<(EncapFormat, u16)> {
    match info {
        LinkInfo::Data(InfoData::Vxlan(settings)) => settings.iter().find_map(|setting| match setting {
            InfoVxlan::Port(port) => Some((EncapFormat::Vxlan, *port)),
            _ => None,
        }),
        LinkInfo::Data(InfoData::Geneve(settings)) => settings.iter().find_map(|setting| match setting {
            InfoGeneve::Port(port) => Some((EncapFormat::Geneve, *port)),
            _ => None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_devices_that_are_up_have_a_socket() {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName("genev_sys_6081".to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Data(InfoData::Geneve(vec![
                InfoGeneve::CollectMetadata,
                InfoGeneve::Port(6081),
            ]))]),
        ];
        assert_eq!(socket(&message), None);
        message.header.flags |= LinkFlags::Up;
        let expected = Socket {
            device: "genev_sys_6081".to_owned(),
            format: EncapFormat::Geneve,
            port: 6081,
        };
        assert_eq!(socket(&message), Some(expected));
        message.attributes = vec![LinkAttribute::IfName("eth0".to_owned())];
        assert_eq!(socket(&message), None);
    }
}
