//! Error texts.

use std::error::Error;

/// An error with its causes, outermost first, each cause once.
///
/// An answer of the API server ends the chain: its message and status code are sufficient.
#[must_use]
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = vec![];
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(kube::Error::Api(status)) = error.downcast_ref() {
            let message = if status.message.is_empty() {
                &status.reason
            } else {
                &status.message
            };
            parts.push(format!("{message} ({})", status.code));
            break;
        }
        // Many errors repeat their cause at the end of their own text.
        let own = error.to_string();
        next = error.source();
        let own = match next.map(ToString::to_string) {
            Some(cause) => own
                .strip_suffix(&cause)
                .map_or(own.as_str(), |o| o.trim_end_matches(": "))
                .to_owned(),
            None => own,
        };
        // The name of kube's tower layer carries no information.
        if !own.is_empty() && own != "ServiceError" {
            parts.push(own);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use kube::{core::Status, runtime::watcher};

    use super::*;

    #[test]
    fn each_cause_is_printed_once() {
        let status = Status::failure("no such user", "Unauthorized").with_code(401);
        let list = watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()));
        assert_eq!(
            error_chain(&list),
            "failed to perform initial object list: no such user (401)"
        );
        let io = std::io::Error::other("connection refused");
        let list = watcher::Error::WatchFailed(kube::Error::ReadEvents(io));
        assert_eq!(
            error_chain(&list),
            "watch stream failed: Error reading events stream: connection refused"
        );
    }
}
