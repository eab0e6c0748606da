//! The interpreter of plans: executes actions in order and rolls back when one fails.

use std::fmt::Display;

use thiserror::Error;
use tracing::{debug, warn};

use crate::plan::{Action, Plan};

/// Executes an [`Action`].
pub trait Executor {
    /// Error of an action.
    type Error: Display;

    /// Executes one action. A failed action must not have changed anything.
    fn execute(&mut self, action: &Action) -> impl Future<Output = Result<(), Self::Error>>;
}

/// A failed plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("cannot {action}: {error} ({rolled_back} earlier changes were rolled back{})", format_not_undone(.not_undone))]
pub struct ApplyError {
    /// The action that failed.
    pub action: String,
    /// Its error.
    pub error: String,
    /// Number of earlier actions rolled back.
    pub rolled_back: usize,
    /// Earlier actions that could not be rolled back, each with its error.
    pub not_undone: Vec<String>,
}

fn format_not_undone(left: &[String]) -> String {
    if left.is_empty() {
        String::new()
    } else {
        format!("; not rolled back: {}", left.join(", "))
    }
}

/// Executes `plan`.
///
/// *Guarantees*: when an action fails, the actions before it are undone in reverse order; an action without an undo
/// (a replaced program) stays in place and is reported.
pub async fn apply<E: Executor>(plan: &Plan, executor: &mut E) -> Result<(), ApplyError> {
    for (index, action) in plan.actions.iter().enumerate() {
        debug!(%action, "apply");
        if let Err(error) = executor.execute(action).await {
            let (rolled_back, left) = roll_back(plan.actions.iter().take(index), executor).await;
            return Err(ApplyError {
                action: action.to_string(),
                error: error.to_string(),
                rolled_back,
                not_undone: left,
            });
        }
    }
    Ok(())
}

async fn roll_back<E: Executor>(
    done: impl DoubleEndedIterator<Item = &Action>,
    executor: &mut E,
) -> (usize, Vec<String>) {
    let mut rolled_back: usize = 0;
    let mut left = Vec::new();
    for action in done.rev() {
        let Some(undo) = action.undo() else {
            left.push(action.to_string());
            continue;
        };
        warn!(action = %undo, "roll back");
        match executor.execute(&undo).await {
            Ok(()) => rolled_back = rolled_back.saturating_add(1),
            Err(error) => left.push(format!("{action} ({error})")),
        }
    }
    (rolled_back, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{AttachMode, Attachment, Hook, Program};
    use crate::resolved::RouteKey;

    #[derive(Default)]
    struct Fake {
        done: Vec<String>,
        fail_on: &'static str,
    }

    impl Executor for Fake {
        type Error = String;

        async fn execute(&mut self, action: &Action) -> Result<(), String> {
            if !self.fail_on.is_empty() && action.to_string().contains(self.fail_on) {
                return Err("no".into());
            }
            self.done.push(action.to_string());
            Ok(())
        }
    }

    fn plan() -> Plan {
        let route = |net: &str, from, to| {
            let net = net.parse().unwrap();
            let preferred = false;
            let key = RouteKey { net, preferred };
            Action::SetRoute { key, from, to }
        };
        Plan {
            actions: vec![
                Action::CreateDevice { mtu: 1450 },
                route("10.1.0.0/16", None, Some(None)),
                route("10.2.0.0/16", Some(None), None),
                route("10.3.0.0/16", None, Some(None)),
            ],
            replan: false,
        }
    }

    #[tokio::test]
    async fn actions_are_executed_in_order() {
        let mut fake = Fake::default();
        apply(&plan(), &mut fake).await.unwrap();
        assert_eq!(fake.done.len(), 4);
        assert_eq!(fake.done[0], "create mc0 with MTU 1450");
    }

    #[tokio::test]
    async fn a_failure_rolls_back_in_reverse_order() {
        let mut fake = Fake {
            fail_on: "10.3.0.0",
            ..Fake::default()
        };
        let error = apply(&plan(), &mut fake).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot add route 10.3.0.0/16: no (3 earlier changes were rolled back)"
        );
        assert_eq!(
            fake.done[3..],
            ["add route 10.2.0.0/16", "delete route 10.1.0.0/16", "delete mc0"]
        );
    }

    #[tokio::test]
    async fn actions_without_undo_are_reported() {
        let mut fake = Fake {
            fail_on: "10.3.0.0",
            ..Fake::default()
        };
        let mut plan = plan();
        let from = Some(Attachment {
            ifindex: 2,
            current: false,
        });
        plan.actions.insert(
            0,
            Action::Attach {
                hook: Hook {
                    program: Program::FromUnderlay,
                    device: "eth0".into(),
                    mode: AttachMode::Tcx,
                },
                ifindex: 2,
                from,
            },
        );
        let error = apply(&plan, &mut fake).await.unwrap_err();
        assert_eq!(error.not_undone, ["attach from_underlay to eth0"]);
    }
}
