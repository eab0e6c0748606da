//! The HTTP/1.1 server: GET and HEAD, one request per connection.
//!
//! *Guarantees*: at most `MAX_CONNECTIONS` connections of at most `CONNECTION_TIMEOUT` each, with at most
//! `MAX_HEAD` bytes of request head and `MAX_FIELDS` header fields; a request body is never read. A slow client
//! occupies one of these connections and no other resource of the process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::MetricsSource;
use crate::scrape::{OPENMETRICS_TYPE, TEXT_TYPE};

/// Largest request head in bytes.
const MAX_HEAD: usize = 8_192;
/// Largest number of header fields in a request.
const MAX_FIELDS: usize = 64;
/// Lifetime of a connection, request and response together.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between two attempts to bind: the previous process may still hold the address.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Number of concurrent connections.
const MAX_CONNECTIONS: usize = 16;

/// Endpoints at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Alternatives; the first usable one is bound.
    pub addresses: Vec<SocketAddr>,
    /// Name of the setting with the address, for the log.
    pub setting: &'static str,
    /// Serves `/metrics`.
    pub metrics: bool,
    /// Serves `/healthz` and `/readyz`.
    pub health: bool,
}

/// Serves `source` in a background task, as soon as the address is free.
pub fn start<S: MetricsSource>(listener: Listener, source: Arc<S>) {
    tokio::spawn(async move {
        let socket = bind(&listener).await;
        accept(&socket, Arc::new(listener), source).await;
    });
}

async fn bind(listener: &Listener) -> TcpListener {
    let mut logged = false;
    loop {
        match TcpListener::bind(&*listener.addresses).await {
            Ok(socket) => {
                if let Ok(address) = socket.local_addr() {
                    info!(%address, metrics = listener.metrics, health = listener.health, "serving metrics");
                }
                return socket;
            }
            Err(error) => {
                if !logged {
                    let (setting, addresses) = (listener.setting, &listener.addresses);
                    warn!(setting, ?addresses, %error, "cannot bind the metrics address; retrying every second");
                }
                logged = true;
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

async fn accept<S: MetricsSource>(socket: &TcpListener, listener: Arc<Listener>, source: Arc<S>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        match socket.accept().await {
            Ok((stream, peer)) => {
                let (listener, source) = (Arc::clone(&listener), Arc::clone(&source));
                tokio::spawn(async move {
                    match timeout(CONNECTION_TIMEOUT, serve(stream, &listener, &*source)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => debug!(%peer, %error, "invalid request"),
                        Err(_) => debug!(%peer, "connection timed out"),
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                debug!(%error, "accept failed");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, listener: &Listener, source: &impl MetricsSource) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(
            request.method(),
            request.uri().path(),
            request.headers(),
            listener,
            source,
        );
        std::future::ready(Ok::<_, Infallible>(
            response.map(|body| Full::new(Bytes::from(body))),
        ))
    });
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS)
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn respond(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    listener: &Listener,
    source: &impl MetricsSource,
) -> Response<String> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/metrics" if listener.metrics => match source.metrics() {
            Ok(text) => response(StatusCode::OK, metrics_type(headers), text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error),
        },
        "/healthz" if listener.health => check(source.healthy()),
        "/readyz" if listener.health => check(source.ready()),
        _ => plain(StatusCode::NOT_FOUND, endpoints(listener)),
    }
}

/// The content type that the scraper accepts.
fn metrics_type(headers: &HeaderMap) -> &'static str {
    let accepted = headers.get_all(ACCEPT).iter().any(|value| {
        value
            .to_str()
            .is_ok_and(|text| text.contains("application/openmetrics-text"))
    });
    if accepted { OPENMETRICS_TYPE } else { TEXT_TYPE }
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn plain(status: StatusCode, body: impl Into<String>) -> Response<String> {
    let mut body = body.into();
    body.push('\n');
    response(status, "text/plain; charset=utf-8", body)
}

fn endpoints(listener: &Listener) -> &'static str {
    match (listener.metrics, listener.health) {
        (true, true) => "endpoints: /metrics, /healthz, /readyz",
        (true, false) => "endpoints: /metrics",
        (false, true) => "endpoints: /healthz, /readyz",
        (false, false) => "endpoints: none",
    }
}

fn check(result: Result<(), String>) -> Response<String> {
    match result {
        Ok(()) => plain(StatusCode::OK, "ok"),
        Err(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct NotReady;

    impl MetricsSource for NotReady {
        fn metrics(&self) -> Result<String, String> {
            Ok("up 1\n".to_owned())
        }

        fn healthy(&self) -> Result<(), String> {
            Ok(())
        }

        fn ready(&self) -> Result<(), String> {
            Err("not yet".to_owned())
        }
    }

    fn listener(metrics: bool, health: bool) -> Listener {
        Listener {
            addresses: vec![],
            setting: "test",
            metrics,
            health,
        }
    }

    /// A server on a free port of the loopback device.
    async fn server() -> SocketAddr {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            accept(&socket, Arc::new(listener(true, true)), Arc::new(NotReady)).await;
        });
        address
    }

    /// Status line, header fields and body of the response to `request`.
    async fn exchange(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut response = Vec::new();
        // The server may reset a connection whose request it has not read to the end.
        let _end = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    }

    #[test]
    fn each_listener_serves_its_own_endpoints() {
        let get = |path: &str, metrics, health| {
            respond(
                &Method::GET,
                path,
                &HeaderMap::new(),
                &listener(metrics, health),
                &NotReady,
            )
        };
        for (path, metrics, health, status) in [
            ("/metrics", true, false, 200),
            ("/metrics", false, true, 404),
            ("/healthz", false, true, 200),
            ("/healthz", true, false, 404),
            ("/readyz", true, true, 503),
        ] {
            assert_eq!(get(path, metrics, health).status(), status, "{path}");
        }
        assert_eq!(get("/readyz", true, true).body(), "not yet\n");
    }

    #[test]
    fn a_scraper_gets_a_content_type_that_it_accepts() {
        let mut headers = HeaderMap::new();
        assert_eq!(metrics_type(&headers), TEXT_TYPE);
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        assert_eq!(metrics_type(&headers), OPENMETRICS_TYPE);
    }

    #[tokio::test]
    async fn requests_are_answered_once_and_the_connection_is_closed() {
        let address = server().await;
        let text = exchange(address, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nup 1\n"),
            "{text}"
        );
        assert!(text.to_ascii_lowercase().contains("connection: close"), "{text}");
        let text = exchange(address, b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(
            text.contains("content-length: 5") && text.ends_with("\r\n\r\n"),
            "{text}"
        );
        let text = exchange(
            address,
            b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        )
        .await;
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    }

    #[tokio::test]
    async fn malformed_and_oversized_requests_are_rejected() {
        let address = server().await;
        let text = exchange(address, b"\x16\x03\x01 TLS\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
        let long = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'x'; 2 * MAX_HEAD]].concat();
        let text = exchange(address, &long).await;
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 431 "), "{text}");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        let text = exchange(address, many.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    }

    #[tokio::test]
    async fn idle_connections_end_and_others_are_served() {
        let address = server().await;
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HT").await.unwrap();
            idle.push(stream);
        }
        let text = timeout(
            CONNECTION_TIMEOUT * 3,
            exchange(address, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"),
        );
        assert!(text.await.unwrap().ends_with("ok\n"));
    }
}
