//! kubectl for one cluster.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use serde_json::{Value, json};

use super::process::output_with_input;
use crate::cmd;

/// kubectl with the merged kubeconfig and one context.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    context: String,
}

impl Kubectl {
    /// kubectl with the context of a cluster.
    pub(crate) fn new(program: &Path, kubeconfig: &Path, context: &str) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            context: context.to_owned(),
        }
    }

    /// The command without its arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--context", &self.context]);
        // In the clusters' directory, which `cluster down` removes.
        command
            .arg("--cache-dir")
            .arg(self.kubeconfig.with_file_name("kubectl-cache"));
        for proxy in [
            "HTTPS_PROXY",
            "https_proxy",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(proxy);
        }
        command
    }

    /// Runs it and returns its stdout.
    pub(crate) fn output(&self, arguments: &[&str]) -> Result<String> {
        cmd::output(self.command().args(arguments))
    }

    /// Runs it with text on its standard input.
    pub(crate) fn output_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        output_with_input(self.command().args(arguments), input)
    }

    /// Applies objects.
    pub(crate) fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.output_with_input(&["apply", "--server-side", "-f", "-"], &list.to_string())
            .map(drop)
    }
}
