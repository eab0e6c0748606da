//! In-memory transport of Kubernetes clients: requests are parsed, handled by a
//! [`mc_test_kit::fake_apiserver::store::Store`] and answered, with injected faults.

use std::{
    future::pending,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, stream};
use http::{Request, Response};
use kube::{Client, client::Body};
use mc_test_kit::fake_apiserver::{
    handler::ApiResponse,
    request::{ApiRequest, Filter, Verb},
    status_error::StatusError,
    store::Actor,
};
use serde_json::json;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tower::service_fn;

use crate::simulation::{SharedSimulation, Simulation};

/// After this time a client gives up a request of a half-open connection; suite `e2e`, module `half_open`, measures
/// 10 s.
const BLACK_HOLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Errors outside of HTTP.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A client connection to one server.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    /// The simulation.
    pub(crate) world: SharedSimulation,
    /// Index of the server.
    pub(crate) server: usize,
    /// The client.
    pub(crate) actor: Actor,
    /// Incarnation of the client's process.
    pub(crate) incarnation: u64,
    /// Bearer token for the leader.
    pub(crate) token: Option<String>,
}

/// A response body.
pub(crate) enum ResponseBody {
    /// A complete body.
    Full(Option<Bytes>),
    /// A stream of watch events.
    Watch(Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>),
}

/// An open watch.
struct WatchStream {
    wire: Transport,
    request: ApiRequest,
    filter: Filter,
    position: u64,
    epoch: u64,
    ends: Instant,
    bookmark: Instant,
    repeat: Option<Bytes>,
    /// True after an error event.
    finished: bool,
}

/// Next step of a watch.
enum WatchStep {
    Send(Bytes, Duration),
    Wait,
    End,
    Break,
}

// === impl Answer ===

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Full(text) => Poll::Ready(text.take().map(|t| Ok(http_body::Frame::data(t)))),
            Self::Watch(events) => events
                .as_mut()
                .poll_next(cx)
                .map(|event| event.map(|e| e.map(http_body::Frame::data))),
        }
    }
}

// === impl Wire ===

fn is_write(request: &ApiRequest) -> bool {
    !matches!(request.verb, Verb::Get | Verb::List | Verb::Watch)
}

impl Transport {
    /// A client on this transport.
    pub(crate) fn client(self) -> Client {
        let answer = move |request| self.clone().answer(request);
        Client::new(service_fn(answer), "default")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let request = ApiRequest::parse(&parts, &body).map_err(connection_reset)?;
        let (delay, early) = {
            let mut world = self.world.lock();
            world.counts.requests += 1;
            self.before_server(&mut world, is_write(&request))
        };
        sleep(delay).await;
        match early {
            BeforeServer::Deliver => {}
            BeforeServer::Refused => return Err(connection_reset("connection refused")),
            BeforeServer::BlackHoled(time) => {
                sleep(time).await;
                return Err(connection_reset("connection reset by peer"));
            }
            BeforeServer::ErrorStatus(code) => return respond_error(&StatusError::new(code, "a fault")),
            BeforeServer::ClientDead => pending::<()>().await,
            BeforeServer::Delay(time) => {
                // A sent request reaches the server even if the client stops waiting.
                let (sender, receiver) = oneshot::channel();
                let wire = self.clone();
                tokio::spawn(async move {
                    sleep(time).await;
                    let answer = wire.at_server(&request);
                    drop(sender.send(answer));
                });
                return into_response(receiver.await.unwrap_or(AfterServer::ClientDead)).await;
            }
        }
        into_response(self.at_server(&request)).await
    }

    /// Faults before the request reaches the server.
    fn before_server(&self, world: &mut Simulation, is_write: bool) -> (Duration, BeforeServer) {
        let delay = Duration::from_millis(world.rng.below(4));
        if !world.is_current(self.actor, self.incarnation) {
            return (delay, BeforeServer::ClientDead);
        }
        let now = Instant::now();
        let down = world.clusters[self.server].down.is_some_and(|until| until > now);
        if down {
            return (delay, BeforeServer::Refused);
        }
        if let Actor::Member(own) = self.actor
            && self.server == 0
            && let Some((until, swallows)) = world.clusters[own].partitioned
            && until > now
        {
            let early = if swallows {
                BeforeServer::BlackHoled((until - now).min(BLACK_HOLE_TIMEOUT))
            } else {
                BeforeServer::Refused
            };
            return (delay, early);
        }
        let early = if world.inject(|f| f.connection_refused) {
            BeforeServer::Refused
        } else if world.inject(|f| f.error_status) {
            // An admission policy or a webhook of an administrator may reject any write.
            let statuses: &[u16] = if is_write {
                &[403, 422, 429, 500, 503, 504]
            } else {
                &[429, 500, 503, 504]
            };
            BeforeServer::ErrorStatus(*world.rng.pick(statuses))
        } else if world.inject(|f| f.request_delayed) {
            BeforeServer::Delay(Duration::from_millis(world.rng.range(50, 8000)))
        } else {
            BeforeServer::Deliver
        };
        (delay, early)
    }

    /// The request reaches the server.
    fn at_server(&self, request: &ApiRequest) -> AfterServer {
        let mut world = self.world.lock();
        if let Some(token) = &self.token {
            // A copy of a cluster has its ID and its token.
            let owner = world.clusters[self.server].tokens.get(token);
            let id = |member: usize| world.clusters.get(member).map(|cluster| &cluster.id);
            let is_own = |owner: &usize| matches!(self.actor, Actor::Member(i) if id(i) == id(*owner));
            if !owner.is_some_and(is_own) {
                return AfterServer::Respond(Err(StatusError::new(401, "Unauthorized")));
            }
        }
        if is_write(request)
            && !request.query.contains_key("dryRun")
            && let Some(after) = self.crash_at_write(&mut world)
        {
            if after {
                drop(self.handle(&mut world, request));
            }
            world.kill(self.actor);
            return AfterServer::ClientDead;
        }
        if request.verb == Verb::Watch {
            return match self.open_watch(&mut world, request) {
                Ok(watching) => AfterServer::Watch(Box::new(watching)),
                Err(refusal) => AfterServer::Respond(Err(refusal)),
            };
        }
        let answer = self.handle(&mut world, request);
        if world.inject(|f| f.response_lost) {
            let time = if world.rng.permille(500) {
                Duration::ZERO
            } else {
                Duration::from_millis(world.rng.range(1, 20_000))
            };
            return AfterServer::ResponseLost(time);
        }
        AfterServer::Respond(answer)
    }

    /// Some if the controller crashes at this write; true if after it.
    fn crash_at_write(&self, world: &mut Simulation) -> Option<bool> {
        let life = world.processes.get_mut(&self.actor)?;
        life.writes += 1;
        let write = life.writes;
        let planned = world
            .planned_crash
            .filter(|c| (c.actor, c.write) == (self.actor, write));
        if let Some(crash) = planned {
            world.planned_crash = None;
            return Some(crash.after);
        }
        let dies = world.is_current(self.actor, self.incarnation) && world.inject(|f| f.crash);
        dies.then(|| world.rng.permille(500))
    }

    fn handle(&self, world: &mut Simulation, request: &ApiRequest) -> Result<ApiResponse, StatusError> {
        let now = world.now(self.server);
        if request.verb == Verb::List {
            let stale = world.inject(|f| f.stale_list);
            let late = if stale {
                world.stale_version(self.server)
            } else {
                u64::MAX
            };
            return world.clusters[self.server].store.list(request, late, world.page);
        }
        let done = world.clusters[self.server].store.handle(request, self.actor, now);
        world.process_changes(self.server, self.actor);
        done
    }

    fn open_watch(&self, world: &mut Simulation, request: &ApiRequest) -> Result<WatchStream, StatusError> {
        let from: u64 = request.query_number("resourceVersion").unwrap_or(0);
        let gone = world.inject(|f| f.version_expired);
        let as_event = world.rng.permille(500);
        let cluster = &mut world.clusters[self.server];
        let too_old = gone || from < cluster.store.compacted();
        if too_old && !as_event {
            return Err(StatusError::new(410, "too old resource version"));
        }
        let seconds = request.query_number("timeoutSeconds").unwrap_or(290);
        let now = Instant::now();
        Ok(WatchStream {
            wire: self.clone(),
            filter: Filter::new(request),
            request: request.clone(),
            position: from,
            epoch: if too_old { u64::MAX } else { cluster.epoch },
            ends: now + Duration::from_secs(seconds),
            bookmark: now + Duration::from_secs(50),
            repeat: None,
            finished: false,
        })
    }
}

/// Fate of a request before the server.
enum BeforeServer {
    Deliver,
    Refused,
    BlackHoled(Duration),
    ErrorStatus(u16),
    ClientDead,
    Delay(Duration),
}

/// Result of a request at the server.
enum AfterServer {
    Respond(Result<ApiResponse, StatusError>),
    Watch(Box<WatchStream>),
    ResponseLost(Duration),
    ClientDead,
}

async fn into_response(late: AfterServer) -> Result<Response<ResponseBody>, BoxError> {
    match late {
        AfterServer::Respond(Ok(reply)) => respond(reply.code, ResponseBody::Full(Some(reply.text.into()))),
        AfterServer::Respond(Err(refusal)) => respond_error(&refusal),
        AfterServer::Watch(watching) => respond(
            200,
            ResponseBody::Watch(Box::pin(stream::unfold(watching, WatchStream::next))),
        ),
        AfterServer::ResponseLost(time) => {
            sleep(time).await;
            Err(connection_reset("connection reset by peer"))
        }
        AfterServer::ClientDead => pending().await,
    }
}

fn respond(code: u16, body: ResponseBody) -> Result<Response<ResponseBody>, BoxError> {
    Ok(Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(body)?)
}

fn respond_error(refusal: &StatusError) -> Result<Response<ResponseBody>, BoxError> {
    respond(
        refusal.code,
        ResponseBody::Full(Some(refusal.to_status().to_string().into())),
    )
}

fn connection_reset(why: &'static str) -> BoxError {
    io::Error::new(io::ErrorKind::ConnectionReset, why).into()
}

// === impl Watching ===

impl WatchStream {
    async fn next(mut self: Box<Self>) -> Option<(Result<Bytes, BoxError>, Box<Self>)> {
        if self.finished {
            return None;
        }
        loop {
            let (step, notify) = {
                let shared = self.wire.world.clone();
                let mut world = shared.lock();
                let notify = world.clusters[self.wire.server]
                    .store
                    .notify(&self.request.resource);
                (self.next_step(&mut world), notify)
            };
            match step {
                WatchStep::Send(line, delay) => {
                    if delay > Duration::ZERO {
                        sleep(delay).await;
                    }
                    return Some((Ok(line), self));
                }
                WatchStep::End => return None,
                WatchStep::Break => {
                    self.finished = true;
                    return Some((Err(connection_reset("connection reset by peer")), self));
                }
                WatchStep::Wait => {
                    let until = self.ends.min(self.bookmark);
                    tokio::select! {
                        biased;
                        () = notify.notified() => {}
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
            }
        }
    }

    fn next_step(&mut self, world: &mut Simulation) -> WatchStep {
        let now = Instant::now();
        let (server, actor) = (self.wire.server, self.wire.actor);
        if !world.is_current(actor, self.wire.incarnation) {
            // The reader's process has ended.
            return WatchStep::End;
        }
        if self.epoch == u64::MAX {
            self.finished = true;
            return WatchStep::Send(error_event(410, "too old resource version"), Duration::ZERO);
        }
        let parted = matches!(actor, Actor::Member(own) if server == 0
            && world.clusters[own].partitioned.is_some_and(|(until, _)| until > now));
        let down = world.clusters[server].down.is_some_and(|until| until > now);
        if parted || down || world.clusters[server].epoch != self.epoch {
            return WatchStep::Break;
        }
        if let Some(line) = self.repeat.take() {
            return WatchStep::Send(line, Duration::ZERO);
        }
        if now >= self.ends {
            return WatchStep::End;
        }
        let store = &world.clusters[server].store;
        let next = store.next_event(&self.request, &self.filter, &mut self.position);
        let Some((line, version)) = next.map(|(line, version)| (Bytes::from(line), version)) else {
            if now >= self.bookmark {
                self.bookmark = now + Duration::from_secs(50);
                let version = world.clusters[server].store.version();
                self.position = version;
                let line = json!({ "type": "BOOKMARK", "object": {
                    "apiVersion": "v1", "kind": self.request.resource.1,
                    "metadata": { "resourceVersion": version.to_string() },
                }});
                return WatchStep::Send(format!("{line}\n").into(), Duration::ZERO);
            }
            return WatchStep::Wait;
        };
        if world.inject(|f| f.watch_closed) {
            return if world.rng.permille(500) {
                WatchStep::End
            } else {
                WatchStep::Break
            };
        }
        if world.inject(|f| f.version_expired) {
            self.finished = true;
            return WatchStep::Send(
                error_event(410, "The resourceVersion for the provided watch is too old."),
                Duration::ZERO,
            );
        }
        self.position = version;
        let delay = if world.inject(|f| f.event_delayed) {
            Duration::from_millis(world.rng.range(20, 3000))
        } else {
            Duration::from_millis(world.rng.below(3))
        };
        if world.inject(|f| f.event_repeated) {
            self.repeat = Some(line.clone());
        }
        WatchStep::Send(line, delay)
    }
}

fn error_event(code: u16, message: &str) -> Bytes {
    let status = StatusError::new(code, message).to_status();
    format!("{}\n", json!({ "type": "ERROR", "object": status })).into()
}
