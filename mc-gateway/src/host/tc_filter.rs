//! Observed filters of clsact qdiscs.

use std::collections::BTreeMap;
use std::io;

use futures::{StreamExt as _, TryStreamExt as _};
use rtnetlink::Handle;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};
use rustix::io::Errno;

use super::{HostError, is_missing, link, netlink};
use crate::plan::Program;

/// Handle of the agent's filters ("mc" in ASCII); with the program's name it identifies them.
pub(crate) const HANDLE: u32 = 0x6d63;

/// A filter of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its program.
    pub program: Program,
    /// Name of its device.
    pub device: String,
    /// Index of the device.
    pub ifindex: u32,
    /// Priority.
    pub priority: u16,
    /// Kernel ID of the attached program.
    pub program_id: u32,
}

/// The agent's filters on all devices: those of kind `bpf` with its handle and the name of a program at its direction.
pub async fn observe(handle: &Handle) -> Result<Vec<Filter>, HostError> {
    let qdiscs = qdiscs(handle).await?;
    if qdiscs.is_empty() {
        return Ok(Vec::new());
    }
    let names = names(handle).await?;
    let mut found = Vec::new();
    for ifindex in qdiscs {
        let Some(device) = names.get(&ifindex) else {
            continue;
        };
        for program in Program::ALL {
            for message in filters(handle, ifindex, program).await? {
                if let Some((priority, program_id)) = ours(&message, program) {
                    found.push(Filter {
                        program,
                        device: device.clone(),
                        ifindex,
                        priority,
                        program_id,
                    });
                }
            }
        }
    }
    Ok(found)
}

/// Devices with a qdisc for ingress filters: `clsact` or `ingress`.
async fn qdiscs(handle: &Handle) -> Result<Vec<u32>, HostError> {
    let mut messages = handle.qdisc().get().execute();
    let mut found = Vec::new();
    while let Some(message) = messages.try_next().await.map_err(netlink("list qdiscs"))? {
        let hooks = message.attributes.iter().any(
            |attribute| matches!(attribute, TcAttribute::Kind(kind) if kind == "clsact" || kind == "ingress"),
        );
        if hooks {
            found.push(message.header.index.cast_unsigned());
        }
    }
    Ok(found)
}

async fn names(handle: &Handle) -> Result<BTreeMap<u32, String>, HostError> {
    let mut messages = handle.link().get().execute();
    let mut names = BTreeMap::new();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        names.extend(link::name(&message).map(|name| (message.header.index, name.to_owned())));
    }
    Ok(names)
}

async fn filters(handle: &Handle, ifindex: u32, program: Program) -> Result<Vec<TcMessage>, HostError> {
    let request = handle.traffic_filter(ifindex.cast_signed()).get();
    let request = if program.is_on_egress() {
        request.egress()
    } else {
        request.ingress()
    };
    let mut messages = Box::pin(request.execute());
    let mut found = Vec::new();
    while let Some(message) = messages.next().await {
        match message {
            Ok(message) => found.push(message),
            // The device was removed meanwhile.
            Err(error) if is_missing(&error) => break,
            Err(error) => return Err(netlink(format!("list filters of device {ifindex}"))(error)),
        }
    }
    Ok(found)
}

/// Priority and program ID of a filter of the agent.
fn ours(message: &TcMessage, program: Program) -> Option<(u16, u32)> {
    if u32::from(message.header.handle) != HANDLE {
        return None;
    }
    let options = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let option = |read: fn(&TcFilterBpfOption) -> Option<u32>| {
        options.iter().find_map(|option| match option {
            TcOption::Bpf(option) => read(option),
            _ => None,
        })
    };
    let named = options.iter().any(
        |option| matches!(option, TcOption::Bpf(TcFilterBpfOption::ProgName(name)) if name == program.name()),
    );
    let id = option(|option| match option {
        TcFilterBpfOption::ProgId(id) => Some(*id),
        _ => None,
    })?;
    let priority = u16::try_from(message.header.info >> 16).ok()?;
    named.then_some((priority, id))
}

/// Removes the clsact qdisc of a device, unless it has filters.
pub async fn remove_unused_qdisc(handle: &Handle, ifindex: u32) -> Result<(), HostError> {
    for program in Program::ALL {
        if !filters(handle, ifindex, program).await?.is_empty() {
            return Ok(());
        }
    }
    let mut request = handle.qdisc().del(ifindex.cast_signed());
    let header = &mut request.message_mut().header;
    header.parent = TcHandle::CLSACT;
    header.handle = TcHandle {
        major: u16::MAX,
        minor: 0,
    };
    let operation = format!("remove the clsact qdisc of device {ifindex}");
    match request.execute().await.map_err(netlink(operation)) {
        Err(HostError::Netlink { source, .. }) if is_no_clsact(&source) => Ok(()),
        result => result,
    }
}

/// Whether the device does not exist, or has no clsact qdisc but perhaps a foreign one.
fn is_no_clsact(error: &io::Error) -> bool {
    let codes = [Errno::NODEV, Errno::NOENT, Errno::INVAL].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(handle: u32, name: &str) -> TcMessage {
        let mut message = TcMessage::default();
        message.header.handle = handle.into();
        message.header.info = 7 << 16 | 0x0300;
        message.attributes = vec![
            TcAttribute::Kind("bpf".to_owned()),
            TcAttribute::Options(vec![
                TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
                TcOption::Bpf(TcFilterBpfOption::ProgId(42)),
            ]),
        ];
        message
    }

    #[test]
    fn foreign_filters_are_ignored() {
        assert_eq!(
            ours(&filter(HANDLE, "to_remote"), Program::ToRemote),
            Some((7, 42))
        );
        assert_eq!(ours(&filter(1, "to_remote"), Program::ToRemote), None);
        assert_eq!(
            ours(&filter(HANDLE, "cil_from_netdev"), Program::FromUnderlay),
            None
        );
        assert_eq!(ours(&filter(HANDLE, "to_remote"), Program::FromUnderlay), None);
    }
}
