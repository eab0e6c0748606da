//! A thread in a namespace that runs asynchronous tasks: their sockets belong to that namespace.

use std::{
    future::Future,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use mc_tests::netns::Netns;
use tokio::{runtime::Handle, sync::oneshot};

/// A running thread; dropping it ends all its tasks.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

// === impl Runtime ===

impl Runtime {
    /// Starts the thread inside a namespace.
    pub(crate) fn start(netns: &Netns) -> Result<Self> {
        let name = netns.name().to_owned();
        let (started, handle) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        // A thread inherits the namespace of the thread that starts it.
        let thread = netns.enter(move || {
            let run = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => {
                        started.send(Ok(runtime.handle().clone())).ok();
                        // The sender is dropped or sends: the end in both cases.
                        runtime.block_on(async { stopped.await.ok() });
                    }
                    Err(error) => {
                        started.send(Err(error)).ok();
                    }
                }
            };
            Ok(thread::Builder::new().name(name).spawn(run)?)
        })?;
        let handle = handle.recv().context("the thread ended")??;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Starts a task.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        self.handle.spawn(task)
    }

    /// Runs a task on the thread to its end.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = mpsc::channel();
        self.handle.spawn(async move { done.send(task.await).ok() });
        result.recv().context("the task ended without a result")?
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
