//! The programs of a loaded object, and their pins.

use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::pin::PinError;
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use mc_gateway_common::abi::transit::PROGRAM_TRANSIT;

use super::error::{DatapathError, remove_pin};
use super::pins;
use crate::plan::Program;

/// Loads and pins a program; returns its kernel ID.
pub(super) fn load_program(ebpf: &mut Ebpf, program: Program, dir: &Path) -> Result<u32, DatapathError> {
    let name = program.name();
    let classifier = classifier(ebpf, program)?;
    classifier.load().map_err(program_error(name, "load"))?;
    replace_pin(dir, name, |path| classifier.pin(path))?;
    Ok(classifier.info().map_err(program_error(name, "read"))?.id())
}

/// Pins of all programs.
pub(crate) fn program_pins(dir: &Path) -> impl Iterator<Item = PathBuf> + use<'_> {
    let classifiers = Program::ALL.map(Program::name).into_iter();
    classifiers
        .chain([PROGRAM_TRANSIT])
        .map(|name| pin_path(dir, name))
}

/// Path of a program's pin.
pub(super) fn pin_path(dir: &Path, name: &str) -> PathBuf {
    dir.join("programs").join(name)
}

/// Pins a program instead of that of an earlier agent. The pin serves `trace` and bpftool; a link holds its program
/// itself.
pub(super) fn replace_pin(
    dir: &Path,
    name: &'static str,
    pin: impl FnOnce(&Path) -> Result<(), PinError>,
) -> Result<(), DatapathError> {
    let path = pin_path(dir, name);
    if path.exists() {
        pins::check_program(&path, name)?;
    }
    remove_pin(&path)?;
    pin(&path).map_err(|source| DatapathError::Pin { path, source })
}

/// The classifier of that name.
pub(super) fn classifier(ebpf: &mut Ebpf, program: Program) -> Result<&mut SchedClassifier, DatapathError> {
    ebpf.program_mut(program.name())
        .and_then(|found| found.try_into().ok())
        .ok_or(DatapathError::NoProgram(program.name()))
}

/// Direction of a program's hook.
pub(super) fn attach_type(program: Program) -> TcAttachType {
    if program.is_on_egress() {
        TcAttachType::Egress
    } else {
        TcAttachType::Ingress
    }
}

/// Pins a program again if its pin is missing.
pub(super) fn restore_pin(
    dir: &Path,
    name: &str,
    pin: impl FnOnce(&Path) -> Result<(), PinError>,
) -> Result<(), DatapathError> {
    let path = pin_path(dir, name);
    if path.exists() {
        return Ok(());
    }
    pin(&path).map_err(|source| DatapathError::Pin { path, source })
}

/// Adds the program and the operation to an error.
pub(super) fn program_error(
    name: &'static str,
    operation: impl Into<String>,
) -> impl FnOnce(ProgramError) -> DatapathError {
    let operation = operation.into();
    move |source| DatapathError::Program {
        name,
        operation,
        source,
    }
}
