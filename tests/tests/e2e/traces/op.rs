//! Operations on an API server, and traces of them from a seed.

use std::fmt;

use mc_tests::rng::Rng;
use serde_json::{Value, json};

use super::{
    body::{self, Kind},
    place::{GOING, NOWHERE, Place, SPACES},
};

/// The names objects have.
const NAMES: [&str; 2] = ["web", "api"];
/// Names no object can have.
const IMPOSSIBLE: [&str; 5] = ["Web", "web_", "-web", "web.", "0.web"];
/// Who writes.
const MANAGERS: [&str; 3] = ["mc-gateway", "antrea", "kubectl"];

/// Which UID or version a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// None.
    Unsaid,
    /// The last that was seen.
    Seen,
    /// The one before.
    Old,
    /// One that never was.
    Invented,
}

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Get,
    /// Of one Namespace or all, with a selector or not, and that many at a time.
    List {
        everywhere: bool,
        selector: Option<&'static str>,
        limit: Option<usize>,
    },
    /// What comes after the last list.
    Next,
    Create {
        body: Value,
        dry: bool,
    },
    /// Puts a new object in place of the old.
    Replace {
        body: Value,
    },
    /// Puts the object that was seen there again, with this change.
    Edit {
        patch: Value,
        status: bool,
    },
    Merge {
        patch: Value,
        status: bool,
    },
    Apply {
        body: Value,
        force: bool,
    },
    Delete,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Op {
    pub(super) place: Place,
    pub(super) what: What,
    pub(super) manager: &'static str,
    pub(super) uid: Which,
    pub(super) version: Which,
}

// === impl What ===

impl What {
    fn verb(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List { .. } => "list",
            Self::Next => "list on",
            Self::Create { dry: true, .. } => "create (dry run)",
            Self::Create { .. } => "create",
            Self::Replace { .. } => "replace",
            Self::Edit { status: true, .. } => "edit status of",
            Self::Edit { .. } => "edit",
            Self::Merge { status: true, .. } => "merge into status of",
            Self::Merge { .. } => "merge into",
            Self::Apply { force: true, .. } => "apply by force",
            Self::Apply { .. } => "apply",
            Self::Delete => "delete",
        }
    }

    fn body(&self) -> Option<&Value> {
        match self {
            Self::Create { body, .. } | Self::Replace { body, .. } | Self::Apply { body, .. } => Some(body),
            Self::Edit { patch, .. } | Self::Merge { patch, .. } => Some(patch),
            Self::Get | Self::List { .. } | Self::Next | Self::Delete => None,
        }
    }
}

// === impl Op ===

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} by {}", self.what.verb(), self.place, self.manager)?;
        if self.version != Which::Unsaid {
            write!(f, ", version {:?}", self.version)?;
        }
        if self.uid != Which::Unsaid {
            write!(f, ", UID {:?}", self.uid)?;
        }
        if let What::List {
            everywhere,
            selector,
            limit,
        } = &self.what
        {
            write!(f, ", everywhere {everywhere}, {selector:?}, limit {limit:?}")?;
        }
        // A thousand endpoints are as good as some.
        let body = self.what.body().map(ToString::to_string).unwrap_or_default();
        write!(f, " {}", body.chars().take(2000).collect::<String>())
    }
}

impl Op {
    fn on(place: Place, what: What) -> Self {
        Self {
            place,
            what,
            manager: "kubectl",
            uid: Which::Unsaid,
            version: Which::Unsaid,
        }
    }

    /// A list of everything of a kind, which is where watches begin.
    pub(super) fn begin(kind: Kind) -> Self {
        let what = What::List {
            everywhere: true,
            selector: Some(body::SELECTORS[0]),
            limit: None,
        };
        Self::on(Place::new(kind, SPACES[0], ""), what)
    }

    /// The object that ends a watch of a Namespace.
    pub(super) fn end(place: Place) -> Self {
        let body = body::last(&place);
        Self::on(place, What::Create { body, dry: false })
    }

    /// Takes away what holds an object, and the object.
    pub(super) fn clear(place: &Place) -> [Self; 2] {
        let patch = json!({ "metadata": { "finalizers": null } });
        let free = What::Merge { patch, status: false };
        [free, What::Delete].map(|what| Self::on(place.clone(), what))
    }

    /// One from a seed.
    fn draw(rng: &mut Rng, kinds: &[Kind]) -> Self {
        let kind = *rng.pick(kinds);
        // Most of it to one object, so that there is something to meet.
        let [space, name] =
            [SPACES, NAMES].map(|[first, other]| if rng.permille(700) { first } else { other });
        let mut place = Place::new(kind, space, name);
        let what = Self::what(rng, &mut place);
        let mut which = |unsaid: u64| {
            if rng.permille(unsaid) {
                Which::Unsaid
            } else {
                *rng.pick(&[Which::Seen, Which::Seen, Which::Seen, Which::Old, Which::Invented])
            }
        };
        let (uid, version) = match what {
            What::Delete => (which(500), which(500)),
            // A finished object has both.
            What::Edit { .. } => (Which::Unsaid, which(100)),
            What::Replace { .. } => (which(900), which(300)),
            What::Merge { .. } | What::Apply { .. } => (which(950), which(700)),
            What::Create { dry: false, .. } => (Which::Unsaid, which(970)),
            _ => (Which::Unsaid, Which::Unsaid),
        };
        Self {
            place,
            what,
            manager: *rng.pick(&MANAGERS),
            uid,
            version,
        }
    }

    fn what(rng: &mut Rng, place: &mut Place) -> What {
        let kind = place.kind;
        match rng.below(100) {
            0..4 => What::Get,
            4..8 => What::List {
                everywhere: rng.permille(300),
                selector: Some(*rng.pick(&body::SELECTORS)).filter(|_| rng.permille(700)),
                limit: Some(1 + rng.index(2)).filter(|_| rng.permille(800)),
            }
            .without_others(kind),
            8..12 => What::Next,
            12..28 => {
                // Where nothing can be created, and what cannot be.
                match rng.below(20) {
                    0 => place.space = NOWHERE,
                    1 => place.space = GOING,
                    2 => place.name = *rng.pick(&IMPOSSIBLE),
                    _ => {}
                }
                let invalid = rng.permille(100);
                let body = body::whole(rng, place, invalid);
                let dry = rng.permille(60);
                What::Create { body, dry }
            }
            28..34 => What::Replace {
                body: body::whole(rng, place, false),
            },
            34..44 => {
                let status = kind.is_ours() && rng.permille(300);
                let patch = body::patch(rng, place, status);
                What::Edit { patch, status }
            }
            44..60 => {
                let status = kind.is_ours() && rng.permille(400);
                let patch = body::patch(rng, place, status);
                What::Merge { patch, status }
            }
            60..88 => {
                match rng.below(40) {
                    0 => place.space = NOWHERE,
                    1 => place.space = GOING,
                    _ => {}
                }
                let force = rng.permille(500);
                let body = body::part(rng, place);
                What::Apply { body, force }
            }
            _ => What::Delete,
        }
    }
}

impl What {
    /// A list of all Namespaces shows objects of others, unless it selects; and where they have some, that there are
    /// more.
    fn without_others(self, kind: Kind) -> Self {
        match self {
            Self::List {
                everywhere: true,
                selector,
                limit,
            } => Self::List {
                everywhere: selector.is_some(),
                selector,
                limit: limit.filter(|_| kind.has_no_others()),
            },
            other => other,
        }
    }
}

/// The trace of a seed: the kinds it is about, and what is done.
pub(super) fn trace(seed: u64, length: usize) -> (Vec<Kind>, Vec<Op>) {
    let mut rng = Rng::new(seed);
    let first = *rng.pick(&body::KINDS);
    let second = *rng.pick(&body::KINDS);
    let mut kinds = vec![first, second];
    kinds.sort();
    kinds.dedup();
    let ops = (0..length).map(|_| Op::draw(&mut rng, &kinds)).collect();
    (kinds, ops)
}
