//! Operations on an API server, and traces of them from a seed.

use std::fmt;

use mc_tests::rng::Rng;
use serde_json::{Value, json};

use super::{
    body::{self, Kind},
    object_ref::{MISSING_NAMESPACE, NAMESPACES, ObjectRef, TERMINATING_NAMESPACE},
};

/// Object names.
const NAMES: [&str; 2] = ["web", "api"];
/// Invalid object names.
const IMPOSSIBLE: [&str; 5] = ["Web", "web_", "-web", "web.", "0.web"];
/// Field managers.
const MANAGERS: [&str; 3] = ["mc-gateway", "antrea", "kubectl"];

/// UID or resource version sent with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precondition {
    /// None.
    Absent,
    /// The last one received.
    Current,
    /// The one before.
    Previous,
    /// One that never existed.
    Unknown,
}

/// The action of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Get,
    /// Of one Namespace or all.
    List {
        everywhere: bool,
        selector: Option<&'static str>,
        limit: Option<usize>,
    },
    /// The next page of the last list.
    Next,
    Create {
        body: Value,
        dry: bool,
    },
    /// PUT of a new object.
    Replace {
        body: Value,
    },
    /// PUT of the last received object with this change.
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
    pub(super) object: ObjectRef,
    pub(super) action: Action,
    pub(super) manager: &'static str,
    pub(super) uid: Precondition,
    pub(super) version: Precondition,
}

// === impl Action ===

impl Action {
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
        write!(f, "{} {} by {}", self.action.verb(), self.object, self.manager)?;
        if self.version != Precondition::Absent {
            write!(f, ", version {:?}", self.version)?;
        }
        if self.uid != Precondition::Absent {
            write!(f, ", UID {:?}", self.uid)?;
        }
        if let Action::List {
            everywhere,
            selector,
            limit,
        } = &self.action
        {
            write!(f, ", everywhere {everywhere}, {selector:?}, limit {limit:?}")?;
        }
        // Long bodies are truncated.
        let body = self.action.body().map(ToString::to_string).unwrap_or_default();
        write!(f, " {}", body.chars().take(2000).collect::<String>())
    }
}

impl Op {
    fn on(object: ObjectRef, action: Action) -> Self {
        Self {
            object,
            action,
            manager: "kubectl",
            uid: Precondition::Absent,
            version: Precondition::Absent,
        }
    }

    /// A list of all objects of a kind, the start of watches.
    pub(super) fn begin(kind: Kind) -> Self {
        let action = Action::List {
            everywhere: true,
            selector: Some(body::SELECTORS[0]),
            limit: None,
        };
        Self::on(ObjectRef::new(kind, NAMESPACES[0], ""), action)
    }

    /// Creates the object that ends a watch of a Namespace.
    pub(super) fn end(object: ObjectRef) -> Self {
        let body = body::final_object(&object);
        Self::on(object, Action::Create { body, dry: false })
    }

    /// Removes finalizers and deletes an object.
    pub(super) fn clear(object: &ObjectRef) -> [Self; 2] {
        let patch = json!({ "metadata": { "finalizers": null } });
        let free = Action::Merge { patch, status: false };
        [free, Action::Delete].map(|action| Self::on(object.clone(), action))
    }

    /// A random operation.
    fn draw(rng: &mut Rng, kinds: &[Kind]) -> Self {
        let kind = *rng.pick(kinds);
        // Mostly on one object, so that writers collide.
        let [namespace, name] =
            [NAMESPACES, NAMES].map(|[first, other]| if rng.permille(700) { first } else { other });
        let mut object = ObjectRef::new(kind, namespace, name);
        let action = Self::draw_action(rng, &mut object);
        let mut which = |unsaid: u64| {
            if rng.permille(unsaid) {
                Precondition::Absent
            } else {
                *rng.pick(&[
                    Precondition::Current,
                    Precondition::Current,
                    Precondition::Current,
                    Precondition::Previous,
                    Precondition::Unknown,
                ])
            }
        };
        let (uid, version) = match action {
            Action::Delete => (which(500), which(500)),
            // An edited object has both.
            Action::Edit { .. } => (Precondition::Absent, which(100)),
            Action::Replace { .. } => (which(900), which(300)),
            Action::Merge { .. } | Action::Apply { .. } => (which(950), which(700)),
            Action::Create { dry: false, .. } => (Precondition::Absent, which(970)),
            _ => (Precondition::Absent, Precondition::Absent),
        };
        Self {
            object,
            action,
            manager: *rng.pick(&MANAGERS),
            uid,
            version,
        }
    }

    fn draw_action(rng: &mut Rng, object: &mut ObjectRef) -> Action {
        let kind = object.kind;
        match rng.below(100) {
            0..4 => Action::Get,
            4..8 => Action::List {
                everywhere: rng.permille(300),
                selector: Some(*rng.pick(&body::SELECTORS)).filter(|_| rng.permille(700)),
                limit: Some(1 + rng.index(2)).filter(|_| rng.permille(800)),
            }
            .excluding_foreign_objects(kind),
            8..12 => Action::Next,
            12..28 => {
                // Missing or terminating Namespaces, and invalid names.
                match rng.below(20) {
                    0 => object.namespace = MISSING_NAMESPACE,
                    1 => object.namespace = TERMINATING_NAMESPACE,
                    2 => object.name = *rng.pick(&IMPOSSIBLE),
                    _ => {}
                }
                let invalid = rng.permille(100);
                let body = body::complete_object(rng, object, invalid);
                let dry = rng.permille(60);
                Action::Create { body, dry }
            }
            28..34 => Action::Replace {
                body: body::complete_object(rng, object, false),
            },
            34..44 => {
                let status = kind.is_custom_resource() && rng.permille(300);
                let patch = body::patch(rng, object, status);
                Action::Edit { patch, status }
            }
            44..60 => {
                let status = kind.is_custom_resource() && rng.permille(400);
                let patch = body::patch(rng, object, status);
                Action::Merge { patch, status }
            }
            60..88 => {
                match rng.below(40) {
                    0 => object.namespace = MISSING_NAMESPACE,
                    1 => object.namespace = TERMINATING_NAMESPACE,
                    _ => {}
                }
                let force = rng.permille(500);
                let body = body::partial_object(rng, object);
                Action::Apply { body, force }
            }
            _ => Action::Delete,
        }
    }
}

impl Action {
    /// Lists of all Namespaces also show foreign objects unless they select labels, and their continue tokens reveal
    /// foreign objects.
    fn excluding_foreign_objects(self, kind: Kind) -> Self {
        match self {
            Self::List {
                everywhere: true,
                selector,
                limit,
            } => Self::List {
                everywhere: selector.is_some(),
                selector,
                limit: limit.filter(|_| kind.is_used_by_traces_only()),
            },
            other => other,
        }
    }
}

/// Kinds and operations of the trace of a seed.
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
