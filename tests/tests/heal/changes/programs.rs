//! Changes of pins, links, filters and qdiscs.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    programs::{
        SchedClassifier,
        links::{FdLink, PinnedLink},
        tc::SchedClassifierLink,
    },
};
use mc_gateway_common::abi::MAPS_DIR;
use mc_tests::{fixture::ebpf_object, topology::Place};

use super::Change;
use crate::bed::{Attach, Bed};

const TCX: Place = Place::GatewayEast;
const CLSACT: Place = Place::GatewayWest;

pub(super) const ALL: &[Change] = &[
    Change::new("filter deleted", CLSACT, |bed, place| {
        bed.run(place, "tc filter del dev eth1 ingress")
    })
    .with(Attach::Clsact),
    Change::new("filter replaced", CLSACT, replace_filter).with(Attach::Clsact),
    Change::new("qdisc of an underlay device deleted", CLSACT, |bed, place| {
        bed.run(place, "tc qdisc del dev eth1 clsact")
    })
    .with(Attach::Clsact),
    Change::new("qdisc of mc0 deleted", CLSACT, |bed, place| {
        bed.run(place, "tc qdisc del dev mc0 clsact")
    })
    .with(Attach::Clsact),
    Change::new("program of a link replaced", TCX, replace_program).with(Attach::Tcx),
    Change::new("link of an underlay device detached", TCX, |bed, place| {
        detach(bed, place, "from_underlay-eth1")
    })
    .with(Attach::Tcx),
    Change::new("link of mc0 detached", Place::NodeEast, |bed, place| {
        detach(bed, place, "to_remote-mc0")
    })
    .with(Attach::Tcx),
    Change::new("pins of links removed", TCX, |bed, place| {
        unpin(bed, place, "links")
    })
    .with(Attach::Tcx),
    Change::new("pins of programs removed", TCX, |bed, place| {
        unpin(bed, place, "programs")
    }),
    Change::new("pins of maps removed", TCX, |bed, place| {
        unpin(bed, place, MAPS_DIR)
    }),
    Change::new("pin directory removed", TCX, |bed, place| unpin(bed, place, "")),
];

fn unpin(bed: &Bed, place: Place, directory: &str) -> Result<()> {
    Ok(fs::remove_dir_all(bed.topology.bpf_dir(place).join(directory))?)
}

fn detach(bed: &Bed, place: Place, link: &str) -> Result<()> {
    let pin = bed.topology.bpf_dir(place).join("links").join(link);
    bed.run(place, &format!("bpftool link detach pinned {}", pin.display()))
}

/// A program of the same name without configuration, which passes every packet.
fn foreign_program() -> Result<Ebpf> {
    let mut ebpf = EbpfLoader::new().load(&fs::read(ebpf_object())?)?;
    classifier(&mut ebpf)?.load()?;
    Ok(ebpf)
}

fn classifier(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier> {
    let program = ebpf.program_mut("from_underlay").context("the program")?;
    Ok(program.try_into()?)
}

fn replace_program(bed: &Bed, place: Place) -> Result<()> {
    let mut ebpf = foreign_program()?;
    let pin = bed.topology.bpf_dir(place).join("links/from_underlay-eth1");
    let link = FdLink::from(PinnedLink::from_pin(pin)?);
    classifier(&mut ebpf)?.attach_to_link(SchedClassifierLink::try_from(link)?)?;
    Ok(())
}

fn replace_filter(bed: &Bed, place: Place) -> Result<()> {
    let mut ebpf = foreign_program()?;
    let name = format!("{}-foreign", bed.topology.options().prefix);
    let pin = PathBuf::from("/sys/fs/bpf").join(name);
    classifier(&mut ebpf)?.pin(&pin)?;
    let replaced = bed.run(
        place,
        &format!(
            "tc filter replace dev eth1 ingress pref 1 handle 0x6d63 bpf da pinned {}",
            pin.display()
        ),
    );
    fs::remove_file(pin)?;
    replaced
}
