//! What a client meets instead of a network: requests are read, carried out on a [`crate::model::store::Store`] and
//! answered, with everything that can go wrong on the way.

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
use serde_json::json;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tower::service_fn;

use crate::{
    model::{
        ask::{Ask, Filter, Verb},
        refusal::Refusal,
        serve::Said,
        store::Actor,
    },
    world::{Shared, World},
};

/// What goes wrong outside of HTTP.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One client of one server.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    /// Everything.
    pub(crate) world: Shared,
    /// Which server.
    pub(crate) server: usize,
    /// Who asks.
    pub(crate) actor: Actor,
    /// In which of its lives.
    pub(crate) incarnation: u64,
    /// What it shows for itself to a leader.
    pub(crate) token: Option<String>,
}

/// A body: at once, or line by line.
pub(crate) enum Answer {
    /// At once.
    Text(Option<Bytes>),
    /// Events of a watch.
    Events(Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>),
}

/// A watch under way.
struct Watching {
    wire: Wire,
    ask: Ask,
    filter: Filter,
    position: u64,
    epoch: u64,
    ends: Instant,
    bookmark: Instant,
    again: Option<Bytes>,
    /// Nothing comes after an error.
    over: bool,
}

/// What a watch does next.
enum Step {
    Send(Bytes, Duration),
    Wait,
    End,
    Break,
}

// === impl Answer ===

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|t| Ok(http_body::Frame::data(t)))),
            Self::Events(events) => events
                .as_mut()
                .poll_next(cx)
                .map(|event| event.map(|e| e.map(http_body::Frame::data))),
        }
    }
}

// === impl Wire ===

impl Wire {
    /// A client at this end of it.
    pub(crate) fn client(self) -> Client {
        let answer = move |request| self.clone().answer(request);
        Client::new(service_fn(answer), "default")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let ask = Ask::read(&parts, &body).map_err(reset)?;
        let (delay, early) = {
            let mut world = self.world.lock();
            world.counts.requests += 1;
            self.on_the_way(&mut world)
        };
        sleep(delay).await;
        match early {
            Early::Pass => {}
            Early::Refused => return Err(reset("connection refused")),
            Early::Swallowed(time) => {
                sleep(time).await;
                return Err(reset("connection reset by peer"));
            }
            Early::Answer(code) => return refuse(&Refusal::new(code, "a fault")),
            Early::Dead => pending::<()>().await,
            Early::Slow(time) => {
                // Once sent, a request arrives, whether somebody still waits for its answer or not.
                let (tell, told) = oneshot::channel();
                let wire = self.clone();
                tokio::spawn(async move {
                    sleep(time).await;
                    let answer = wire.arrive(&ask);
                    drop(tell.send(answer));
                });
                return finish(told.await.unwrap_or(Late::Dead)).await;
            }
        }
        finish(self.arrive(&ask)).await
    }

    /// What happens before the server sees it.
    fn on_the_way(&self, world: &mut World) -> (Duration, Early) {
        let delay = Duration::from_millis(world.rng.below(4));
        if !world.lives(self.actor, self.incarnation) {
            return (delay, Early::Dead);
        }
        let now = Instant::now();
        let down = world.clusters[self.server].down.is_some_and(|until| until > now);
        if down {
            return (delay, Early::Refused);
        }
        if let Actor::Member(own) = self.actor
            && self.server == 0
            && let Some((until, swallows)) = world.clusters[own].parted
            && until > now
        {
            let early = if swallows {
                Early::Swallowed((until - now).min(Duration::from_secs(30)))
            } else {
                Early::Refused
            };
            return (delay, early);
        }
        let early = if world.fault(|f| f.refuse) {
            Early::Refused
        } else if world.fault(|f| f.fail) {
            Early::Answer(*world.rng.pick(&[429, 500, 503, 504]))
        } else if world.fault(|f| f.slow) {
            Early::Slow(Duration::from_millis(world.rng.range(50, 8000)))
        } else {
            Early::Pass
        };
        (delay, early)
    }

    /// The server sees it.
    fn arrive(&self, ask: &Ask) -> Late {
        let mut world = self.world.lock();
        if let Some(token) = &self.token {
            let whose = world.clusters[self.server].tokens.get(token);
            if whose.is_none_or(|w| Actor::Member(*w) != self.actor) {
                return Late::Answer(Err(Refusal::new(401, "Unauthorized")));
            }
        }
        let writes = !matches!(ask.verb, Verb::Get | Verb::List | Verb::Watch);
        if writes
            && !ask.query.contains_key("dryRun")
            && let Some(after) = self.boundary(&mut world)
        {
            if after {
                drop(self.serve(&mut world, ask));
            }
            world.kill(self.actor);
            return Late::Dead;
        }
        if ask.verb == Verb::Watch {
            return match self.watch(&mut world, ask) {
                Ok(watching) => Late::Watch(Box::new(watching)),
                Err(refusal) => Late::Answer(Err(refusal)),
            };
        }
        let answer = self.serve(&mut world, ask);
        if world.fault(|f| f.lose) {
            let time = if world.rng.permille(500) {
                Duration::ZERO
            } else {
                Duration::from_millis(world.rng.range(1, 20_000))
            };
            return Late::Lost(time);
        }
        Late::Answer(answer)
    }

    /// Whether the controller dies at this write; and whether after it.
    fn boundary(&self, world: &mut World) -> Option<bool> {
        let life = world.lives.get_mut(&self.actor)?;
        life.writes += 1;
        let write = life.writes;
        let planned = world.crash.filter(|c| (c.actor, c.write) == (self.actor, write));
        if let Some(crash) = planned {
            world.crash = None;
            return Some(crash.after);
        }
        let dies = world.lives(self.actor, self.incarnation) && world.fault(|f| f.crash);
        dies.then(|| world.rng.permille(500))
    }

    fn serve(&self, world: &mut World, ask: &Ask) -> Result<Said, Refusal> {
        let now = world.now(self.server);
        if ask.verb == Verb::List {
            let stale = world.fault(|f| f.stale);
            let late = if stale { world.late(self.server) } else { u64::MAX };
            return world.clusters[self.server].store.list(ask, late, world.page);
        }
        let done = world.clusters[self.server].store.serve(ask, self.actor, now);
        world.settle(self.server, self.actor);
        done
    }

    fn watch(&self, world: &mut World, ask: &Ask) -> Result<Watching, Refusal> {
        let from: u64 = ask.number("resourceVersion").unwrap_or(0);
        let gone = world.fault(|f| f.gone);
        let as_event = world.rng.permille(500);
        let cluster = &mut world.clusters[self.server];
        let too_old = gone || from < cluster.store.compacted();
        if too_old && !as_event {
            return Err(Refusal::new(410, "too old resource version"));
        }
        let seconds = ask.number("timeoutSeconds").unwrap_or(290);
        let now = Instant::now();
        Ok(Watching {
            wire: self.clone(),
            filter: Filter::new(ask),
            ask: ask.clone(),
            position: from,
            epoch: if too_old { u64::MAX } else { cluster.epoch },
            ends: now + Duration::from_secs(seconds),
            bookmark: now + Duration::from_secs(50),
            again: None,
            over: false,
        })
    }
}

/// What happened to a request before the server saw it.
enum Early {
    Pass,
    Refused,
    Swallowed(Duration),
    Answer(u16),
    Dead,
    Slow(Duration),
}

/// What comes of a request the server saw.
enum Late {
    Answer(Result<Said, Refusal>),
    Watch(Box<Watching>),
    Lost(Duration),
    Dead,
}

async fn finish(late: Late) -> Result<Response<Answer>, BoxError> {
    match late {
        Late::Answer(Ok(said)) => respond(said.code, Answer::Text(Some(said.text.into()))),
        Late::Answer(Err(refusal)) => refuse(&refusal),
        Late::Watch(watching) => respond(
            200,
            Answer::Events(Box::pin(stream::unfold(watching, Watching::next))),
        ),
        Late::Lost(time) => {
            sleep(time).await;
            Err(reset("connection reset by peer"))
        }
        Late::Dead => pending().await,
    }
}

fn respond(code: u16, body: Answer) -> Result<Response<Answer>, BoxError> {
    Ok(Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(body)?)
}

fn refuse(refusal: &Refusal) -> Result<Response<Answer>, BoxError> {
    respond(
        refusal.code,
        Answer::Text(Some(refusal.status().to_string().into())),
    )
}

fn reset(why: &'static str) -> BoxError {
    io::Error::new(io::ErrorKind::ConnectionReset, why).into()
}

// === impl Watching ===

impl Watching {
    async fn next(mut self: Box<Self>) -> Option<(Result<Bytes, BoxError>, Box<Self>)> {
        if self.over {
            return None;
        }
        loop {
            let (step, notify) = {
                let shared = self.wire.world.clone();
                let mut world = shared.lock();
                let notify = world.clusters[self.wire.server].store.notify(&self.ask.resource);
                (self.step(&mut world), notify)
            };
            match step {
                Step::Send(line, delay) => {
                    if delay > Duration::ZERO {
                        sleep(delay).await;
                    }
                    return Some((Ok(line), self));
                }
                Step::End => return None,
                Step::Break => {
                    self.over = true;
                    return Some((Err(reset("connection reset by peer")), self));
                }
                Step::Wait => {
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

    fn step(&mut self, world: &mut World) -> Step {
        let now = Instant::now();
        let (server, actor) = (self.wire.server, self.wire.actor);
        if !world.lives(actor, self.wire.incarnation) {
            // Nobody reads this any more.
            return Step::End;
        }
        if self.epoch == u64::MAX {
            self.over = true;
            return Step::Send(error(410, "too old resource version"), Duration::ZERO);
        }
        let parted = matches!(actor, Actor::Member(own) if server == 0
            && world.clusters[own].parted.is_some_and(|(until, _)| until > now));
        let down = world.clusters[server].down.is_some_and(|until| until > now);
        if parted || down || world.clusters[server].epoch != self.epoch {
            return Step::Break;
        }
        if let Some(line) = self.again.take() {
            return Step::Send(line, Duration::ZERO);
        }
        if now >= self.ends {
            return Step::End;
        }
        let store = &world.clusters[server].store;
        let next = store.event(&self.ask, &self.filter, &mut self.position);
        let Some((line, version)) = next.map(|(line, version)| (Bytes::from(line), version)) else {
            if now >= self.bookmark {
                self.bookmark = now + Duration::from_secs(50);
                let version = world.clusters[server].store.version();
                self.position = version;
                let line = json!({ "type": "BOOKMARK", "object": {
                    "apiVersion": "v1", "kind": self.ask.resource.1,
                    "metadata": { "resourceVersion": version.to_string() },
                }});
                return Step::Send(format!("{line}\n").into(), Duration::ZERO);
            }
            return Step::Wait;
        };
        if world.fault(|f| f.cut) {
            return if world.rng.permille(500) {
                Step::End
            } else {
                Step::Break
            };
        }
        if world.fault(|f| f.gone) {
            self.over = true;
            return Step::Send(
                error(410, "The resourceVersion for the provided watch is too old."),
                Duration::ZERO,
            );
        }
        self.position = version;
        let delay = if world.fault(|f| f.late) {
            Duration::from_millis(world.rng.range(20, 3000))
        } else {
            Duration::from_millis(world.rng.below(3))
        };
        if world.fault(|f| f.twice) {
            self.again = Some(line.clone());
        }
        Step::Send(line, delay)
    }
}

fn error(code: u16, message: &str) -> Bytes {
    let status = Refusal::new(code, message).status();
    format!("{}\n", json!({ "type": "ERROR", "object": status })).into()
}
