//! The `ServiceAccount` of this member in the leader cluster, from its token.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

/// The claims of a token that identify its account (RFC 7519, section 4.1.2).
#[derive(Deserialize)]
struct Claims {
    /// `system:serviceaccount:<Namespace>:<name>`.
    sub: String,
}

/// The name of the account in `namespace` to which a token belongs; `None` for tokens of other kinds of users and other
/// Namespaces. The signature is not verified: the leader's API server compares the name with the token.
#[must_use]
pub(super) fn account_name(token: &str, namespace: &str) -> Option<String> {
    let payload = token.split('.').nth(1)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: Claims = serde_json::from_slice(&payload).ok()?;
    let account = claims.sub.strip_prefix("system:serviceaccount:")?;
    let name = account.strip_prefix(namespace)?.strip_prefix(':')?;
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(payload: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
    }

    #[test]
    fn the_account_is_that_of_the_token() {
        let of = |sub: &str| account_name(&token(&format!(r#"{{"iss":"x","sub":"{sub}"}}"#)), "mc");
        assert_eq!(
            of("system:serviceaccount:mc:member-east").as_deref(),
            Some("member-east")
        );
        for other in [
            "system:serviceaccount:mcs:member-east",
            "system:serviceaccount:other:member-east",
            "system:serviceaccount:mc:",
            "system:node:mc",
            "",
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }

    #[test]
    fn other_tokens_name_no_account() {
        for token in [
            "",
            "opaque",
            "a.b",
            "a.b.c",
            &token("{}"),
            &token("no JSON"),
            &token(r#"{"sub":1}"#),
        ] {
            assert_eq!(account_name(token, "mc"), None, "{token:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_accepted_as_a_token(text in ".*") {
            let _name = account_name(&text, "mc");
        }
    }
}
