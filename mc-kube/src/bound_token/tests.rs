//! Renewal by a virtual clock.

use std::{collections::VecDeque, sync::Mutex};

use serde_json::json;

use super::*;

/// Answers in order, the last one again and again; with the time of each request.
struct Server {
    start: Instant,
    answers: Mutex<VecDeque<Result<&'static str, &'static str>>>,
    requests: Mutex<Vec<Duration>>,
}

impl Server {
    fn new(answers: &[Result<&'static str, &'static str>]) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            answers: Mutex::new(answers.iter().copied().collect()),
            requests: Mutex::default(),
        })
    }

    fn answer(&self) -> Result<Token, String> {
        self.requests.lock().unwrap().push(self.start.elapsed());
        let mut answers = self.answers.lock().unwrap();
        let answer = if answers.len() > 1 {
            answers.pop_front()
        } else {
            answers.front().copied()
        };
        let header = answer.unwrap().map_err(str::to_owned)?;
        Ok(Token {
            header: HeaderValue::from_static(header),
            lifetime: LIFETIME,
        })
    }

    fn requests(&self) -> Vec<Duration> {
        self.requests.lock().unwrap().clone()
    }
}

fn renewed(server: &Arc<Server>) -> BoundToken {
    let server = server.clone();
    BoundToken::renewed_by(50, move || std::future::ready(server.answer()))
}

async fn pass(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_token_is_replaced_before_it_expires() {
    let server = Server::new(&[Ok("a"), Ok("b"), Ok("c")]);
    let mut current = renewed(&server);
    assert_eq!(current.header().await.unwrap(), "a");
    pass(440).await;
    assert_eq!(current.header().await.unwrap(), "a");
    pass(20).await;
    assert_eq!(current.header().await.unwrap(), "b");
    assert_eq!(server.requests(), [Duration::ZERO, Duration::from_secs(450)]);
}

#[tokio::test(start_paused = true)]
async fn requests_fail_with_the_cause_until_there_is_a_token() {
    let server = Server::new(&[Err("forbidden"), Err("forbidden"), Ok("a")]);
    let mut current = renewed(&server);
    assert_eq!(current.header().await.unwrap_err(), "forbidden");
    pass(2).await;
    assert_eq!(current.header().await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_token_remains_while_no_other_is_granted() {
    let server = Server::new(&[Ok("a"), Err("no answer")]);
    let mut current = renewed(&server);
    pass(3600).await;
    assert_eq!(current.header().await.unwrap(), "a");
    let requests = server.requests();
    let (last, before) = (requests[requests.len() - 1], requests[requests.len() - 2]);
    assert!(last.saturating_sub(before) <= MAX_BACKOFF, "{before:?}, {last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_token_is_replaced_at_once_and_seldom() {
    let server = Server::new(&[Ok("a"), Ok("b")]);
    let mut current = renewed(&server);
    pass(60).await;
    current.report_rejection();
    pass(1).await;
    assert_eq!(current.header().await.unwrap(), "b");
    for _ in 0..1000 {
        current.report_rejection();
        sleep(Duration::from_millis(10)).await;
    }
    // At most one in two seconds.
    assert!(
        (3..=7).contains(&server.requests().len()),
        "{:?}",
        server.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_client_ends_the_renewal() {
    let server = Server::new(&[Ok("a")]);
    let current = renewed(&server);
    let clone = current.clone();
    drop(current);
    pass(460).await;
    assert_eq!(server.requests().len(), 2);
    drop(clone);
    pass(3600).await;
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn tokens_are_replaced_between_seven_and_eight_tenths_of_their_lifetime() {
    let delays = (0..200).map(|seed| renewal_delay(LIFETIME, seed).as_secs());
    assert_eq!(delays.clone().min(), Some(420));
    assert_eq!(delays.max(), Some(479));
    assert_eq!(renewal_delay(Duration::ZERO, 7), MIN_AGE);
    assert!(renewal_delay(Duration::MAX, u64::MAX) < Duration::MAX);
}

#[test]
fn the_lifetime_is_the_granted_one() {
    let of = |spec, status| {
        let granted = json!({ "metadata": {}, "spec": spec, "status": status });
        token(&serde_json::from_value(granted).unwrap())
    };
    let status = json!({ "token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z" });
    let granted = of(
        json!({ "audiences": [], "expirationSeconds": 1200 }),
        status.clone(),
    )
    .unwrap();
    assert_eq!(granted.lifetime, Duration::from_mins(20));
    assert_eq!(granted.header, "Bearer t");
    assert!(granted.header.is_sensitive());
    let granted = of(json!({ "audiences": [], "expirationSeconds": -1 }), status).unwrap();
    assert_eq!(granted.lifetime, LIFETIME);
    for bad in ["", "a\nb"] {
        let status = json!({ "token": bad, "expirationTimestamp": "2026-01-01T00:00:00Z" });
        assert_eq!(of(json!({ "audiences": [] }), status), None, "{bad:?}");
    }
}
