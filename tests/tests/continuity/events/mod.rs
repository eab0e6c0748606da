//! The kinds of event, in order. Each one ends in a state in which all connections work.

mod agents;
mod clusters;
mod endpoints;
mod gateways;
mod hosts;

use std::collections::BTreeSet;

use anyhow::Result;

use crate::{pool::Id, world::World};

/// A kind of event.
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) apply: fn(&mut World) -> Result<Allowed>,
    /// The event starts at agents of the previous release.
    pub(crate) needs_previous: bool,
    /// New connections replace all others before the event: all gateways select the same backends for them.
    pub(crate) reopen: bool,
}

/// Connections that an event may cut, and the documented class.
#[derive(Clone, Debug)]
pub(crate) enum Allowed {
    /// None.
    None,
    /// Any of these.
    Some { class: &'static str, ids: BTreeSet<Id> },
    /// This number of these.
    Exactly {
        class: &'static str,
        ids: BTreeSet<Id>,
        count: usize,
    },
}

// === impl Event ===

impl Event {
    const fn new(name: &'static str, apply: fn(&mut World) -> Result<Allowed>) -> Self {
        Self {
            name,
            apply,
            needs_previous: false,
            reopen: false,
        }
    }
}

// === impl Allowed ===

impl Allowed {
    pub(crate) fn contains(&self, id: Id) -> bool {
        match self {
            Self::None => false,
            Self::Some { ids, .. } | Self::Exactly { ids, .. } => ids.contains(&id),
        }
    }

    pub(crate) fn class(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Some { class, .. } | Self::Exactly { class, .. } => Some(class),
        }
    }
}

/// All events. Until the first one with [`Event::reopen`] the flow tables alone keep connections in place.
pub(crate) fn all() -> impl Iterator<Item = Event> {
    [
        agents::EVENTS,
        clusters::EVENTS,
        endpoints::EVENTS,
        hosts::EVENTS,
        endpoints::POLICIES,
        gateways::EVENTS,
    ]
    .into_iter()
    .flatten()
    .map(|event| Event { ..*event })
}

#[test]
fn at_least_thirty_kinds_with_different_names() {
    let names: BTreeSet<_> = all().map(|event| event.name).collect();
    assert_eq!(names.len(), all().count());
    assert!(names.len() >= 30, "{names:?}");
}
