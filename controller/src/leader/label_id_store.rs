//! The label ID store: allocations of IDs to labels, written to `ConfigMap`s before any import has the ID.
//!
//! Each `ConfigMap` is a shard of the ID space and written with its resource version: of two writers that allocate one
//! ID to two labels one fails. Each line is an ID, the label's digest and, if the label is not exported, the time of
//! its release.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    label_identity::{MAX_ID, MIN_ID},
    names,
};
use serde_json::json;

use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, ObjectMap, get},
};

/// Number of IDs in one shard: at most 250 KB.
pub const SHARD_SIZE: u32 = 4096;
/// The key of the `ConfigMap`s.
const KEY: &str = "identities";

/// The allocation of an ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The digest of the label.
    pub digest: String,
    /// When the label was last exported, if it is not.
    pub released_at: Option<Timestamp>,
}

/// All allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelIdStore {
    shards: BTreeMap<u32, Shard>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shard {
    Allocations(BTreeMap<u32, Allocation>),
    /// Malformed: its IDs are neither allocated nor released.
    Frozen,
}

/// A malformed line of a shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text:?} is not \"id digest [time]\" of IDs {first} to {last}, in order")]
pub struct ParseError {
    line: usize,
    text: String,
    first: u32,
    last: u32,
}

/// The shard of an ID.
#[must_use]
pub fn shard_of(id: u32) -> u32 {
    id / SHARD_SIZE
}

// === impl Allocation ===

impl Allocation {
    /// An allocation in use.
    #[must_use]
    pub fn new(digest: &str) -> Self {
        Self {
            digest: digest.to_owned(),
            released_at: None,
        }
    }
}

// === impl LabelIdStore ===

impl LabelIdStore {
    /// Parses the `ConfigMap`s; reports malformed ones.
    #[must_use]
    pub fn read(namespace: &str, config_maps: &ObjectMap<ConfigMap>, plan: &mut Plan) -> Self {
        let mut shards = BTreeMap::new();
        for config_map in config_maps.values() {
            let name = config_map.name_any();
            // The canonical name is compared, since "01" parses, too.
            let shard = name
                .rsplit_once('-')
                .and_then(|(_, end)| end.parse().ok())
                .filter(|shard| *shard <= shard_of(MAX_ID) && names::label_id_shard(*shard) == name);
            let Some(shard) = shard else {
                plan.issue(
                    IssueCode::InvalidRecord,
                    format!("ConfigMap {namespace}/{name}"),
                    "ignored: it has the label of a label ID shard but not its name",
                );
                continue;
            };
            let text = config_map.data.as_ref().and_then(|d| d.get(KEY));
            let read = match parse_shard(shard, text.map_or("", String::as_str)) {
                Ok(allocations) => Shard::Allocations(allocations),
                Err(error) => {
                    plan.issue(
                        IssueCode::InvalidRecord,
                        format!("ConfigMap {namespace}/{name}"),
                        format!("data.{KEY}: {error}; its IDs are frozen until it is corrected or deleted"),
                    );
                    Shard::Frozen
                }
            };
            shards.insert(shard, read);
        }
        Self { shards }
    }

    /// Whether the shard of the ID is malformed.
    #[must_use]
    pub fn is_frozen(&self, id: u32) -> bool {
        self.shards.get(&shard_of(id)) == Some(&Shard::Frozen)
    }

    /// The allocation of an ID.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Allocation> {
        match self.shards.get(&shard_of(id))? {
            Shard::Allocations(allocations) => allocations.get(&id),
            Shard::Frozen => None,
        }
    }

    /// All IDs with their allocations.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Allocation)> {
        let allocations = self.shards.values().filter_map(|shard| match shard {
            Shard::Allocations(allocations) => Some(allocations),
            Shard::Frozen => None,
        });
        allocations.flatten().map(|(id, allocation)| (*id, allocation))
    }

    /// Sets an allocation, unless the shard is frozen.
    pub fn set(&mut self, id: u32, allocation: Allocation) {
        let shard = self
            .shards
            .entry(shard_of(id))
            .or_insert_with(|| Shard::Allocations(BTreeMap::new()));
        if let Shard::Allocations(allocations) = shard {
            allocations.insert(id, allocation);
        }
    }

    /// Removes `expired` allocations from the shards that differ from `stored` and are written anyway.
    pub fn prune(&mut self, stored: &Self, expired: impl Fn(u32, &Allocation) -> bool) {
        for (shard, content) in &mut self.shards {
            let Shard::Allocations(allocations) = content else {
                continue;
            };
            let same =
                matches!(stored.shards.get(shard), Some(Shard::Allocations(old)) if old == allocations);
            if !same {
                allocations.retain(|id, allocation| !expired(*id, allocation));
            }
        }
    }

    /// Plans writes of the shards that differ from `stored`.
    pub fn write(&self, snapshot: &LeaderSnapshot, stored: &Self, plan: &mut Plan) {
        let Some(config_maps) = &snapshot.label_id_shards else {
            return;
        };
        for (shard, content) in &self.shards {
            let Shard::Allocations(allocations) = content else {
                continue;
            };
            if stored.shards.get(shard) == Some(content) {
                continue;
            }
            let data = BTreeMap::from([(KEY.to_owned(), format_shard(allocations))]);
            let name = names::label_id_shard(*shard);
            match get(config_maps, &snapshot.namespace, &name) {
                Some(old) => plan.patch(ApiServer::Local, old.as_ref(), json!({ "data": data })),
                None => plan.create(
                    ApiServer::Local,
                    &ConfigMap {
                        metadata: ObjectMeta {
                            name: Some(name),
                            namespace: Some(snapshot.namespace.clone()),
                            labels: Some(
                                [(
                                    names::LABEL_RECORD.to_owned(),
                                    names::RECORD_LABEL_IDENTITIES.to_owned(),
                                )]
                                .into(),
                            ),
                            ..ObjectMeta::default()
                        },
                        data: Some(data),
                        ..ConfigMap::default()
                    },
                ),
            }
        }
    }
}

fn format_shard(allocations: &BTreeMap<u32, Allocation>) -> String {
    allocations
        .iter()
        .fold(String::new(), |mut text, (id, allocation)| {
            let released_at = allocation
                .released_at
                .map(|at| format!(" {at}"))
                .unwrap_or_default();
            let written = writeln!(text, "{id} {}{released_at}", allocation.digest);
            debug_assert!(written.is_ok(), "{written:?}");
            text
        })
}

fn parse_shard(shard: u32, text: &str) -> Result<BTreeMap<u32, Allocation>, ParseError> {
    let first = (shard * SHARD_SIZE).max(MIN_ID);
    let last = (shard * SHARD_SIZE + (SHARD_SIZE - 1)).min(MAX_ID);
    let mut allocations: BTreeMap<u32, Allocation> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let parsed = parse_line(line)
            .filter(|(id, _)| (first..=last).contains(id))
            .filter(|(id, _)| allocations.last_key_value().is_none_or(|(before, _)| before < id));
        let Some((id, allocation)) = parsed else {
            return Err(ParseError {
                line: number + 1,
                text: line.chars().take(80).collect(),
                first,
                last,
            });
        };
        allocations.insert(id, allocation);
    }
    Ok(allocations)
}

fn parse_line(line: &str) -> Option<(u32, Allocation)> {
    let mut words = line.split(' ');
    let id = words.next()?;
    let plain = id.bytes().all(|b| b.is_ascii_digit()) && !id.starts_with('0');
    let id = plain.then(|| id.parse().ok()).flatten()?;
    let digest = words.next()?;
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let released_at = words.next().map(str::parse).transpose().ok()?;
    (digest.len() == 40 && digest.bytes().all(hex) && words.next().is_none()).then(|| {
        let digest = digest.to_owned();
        (id, Allocation { digest, released_at })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: &str = "a9993e364706816aba3e25717850c26c9cd0d89d";

    #[test]
    fn malformed_lines_are_rejected() {
        for bad in [
            "x".to_owned(),
            format!("0 {A}"),
            format!("05 {A}"),
            format!("4096 {A}"),
            format!("5 {A} yesterday"),
            format!("5 {A} 2026-01-01T12:00:00Z more"),
            format!("5 {}", A.to_uppercase()),
            format!("5 {A}\n5 {A}"),
            format!("6 {A}\n5 {A}"),
            format!("5 {A}\n\n6 {A}"),
        ] {
            let error = parse_shard(0, &bad).unwrap_err().to_string();
            assert!(error.contains("IDs 1 to 4095, in order"), "{bad}: {error}");
        }
        assert!(parse_shard(1, &format!("4096 {A}\n")).is_ok());
        assert!(parse_shard(4095, &format!("16777214 {A}\n")).is_ok());
        assert!(parse_shard(4095, &format!("16777215 {A}\n")).is_err());
    }

    proptest! {
        #[test]
        fn shards_round_trip(ids in proptest::collection::btree_map(1u32..SHARD_SIZE, proptest::option::of(0i64..4_000_000_000), 0..20)) {
            let allocations: BTreeMap<_, _> = ids
                .into_iter()
                .map(|(id, released_at)| (id, Allocation {
                    digest: A.to_owned(),
                    released_at: released_at.map(|s| Timestamp::from_second(s).unwrap()),
                }))
                .collect();
            prop_assert_eq!(parse_shard(0, &format_shard(&allocations)).unwrap(), allocations);
        }
    }
}
