//! The HTTP server: one request per connection, nothing but GET, nothing that takes long.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::Source;
use crate::text::CONTENT_TYPE;

/// Longest request head.
const MAX_HEAD: usize = 8_192;
/// Most header fields of a request.
const MAX_FIELDS: usize = 64;
/// How long one connection may last.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an address that is in use is waited for: the process before this one may still be ending.
const RETRY: Duration = Duration::from_secs(1);
/// Connections at a time.
const CONNECTIONS: usize = 16;

/// What is served at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The first of these that can be used.
    pub addresses: Vec<SocketAddr>,
    /// Where the address was said, for the log.
    pub said: &'static str,
    /// Whether `/metrics` is here.
    pub metrics: bool,
    /// Whether `/healthz` and `/readyz` are here.
    pub health: bool,
}

/// Serves `source` in a task of its own, as soon as the address is free. Nobody waits for it.
pub fn start<S: Source>(listener: Listener, source: Arc<S>) {
    tokio::spawn(async move {
        let socket = bind(&listener).await;
        let listener = Arc::new(listener);
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            match socket.accept().await {
                Ok((stream, peer)) => {
                    let (listener, source) = (Arc::clone(&listener), Arc::clone(&source));
                    tokio::spawn(async move {
                        let answered = timeout(PATIENCE, answer(stream, &listener, &*source)).await;
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

async fn bind(listener: &Listener) -> TcpListener {
    let mut told = false;
    loop {
        match TcpListener::bind(&*listener.addresses).await {
            Ok(socket) => {
                if let Ok(address) = socket.local_addr() {
                    info!(%address, metrics = listener.metrics, health = listener.health, "metrics are served");
                }
                return socket;
            }
            Err(error) => {
                if !told {
                    let (said, addresses) = (listener.said, &listener.addresses);
                    warn!(
                        ?addresses,
                        %error,
                        "metrics are not served yet: the address of {said} cannot be used; trying again every second"
                    );
                }
                told = true;
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

async fn answer(mut stream: TcpStream, listener: &Listener, source: &impl Source) -> io::Result<()> {
    let mut head = Vec::with_capacity(1_024);
    let (answer, with_body) = loop {
        match request(&head) {
            Some(Ok((method, path))) => {
                break (respond(&method, &path, listener, source), method != "HEAD");
            }
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

fn respond(method: &str, path: &str, listener: &Listener, source: &impl Source) -> Answer {
    if method != "GET" && method != "HEAD" {
        return plain("405 Method Not Allowed", "only GET");
    }
    match path {
        "/metrics" if listener.metrics => match source.metrics() {
            Ok(body) => Answer {
                status: "200 OK",
                content_type: CONTENT_TYPE,
                body,
            },
            Err(error) => plain("500 Internal Server Error", error),
        },
        "/healthz" if listener.health => checked(source.alive()),
        "/readyz" if listener.health => checked(source.ready()),
        _ => plain("404 Not Found", there_are(listener)),
    }
}

fn there_are(listener: &Listener) -> &'static str {
    match (listener.metrics, listener.health) {
        (true, true) => "there are /metrics, /healthz and /readyz",
        (true, false) => "there is /metrics",
        (false, true) => "there are /healthz and /readyz",
        (false, false) => "there is nothing",
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

    struct Half;

    impl Source for Half {
        fn metrics(&self) -> Result<String, String> {
            Ok("up 1\n".to_owned())
        }

        fn alive(&self) -> Result<(), String> {
            Ok(())
        }

        fn ready(&self) -> Result<(), String> {
            Err("not yet".to_owned())
        }
    }

    fn listener(metrics: bool, health: bool) -> Listener {
        Listener {
            addresses: vec![],
            said: "test",
            metrics,
            health,
        }
    }

    #[test]
    fn each_place_serves_its_own_pages() {
        let status = |path: &str, metrics, health| {
            respond("GET", path, &listener(metrics, health), &Half)
                .status
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(status("/metrics", true, false), "200");
        assert_eq!(status("/metrics", false, true), "404");
        assert_eq!(status("/healthz", false, true), "200");
        assert_eq!(status("/healthz", true, false), "404");
        assert_eq!(status("/readyz", true, true), "503");
        assert_eq!(
            respond("GET", "/readyz", &listener(true, true), &Half).body,
            "not yet\n"
        );
        assert_eq!(
            respond("POST", "/metrics", &listener(true, true), &Half).status,
            "405 Method Not Allowed"
        );
    }

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
