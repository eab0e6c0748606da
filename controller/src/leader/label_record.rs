//! Which label has which number, kept in `ConfigMap`s: what is true is written there first.
//!
//! Each `ConfigMap` has the numbers of a range and is changed only as it was read, so that of two writers that give one
//! number to two labels one fails. One line for each number: the number, the label's digest, and since when the label
//! is gone, if it is.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::json;

use crate::{
    api::{
        label_identity::{MAX_ID, MIN_ID},
        names,
    },
    plan::{Plan, Side},
    world::{LeaderWorld, Objects, get},
};

/// So many numbers are in one part: 250 KB at the most.
pub const PART: u32 = 4096;
/// The key of the `ConfigMap`s.
const KEY: &str = "identities";

/// Whose a number is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The digest of the label.
    pub digest: String,
    /// Since when nobody exports the label.
    pub gone: Option<Timestamp>,
}

/// All numbers that were given to labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    parts: BTreeMap<u32, Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Entries(BTreeMap<u32, Entry>),
    /// It cannot be read: its numbers are nobody's to give or to take.
    Frozen,
}

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text:?} is not \"number digest [time]\" of numbers {first} to {last}, in order")]
pub struct Unreadable {
    line: usize,
    text: String,
    first: u32,
    last: u32,
}

/// In which part a number is.
#[must_use]
pub fn part_of(id: u32) -> u32 {
    id / PART
}

// === impl Record ===

impl Record {
    /// What is written in the `ConfigMap`s; says of each that cannot be read why not.
    #[must_use]
    pub fn read(namespace: &str, config_maps: &Objects<ConfigMap>, plan: &mut Plan) -> Self {
        let mut parts = BTreeMap::new();
        for config_map in config_maps.values() {
            let name = config_map.name_any();
            // "01" is not "1": the name is written anew and compared.
            let part = name
                .rsplit_once('-')
                .and_then(|(_, end)| end.parse().ok())
                .filter(|part| *part <= part_of(MAX_ID) && names::label_record(*part) == name);
            let Some(part) = part else {
                plan.notice(
                    format!("ConfigMap {namespace}/{name}"),
                    "ignored: it has the label of a record but not the name of one",
                );
                continue;
            };
            let text = config_map.data.as_ref().and_then(|d| d.get(KEY));
            let read = match parse(part, text.map_or("", String::as_str)) {
                Ok(entries) => Part::Entries(entries),
                Err(error) => {
                    plan.notice(
                        format!("ConfigMap {namespace}/{name}"),
                        format!("data.{KEY}: {error}; its numbers stay as they are until it is corrected or deleted"),
                    );
                    Part::Frozen
                }
            };
            parts.insert(part, read);
        }
        Self { parts }
    }

    /// Whether nobody may touch this number.
    #[must_use]
    pub fn frozen(&self, id: u32) -> bool {
        self.parts.get(&part_of(id)) == Some(&Part::Frozen)
    }

    /// Whose the number is.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Entry> {
        match self.parts.get(&part_of(id))? {
            Part::Entries(entries) => entries.get(&id),
            Part::Frozen => None,
        }
    }

    /// All numbers with their owners.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let entries = self.parts.values().filter_map(|part| match part {
            Part::Entries(entries) => Some(entries),
            Part::Frozen => None,
        });
        entries.flatten().map(|(id, entry)| (*id, entry))
    }

    /// Gives the number to somebody, unless it is frozen.
    pub fn set(&mut self, id: u32, entry: Entry) {
        let part = self
            .parts
            .entry(part_of(id))
            .or_insert_with(|| Part::Entries(BTreeMap::new()));
        if let Part::Entries(entries) = part {
            entries.insert(id, entry);
        }
    }

    /// Drops what `useless` names from the parts that are to be written anyway.
    pub fn prune(&mut self, stored: &Self, useless: impl Fn(u32, &Entry) -> bool) {
        for (part, content) in &mut self.parts {
            let Part::Entries(entries) = content else { continue };
            let same = matches!(stored.parts.get(part), Some(Part::Entries(old)) if old == entries);
            if !same {
                entries.retain(|id, entry| !useless(*id, entry));
            }
        }
    }

    /// Writes what is not yet as `stored`.
    pub fn write(&self, world: &LeaderWorld, stored: &Self, plan: &mut Plan) {
        let Some(config_maps) = &world.records else { return };
        for (part, content) in &self.parts {
            let Part::Entries(entries) = content else { continue };
            if stored.parts.get(part) == Some(content) {
                continue;
            }
            let data = BTreeMap::from([(KEY.to_owned(), text(entries))]);
            let name = names::label_record(*part);
            match get(config_maps, &world.namespace, &name) {
                Some(old) => plan.patch(Side::Local, old.as_ref(), json!({ "data": data })),
                None => plan.create(
                    Side::Local,
                    &ConfigMap {
                        metadata: ObjectMeta {
                            name: Some(name),
                            namespace: Some(world.namespace.clone()),
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

fn text(entries: &BTreeMap<u32, Entry>) -> String {
    entries.iter().fold(String::new(), |mut text, (id, entry)| {
        let gone = entry.gone.map(|at| format!(" {at}")).unwrap_or_default();
        let written = writeln!(text, "{id} {}{gone}", entry.digest);
        debug_assert!(written.is_ok(), "{written:?}");
        text
    })
}

fn parse(part: u32, text: &str) -> Result<BTreeMap<u32, Entry>, Unreadable> {
    let first = (part * PART).max(MIN_ID);
    let last = (part * PART + (PART - 1)).min(MAX_ID);
    let mut entries: BTreeMap<u32, Entry> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let entry = parse_line(line)
            .filter(|(id, _)| (first..=last).contains(id))
            .filter(|(id, _)| entries.last_key_value().is_none_or(|(before, _)| before < id));
        let Some((id, entry)) = entry else {
            return Err(Unreadable {
                line: number + 1,
                text: line.chars().take(80).collect(),
                first,
                last,
            });
        };
        entries.insert(id, entry);
    }
    Ok(entries)
}

fn parse_line(line: &str) -> Option<(u32, Entry)> {
    let mut words = line.split(' ');
    let id = words.next()?;
    let plain = id.bytes().all(|b| b.is_ascii_digit()) && !id.starts_with('0');
    let id = plain.then(|| id.parse().ok()).flatten()?;
    let digest = words.next()?;
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let gone = words.next().map(str::parse).transpose().ok()?;
    (digest.len() == 40 && digest.bytes().all(hex) && words.next().is_none()).then(|| {
        let digest = digest.to_owned();
        (id, Entry { digest, gone })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: &str = "a9993e364706816aba3e25717850c26c9cd0d89d";

    #[test]
    fn what_cannot_be_read_is_told() {
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
            let error = parse(0, &bad).unwrap_err().to_string();
            assert!(error.contains("numbers 1 to 4095, in order"), "{bad}: {error}");
        }
        assert!(parse(1, &format!("4096 {A}\n")).is_ok());
        assert!(parse(4095, &format!("16777214 {A}\n")).is_ok());
        assert!(parse(4095, &format!("16777215 {A}\n")).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ids in proptest::collection::btree_map(1u32..PART, proptest::option::of(0i64..4_000_000_000), 0..20)) {
            let entries: BTreeMap<_, _> = ids
                .into_iter()
                .map(|(id, gone)| (id, Entry {
                    digest: A.to_owned(),
                    gone: gone.map(|s| Timestamp::from_second(s).unwrap()),
                }))
                .collect();
            prop_assert_eq!(parse(0, &text(&entries)).unwrap(), entries);
        }
    }
}
