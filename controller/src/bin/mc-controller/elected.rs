//! Runs a controller while this replica holds the Lease.

use std::pin::pin;

use anyhow::bail;
use controller::{fence::Fence, runtime::election::Election};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

/// Runs the controller from the acquisition of the Lease to its loss or a termination signal. A stop writes to no
/// cluster but releases the Lease. The process exits with the loss of the Lease, so that no task of the controller
/// survives it.
pub(crate) async fn run<F: Future<Output = ()>>(
    election: Option<Election>,
    controller: impl FnOnce(Fence) -> F,
) -> anyhow::Result<()> {
    let mut terminated = pin!(termination()?);
    let Some(mut election) = election else {
        tokio::select! {
            () = controller(Fence::open()) => bail!("controller loop exited"),
            () = &mut terminated => return Ok(()),
        }
    };
    tokio::select! {
        () = election.acquire() => {}
        () = &mut terminated => return Ok(()),
    }
    let fence = election.fence();
    tokio::select! {
        () = controller(fence) => bail!("controller loop exited"),
        reason = election.renew_until_lost() => bail!("Lease lost: {reason}"),
        () = &mut terminated => {}
    }
    election.release().await;
    Ok(())
}

/// Completes with SIGTERM or SIGINT.
fn termination() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => info!("SIGTERM"),
            _ = int.recv() => info!("SIGINT"),
        }
    })
}
