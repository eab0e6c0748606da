//! The classifiers of a loaded object.

use std::path::Path;

use aya::Ebpf;
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};

use super::error::{DatapathError, remove_pin};
use super::pins;
use crate::plan::Program;

/// Loads and pins a program; returns its kernel ID.
pub(super) fn load_program(ebpf: &mut Ebpf, program: Program, dir: &Path) -> Result<u32, DatapathError> {
    let failed = |operation: &str| {
        let operation = operation.to_owned();
        move |source| DatapathError::Program {
            name: program.name(),
            operation,
            source,
        }
    };
    let classifier = classifier(ebpf, program)?;
    classifier.load().map_err(failed("load"))?;
    let path = dir.join("programs").join(program.name());
    // The pin serves `trace` and bpftool; a link holds its program itself.
    if path.exists() {
        pins::check_program(&path, program.name())?;
    }
    remove_pin(&path)?;
    classifier
        .pin(&path)
        .map_err(|source| DatapathError::Pin { path, source })?;
    Ok(classifier.info().map_err(failed("read"))?.id())
}

/// The classifier of that name.
pub(super) fn classifier(ebpf: &mut Ebpf, program: Program) -> Result<&mut SchedClassifier, DatapathError> {
    ebpf.program_mut(program.name())
        .and_then(|found| found.try_into().ok())
        .ok_or(DatapathError::NoProgram(program.name()))
}

/// Direction of a program's hook.
pub(super) fn attach_type(program: Program) -> TcAttachType {
    match program {
        Program::ToRemote => TcAttachType::Egress,
        Program::FromUnderlay | Program::FromTunnel => TcAttachType::Ingress,
    }
}

/// Adds the program and the operation to an error.
pub(super) fn program_error(
    program: Program,
    operation: impl Into<String>,
) -> impl FnOnce(ProgramError) -> DatapathError {
    let (name, operation) = (program.name(), operation.into());
    move |source| DatapathError::Program {
        name,
        operation,
        source,
    }
}
