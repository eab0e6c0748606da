//! A connection through a proxy that stops to forward, to a server with TLS.

use std::{
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls};

use super::*;

const SHORT: KeepAlive = KeepAlive {
    interval: Duration::from_millis(200),
    timeout: Duration::from_millis(200),
};
/// Several times the interval and the timeout of [`SHORT`].
const DEADLINE: Duration = Duration::from_secs(5);

/// A server that answers `/version` and no other request; returns its certificate.
fn serve(listener: TcpListener) -> String {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let mut tls =
        rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let answer = async |request: Request<Incoming>| {
        if request.uri().path() != "/version" {
            return pending().await;
        }
        let version = json!({
            "major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        });
        Ok::<_, Infallible>(Response::new(version.to_string()))
    };
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.unwrap();
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let (stream, service) = (TokioIo::new(stream), service_fn(answer));
                let _ended = if is_http2 {
                    http2::Builder::new(TokioExecutor::new())
                        .serve_connection(stream, service)
                        .await
                } else {
                    http1::Builder::new().serve_connection(stream, service).await
                };
            });
        }
    });
    cert.pem()
}

/// Forwards connections to `server`; those accepted before a notification of `silence` forward nothing after it and
/// stay open.
async fn proxy(server: SocketAddr, silence: watch::Receiver<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let mut silence = silence.clone();
            silence.mark_unchanged();
            tokio::spawn(async move {
                let server = TcpStream::connect(server).await.unwrap();
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let forward = async {
                    tokio::join!(
                        copy(&mut from_client, &mut to_server),
                        copy(&mut from_server, &mut to_client)
                    )
                };
                tokio::select! {
                    _ = forward => {}
                    _ = silence.changed() => pending().await,
                }
            });
        }
    });
    at
}

async fn copy(from: &mut tokio::net::tcp::OwnedReadHalf, to: &mut tokio::net::tcp::OwnedWriteHalf) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if to.write_all(buffer.get(..len).unwrap_or_default()).await.is_err() {
            return;
        }
    }
    let _closed = to.shutdown().await;
}

/// A client through a proxy, and the sender that silences the proxy.
async fn client(multiplexing: Multiplexing) -> (Client, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let certificate = serve(listener);
    let (silence, silenced) = watch::channel(());
    let port = proxy(server, silenced).await.port();
    let kubeconfig: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{ "name": "c", "cluster": {
            "server": format!("https://localhost:{port}"),
            "certificate-authority-data": k8s_openapi::ByteString(certificate.into_bytes()),
        }}],
        "users": [{ "name": "u", "user": { "token": "t" } }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    }))
    .unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    (connect_with(config, multiplexing, SHORT, None).unwrap(), silence)
}

fn unanswered() -> Request<Vec<u8>> {
    Request::get("/api/v1/configmaps?watch=true")
        .body(vec![])
        .unwrap()
}

#[tokio::test]
async fn a_silent_connection_behind_a_proxy_is_closed_and_replaced() {
    let (client, silence) = client(Multiplexing::Shared).await;
    client.apiserver_version().await.unwrap();
    let waiting = client.clone();
    let request = tokio::spawn(async move {
        waiting
            .request_text(unanswered())
            .await
            .map_err(|e| e.to_string())
    });
    // The request is sent before the proxy is silent.
    let early = timeout(SHORT.interval, client.apiserver_version()).await;
    early.expect("an answer").unwrap();
    let start = Instant::now();
    silence.send(()).unwrap();
    let ended = timeout(DEADLINE, request)
        .await
        .expect("the end of the request")
        .unwrap();
    assert!(ended.is_err(), "{ended:?}");
    assert!(
        start.elapsed() >= SHORT.timeout,
        "ended after {:?}",
        start.elapsed()
    );
    let later = timeout(DEADLINE, client.apiserver_version()).await;
    later.expect("an answer on a new connection").unwrap();
}

#[tokio::test]
async fn a_quiet_connection_stays_open() {
    let (client, _silence) = client(Multiplexing::Shared).await;
    let quiet = timeout(Duration::from_secs(2), client.request_text(unanswered())).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

#[tokio::test]
async fn of_two_connections_that_go_silent_one_delays_a_request() {
    let (client, silence) = client(Multiplexing::PerRequest).await;
    let (one, other) = tokio::join!(client.apiserver_version(), client.apiserver_version());
    one.unwrap();
    other.unwrap();
    silence.send(()).unwrap();
    let short = Duration::from_secs(1);
    let mut given_up = 0;
    while timeout(short, client.apiserver_version()).await.is_err() {
        given_up += 1;
        assert!(given_up < 10, "no answer");
    }
    assert_eq!(given_up, 1);
}
