//! The connection of a client to its API server, which notices that its other end is gone.
//!
//! Instead of the connector of `kube` 5.0.0, which opens HTTP/1.1 connections without keep-alive: packets of a watch
//! can be dropped for minutes before its read timeout (295 s) ends it. Pings of HTTP/2 (RFC 9113, section 6.7) pass TCP
//! proxies and load balancers as well; client-go sends them each 30 s. An API server without HTTP/2 is covered by the
//! keep-alive of TCP alone, which a proxy answers itself; a proxy of HTTP answers the pings, too.

use std::time::Duration;

use futures::FutureExt as _;
use http::{Response, StatusCode};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config, Error,
    client::{Body, ClientBuilder, ConfigExt as _, retry::RetryPolicy},
};
use tower::{BoxError, ServiceBuilder, filter::AsyncFilterLayer, retry::RetryLayer, util::MapResponseLayer};

use crate::bound_token::BoundToken;

/// Time limit for opening a connection: TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The probes of all clients: a dead connection is closed 10 s after its last packet, without HTTP/2 at the next probe.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    interval: Duration::from_secs(5),
    timeout: Duration::from_secs(5),
};

/// The sharing of connections by requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiplexing {
    /// All requests use one connection, if the API server has HTTP/2.
    Shared,
    /// No two requests share a connection at a time (HTTP/1.1), at most one idle connection is kept, and a request that
    /// is given up closes its own: a dead connection delays one request only.
    PerRequest,
}

/// Probes of an idle connection.
#[derive(Clone, Copy, Debug)]
struct KeepAlive {
    /// Time without a packet before the first probe.
    interval: Duration,
    /// Time without an answer before the connection is closed.
    timeout: Duration,
}

/// Builds a client; an unreachable API server is no error here.
///
/// # Errors
///
/// The configuration has unusable credentials or certificates, or the URL of a proxy, which is not supported.
pub(crate) fn connect(config: Config, multiplexing: Multiplexing) -> Result<Client, Error> {
    connect_with(config, multiplexing, KEEP_ALIVE, None)
}

/// [`connect`] with the credentials of `token` instead of those of the configuration.
pub(crate) fn connect_with_bound_token(
    config: Config,
    multiplexing: Multiplexing,
    token: BoundToken,
) -> Result<Client, Error> {
    connect_with(config, multiplexing, KEEP_ALIVE, Some(token))
}

fn connect_with(
    config: Config,
    multiplexing: Multiplexing,
    keep_alive: KeepAlive,
    token: Option<BoundToken>,
) -> Result<Client, Error> {
    if config.proxy_url.is_some() {
        // The error names the URL.
        return Client::try_from(config);
    }
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let name = name.try_into().map_err(|e| Error::Service(Box::new(e)))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let tcp = tcp(keep_alive);
    let tls = match multiplexing {
        Multiplexing::Shared => tls.enable_all_versions().wrap_connector(tcp),
        Multiplexing::PerRequest => tls.enable_http1().wrap_connector(tcp),
    };
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let max_idle = match multiplexing {
        Multiplexing::Shared => usize::MAX,
        // A request that follows the end of another one can open a second connection, because hyper has not marked the
        // first one as idle yet. Of two idle connections, each delays a request once both are dead.
        Multiplexing::PerRequest => 1,
    };
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_max_idle_per_host(max_idle)
        .http2_keep_alive_interval(keep_alive.interval)
        .http2_keep_alive_timeout(keep_alive.timeout)
        .http2_keep_alive_while_idle(true)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(
            config
                .default_retry
                .then(|| RetryLayer::new(RetryPolicy::server_retry())),
        )
        .option_layer(config.auth_layer()?)
        .option_layer(token.clone().map(|token| {
            AsyncFilterLayer::new(move |request| {
                let mut token = token.clone();
                async move { token.authorize(request).await }.boxed()
            })
        }))
        .option_layer(token.map(|token| {
            MapResponseLayer::new(move |response: Response<_>| {
                if response.status() == StatusCode::UNAUTHORIZED {
                    token.report_rejection();
                }
                response
            })
        }))
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

fn tcp(keep_alive: KeepAlive) -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The TLS connector above accepts both schemes.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(keep_alive.interval));
    connector.set_keepalive_interval(Some(keep_alive.timeout / 2));
    // Bounds unacknowledged data and, since Linux 2.6.37, probes (tcp(7)).
    connector.set_tcp_user_timeout(Some(keep_alive.interval.saturating_add(keep_alive.timeout)));
    connector
}

#[cfg(test)]
mod tests;
