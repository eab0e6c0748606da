//! State channels that signal changes alone.

use tokio::sync::watch;

/// Sends a state if it differs from the last one.
pub(crate) fn send_changed<T: PartialEq>(sender: &watch::Sender<T>, state: T) {
    sender.send_if_modified(|last| {
        let is_changed = *last != state;
        *last = state;
        is_changed
    });
}
