//! The HTTP server: one request per connection, nothing but GET, nothing that takes long.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::Metrics;
use super::text::CONTENT_TYPE;

/// Longest request head.
const MAX_HEAD: usize = 8_192;
/// Most header fields of a request.
const MAX_FIELDS: usize = 64;
/// How long one connection may last.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an address that is in use is waited for: an agent before this one may still be ending.
const RETRY: Duration = Duration::from_secs(1);
/// Connections at a time.
const CONNECTIONS: usize = 16;

/// Serves `metrics` at `address` in a task of its own, as soon as the address is free. The data path does
/// not wait for it.
pub fn start(address: SocketAddr, metrics: Arc<Metrics>) {
    tokio::spawn(async move {
        let listener = bind(address).await;
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let metrics = Arc::clone(&metrics);
                    tokio::spawn(async move {
                        let answered = timeout(PATIENCE, answer(stream, &metrics)).await;
                        if !matches!(answered, Ok(Ok(()))) {
                            debug!(%peer, ?answered, "request not answered");
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    debug!(%error, "accept");
                    sleep(RETRY).await;
                }
            }
        }
    });
}

async fn bind(address: SocketAddr) -> TcpListener {
    let mut said = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "metrics are served");
                return listener;
            }
            Err(error) => {
                if !said {
                    warn!(%address, %error, "metrics are not served yet: --metrics-address cannot be used; trying again every second");
                }
                said = true;
                sleep(RETRY).await;
            }
        }
    }
}

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

fn plain(status: &'static str, body: impl Into<String>) -> Answer {
    let mut body = body.into();
    body.push('\n');
    Answer {
        status,
        content_type: "text/plain; charset=utf-8",
        body,
    }
}

async fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    let mut head = Vec::with_capacity(1_024);
    let (answer, with_body) = loop {
        match request(&head) {
            Some(Ok((method, path))) => break (respond(&method, &path, metrics), method != "HEAD"),
            Some(Err(status)) => break (plain(status, "bad request"), true),
            None => {}
        }
        let mut part = [0; 1_024];
        let n = stream.read(&mut part).await?;
        if n == 0 {
            return Ok(());
        }
        head.extend_from_slice(part.get(..n).unwrap_or_default());
    };
    let Answer {
        status,
        content_type,
        body,
    } = answer;
    let length = body.len();
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if with_body {
        text.push_str(&body);
    }
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// Method and path of a request; `None` while its head is not complete, else a status that refuses it.
fn request(head: &[u8]) -> Option<Result<(String, String), &'static str>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {
            let method = request.method.unwrap_or_default().to_owned();
            let path = request.path.unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default().to_owned();
            Some(Ok((method, path)))
        }
        Ok(httparse::Status::Partial) if head.len() < MAX_HEAD => None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Some(Err("431 Request Header Fields Too Large"))
        }
        Err(_) => Some(Err("400 Bad Request")),
    }
}

fn respond(method: &str, path: &str, metrics: &Metrics) -> Answer {
    if method != "GET" && method != "HEAD" {
        return plain("405 Method Not Allowed", "only GET");
    }
    match path {
        "/metrics" => match metrics.render() {
            Ok(body) => Answer {
                status: "200 OK",
                content_type: CONTENT_TYPE,
                body,
            },
            Err(error) => plain("500 Internal Server Error", crate::chain(&error)),
        },
        "/healthz" => checked(metrics.state().alive(Instant::now())),
        "/readyz" => checked(metrics.state().ready()),
        _ => plain("404 Not Found", "there are /metrics, /healthz and /readyz"),
    }
}

fn checked(result: Result<(), String>) -> Answer {
    match result {
        Ok(()) => plain("200 OK", "ok"),
        Err(reason) => plain("503 Service Unavailable", reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_to_the_end_of_their_head() {
        assert_eq!(request(b"GET /metrics HT"), None);
        assert_eq!(request(b""), None);
        let whole = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(request(whole), Some(Ok(("GET".into(), "/metrics".into()))));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(request(b"\x16\x03\x01 TLS"), Some(Err("400 Bad Request")));
        let long = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'x'; MAX_HEAD]].concat();
        assert_eq!(request(&long), Some(Err("431 Request Header Fields Too Large")));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(
            request(many.as_bytes()),
            Some(Err("431 Request Header Fields Too Large"))
        );
    }
}
