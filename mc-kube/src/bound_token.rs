//! Short-lived tokens of a `ServiceAccount`, requested with a bootstrap token (`TokenRequest`, Kubernetes 1.22).
//!
//! `kube` 5.0.0 replaces tokens that it reads from a file or from the output of a command, and requests none.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, header::AUTHORIZATION};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, api::PostParams, client::Body};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tower::BoxError;
use tracing::{info, warn};

use crate::{AbortOnDrop, Backoff, error_chain, jitter_seed};

/// The requested lifetime: the shortest that API servers grant (`ValidateTokenRequest`).
const LIFETIME: Duration = Duration::from_mins(10);
/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest delay after a failure.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest delay after a failure.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The shortest time between a token and one that replaces it: requests in flight can be rejected after a new token
/// has arrived, and a server may reject each one.
const MIN_AGE: Duration = Duration::from_secs(2);

/// The account that short-lived tokens belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAccount {
    /// The Namespace of the account and of the Secret.
    pub namespace: String,
    /// The name of the account.
    pub name: String,
    /// The Secret that the tokens are bound to: its deletion revokes them.
    pub secret: String,
}

/// A granted token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    /// `Bearer <token>`.
    header: HeaderValue,
    /// The time from its issue to its expiry.
    lifetime: Duration,
}

/// The last token, the cause for which there is none, or `None` before the first answer.
type TokenState = Option<Result<HeaderValue, String>>;

/// The current token of an account, shared by the requests of a client; the last clone ends the renewal.
#[derive(Clone)]
pub(crate) struct BoundToken {
    state: watch::Receiver<TokenState>,
    rejected: Arc<Notify>,
    _task: Arc<AbortOnDrop>,
}

// === impl BoundToken ===

impl BoundToken {
    /// Requests tokens of `account` with the credentials of `client` from now on.
    pub(crate) fn new(client: Client, account: &TokenAccount) -> Self {
        let seed = jitter_seed([account.namespace.as_str(), account.name.as_str()]);
        let (api, account) = (Api::namespaced(client, &account.namespace), account.clone());
        Self::renewed_by(seed, move || {
            let (api, account) = (api.clone(), account.clone());
            async move { request(&api, &account).await }
        })
    }

    fn renewed_by<F>(seed: u64, request: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<Token, String>> + Send + 'static,
    {
        let (sender, state) = watch::channel(None);
        let rejected = Arc::new(Notify::new());
        let task = AbortOnDrop::spawn(renew(request, sender, rejected.clone(), seed));
        Self {
            state,
            rejected,
            _task: Arc::new(task),
        }
    }

    /// Adds the token to a request, once it is known.
    ///
    /// # Errors
    ///
    /// No token has been granted.
    pub(crate) async fn authorize(&mut self, mut request: Request<Body>) -> Result<Request<Body>, BoxError> {
        let header = self.header().await?;
        request.headers_mut().insert(AUTHORIZATION, header);
        Ok(request)
    }

    async fn header(&mut self) -> Result<HeaderValue, String> {
        let known = self.state.wait_for(Option::is_some).await;
        let state = known.map_err(|_| "the renewal of tokens has ended".to_owned())?;
        state.clone().unwrap_or_else(|| Err("no token yet".to_owned()))
    }

    /// Has the token replaced, because the server does not accept it.
    pub(crate) fn report_rejection(&self) {
        self.rejected.notify_one();
    }
}

/// Replaces tokens before they expire. The last one remains while no other is granted: the server's answer to it is the
/// error of the client's requests.
async fn renew<F: Future<Output = Result<Token, String>>>(
    request: impl Fn() -> F,
    state: watch::Sender<TokenState>,
    rejected: Arc<Notify>,
    seed: u64,
) {
    let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF, seed);
    let mut logged = None;
    loop {
        match request().await {
            Ok(token) => {
                if logged.take().is_some() {
                    info!("short-lived token of the leader granted again");
                }
                backoff.reset();
                let _old = state.send_replace(Some(Ok(token.header)));
                let replaceable_at = Instant::now() + MIN_AGE;
                tokio::select! {
                    () = sleep(renewal_delay(token.lifetime, seed)) => {}
                    () = rejected.notified() => sleep_until(replaceable_at).await,
                }
            }
            Err(error) => {
                if logged.as_ref() != Some(&error) {
                    warn!("{error}");
                    logged = Some(error.clone());
                }
                state.send_if_modified(|state| {
                    let has_none = !matches!(state, Some(Ok(_)));
                    if has_none {
                        *state = Some(Err(error));
                    }
                    has_none
                });
                sleep(backoff.next_delay()).await;
            }
        }
    }
}

/// The age at which a token is replaced: 70 to 80 % of its lifetime, so that the clients of one server differ.
fn renewal_delay(lifetime: Duration, seed: u64) -> Duration {
    let tenth = lifetime / 10;
    let spread = u32::try_from(seed % 100).unwrap_or_default();
    (tenth * 7).saturating_add(tenth / 100 * spread).max(MIN_AGE)
}

async fn request(api: &Api<ServiceAccount>, account: &TokenAccount) -> Result<Token, String> {
    let failed = |why: String| {
        let TokenAccount { name, secret, .. } = account;
        format!("short-lived token of ServiceAccount {name:?}, bound to Secret {secret:?}: {why}")
    };
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: vec![],
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: Some(account.secret.clone()),
                uid: None,
            }),
            expiration_seconds: i64::try_from(LIFETIME.as_secs()).ok(),
        },
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let answer = api.create_token_request(&account.name, &params, &request);
    let granted = timeout(REQUEST_TIMEOUT, answer)
        .await
        .map_err(|_| failed(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())))?
        .map_err(|error| failed(error_chain(&error)))?;
    token(&granted).ok_or_else(|| failed("the answer has no token".to_owned()))
}

/// The token in an answer.
fn token(granted: &TokenRequest) -> Option<Token> {
    let token = &granted.status.as_ref()?.token;
    let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
        .ok()
        .filter(|_| !token.is_empty())?;
    header.set_sensitive(true);
    // A server may grant another lifetime than the requested one.
    let lifetime = granted
        .spec
        .expiration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    Some(Token {
        header,
        lifetime: lifetime.map_or(LIFETIME, Duration::from_secs),
    })
}

#[cfg(test)]
mod tests;
