//! Claims of prefixes by clusters: the first one that announces a prefix owns it.
//!
//! Guarantees, for any announcements: prefixes of different clusters do not overlap; a claim ends with its
//! announcement or its cluster alone, after a delay, or by an administrator's allow-list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use mc_api::validation;

use crate::overlap::overlap;

/// The most claims of a cluster.
pub(super) const MAX_CLAIMS: usize = 512;
/// The time for which a member keeps a prefix that it no longer announces beside others: a Node may return.
pub(super) const RELEASE_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// The time for which a cluster that left keeps its prefixes: no other one gets them while its announce is replaced.
pub(super) const DEPARTED_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// The claims of all clusters, with the time of the last announcement where a claim is not announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PrefixClaims {
    clusters: BTreeMap<String, BTreeMap<IpNet, Option<Timestamp>>>,
}

/// The prefixes that a cluster announces.
#[derive(Clone, Debug)]
pub(super) struct Announcement<'a> {
    pub(super) cluster: &'a str,
    /// The creation of its export, by the leader's clock.
    pub(super) since: Option<Timestamp>,
    pub(super) prefixes: Vec<IpNet>,
}

/// The circumstances of a decision.
#[derive(Clone, Debug)]
pub(super) struct Rules<'a> {
    pub(super) now: Timestamp,
    /// The members; others left.
    pub(super) members: BTreeSet<&'a str>,
    /// The ranges reserved to a cluster, which may announce no others.
    pub(super) allowed: BTreeMap<String, Vec<IpNet>>,
}

/// The claims after a decision.
#[derive(Clone, Debug, Default)]
#[must_use]
pub(super) struct Decision {
    pub(super) claims: PrefixClaims,
    /// The refused prefixes of each cluster.
    pub(super) refused: BTreeMap<String, Vec<PrefixError>>,
    /// The time at which the next claim ends.
    pub(super) next: Option<Timestamp>,
}

/// The reason to refuse a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PrefixError {
    /// Another cluster owns a part of it.
    #[error("{prefix} overlaps {range}, which cluster {owner:?} announced first")]
    Taken {
        prefix: IpNet,
        range: IpNet,
        owner: String,
    },
    /// A part of it is in the allow-list of another cluster alone.
    #[error("{prefix} overlaps {range}, which is reserved to cluster {owner:?}")]
    Reserved {
        prefix: IpNet,
        range: IpNet,
        owner: String,
    },
    /// The allow-list of the cluster does not contain it.
    #[error("{prefix} is outside the ranges allowed to the cluster")]
    NotAllowed { prefix: IpNet },
    /// The cluster has too many.
    #[error("{prefix}: the cluster has {MAX_CLAIMS} prefixes already")]
    TooMany { prefix: IpNet },
}

/// A record that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordError {
    /// A malformed line.
    #[error("data[{cluster:?}], line {line}: {text:?} is not \"prefix [time]\"")]
    Line {
        cluster: String,
        line: usize,
        text: String,
    },
    /// Claims of two clusters overlap.
    #[error("data[{cluster:?}]: {prefix} overlaps {range} of cluster {owner:?}")]
    Overlap {
        cluster: String,
        prefix: IpNet,
        range: IpNet,
        owner: String,
    },
}

// === impl Rules ===

impl Rules<'_> {
    /// The reason for which the cluster may not have the prefix, independent of all claims.
    fn forbid(&self, cluster: &str, prefix: IpNet) -> Option<PrefixError> {
        if let Some(allowed) = self.allowed.get(cluster) {
            let inside = allowed.iter().any(|range| range.contains(&prefix));
            return (!inside).then_some(PrefixError::NotAllowed { prefix });
        }
        let reserved = self.allowed.iter().find_map(|(owner, ranges)| {
            let range = ranges.iter().find(|range| overlap(**range, prefix))?;
            Some((owner.clone(), *range))
        });
        reserved.map(|(owner, range)| PrefixError::Reserved { prefix, range, owner })
    }
}

// === impl PrefixClaims ===

impl PrefixClaims {
    /// Decides on all announcements: existing claims first, then the oldest announcement.
    pub(super) fn decide(&self, mut announcements: Vec<Announcement<'_>>, rules: &Rules<'_>) -> Decision {
        announcements.sort_by_key(|announcement| (announcement.since, announcement.cluster));
        let (mut claims, next) = self.kept(&announcements, rules);
        let mut refused: BTreeMap<String, Vec<PrefixError>> = BTreeMap::new();
        for Announcement {
            cluster, prefixes, ..
        } in &announcements
        {
            for prefix in prefixes {
                let claimed = match rules.forbid(cluster, *prefix) {
                    Some(error) => Err(error),
                    None => claims.claim(cluster, *prefix),
                };
                if let Err(error) = claimed {
                    refused.entry((*cluster).to_owned()).or_default().push(error);
                }
            }
        }
        Decision {
            claims,
            refused,
            next,
        }
    }

    /// The claims that have not ended, and the time at which the next one does.
    fn kept(&self, announcements: &[Announcement<'_>], rules: &Rules<'_>) -> (Self, Option<Timestamp>) {
        let announced: BTreeMap<&str, &[IpNet]> = announcements
            .iter()
            .map(|announcement| (announcement.cluster, announcement.prefixes.as_slice()))
            .collect();
        let (mut kept, mut next) = (Self::default(), None::<Timestamp>);
        for (cluster, prefixes) in &self.clusters {
            let is_member = rules.members.contains(cluster.as_str());
            let current = announced.get(cluster.as_str());
            for (prefix, since) in prefixes {
                if rules.forbid(cluster, *prefix).is_some() {
                    continue;
                }
                let is_announced = current.is_some_and(|all| all.iter().any(|range| range.contains(prefix)));
                let delay = match current {
                    _ if is_announced => None,
                    Some(_) => Some(RELEASE_AFTER),
                    // A member without gateways announces nothing.
                    None if is_member => None,
                    None => Some(DEPARTED_AFTER),
                };
                let since = delay.map(|delay| (since.unwrap_or(rules.now).min(rules.now), delay));
                if let Some((since, delay)) = since {
                    let end = since.checked_add(delay).unwrap_or(rules.now);
                    if end <= rules.now {
                        // The parts that the cluster still announces remain.
                        let parts = current.into_iter().flat_map(|all| all.iter());
                        for part in parts.filter(|part| prefix.contains(*part)) {
                            kept.insert(cluster, *part, None);
                        }
                        continue;
                    }
                    next = Some(next.map_or(end, |next| next.min(end)));
                }
                kept.insert(cluster, *prefix, since.map(|(since, _)| since));
            }
        }
        (kept, next)
    }

    fn insert(&mut self, cluster: &str, prefix: IpNet, since: Option<Timestamp>) {
        let claims = self.clusters.entry(cluster.to_owned()).or_default();
        claims.insert(prefix, since);
    }

    fn claim(&mut self, cluster: &str, prefix: IpNet) -> Result<(), PrefixError> {
        if self.is_owned(cluster, prefix) {
            return Ok(());
        }
        for (owner, ranges) in self.clusters.iter().filter(|(owner, _)| *owner != cluster) {
            if let Some(range) = ranges.keys().find(|range| overlap(**range, prefix)) {
                let (range, owner) = (*range, owner.clone());
                return Err(PrefixError::Taken { prefix, range, owner });
            }
        }
        let own = self.clusters.entry(cluster.to_owned()).or_default();
        let within = own.keys().filter(|range| prefix.contains(*range)).count();
        if own.len().saturating_sub(within) >= MAX_CLAIMS {
            return Err(PrefixError::TooMany { prefix });
        }
        own.retain(|range, _| !prefix.contains(range));
        own.insert(prefix, None);
        Ok(())
    }

    /// All claims with their clusters.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let clusters = self.clusters.iter();
        clusters.flat_map(|(cluster, claims)| claims.keys().map(|prefix| (cluster.as_str(), *prefix)))
    }

    /// Whether a claim of the cluster contains the prefix.
    pub(super) fn is_owned(&self, cluster: &str, prefix: IpNet) -> bool {
        let claims = self.clusters.get(cluster);
        claims.is_some_and(|claims| claims.keys().any(|claim| claim.contains(&prefix)))
    }

    /// The claims of the cluster within a prefix.
    pub(super) fn within(&self, cluster: &str, prefix: IpNet) -> Vec<IpNet> {
        let claims = self.clusters.get(cluster).into_iter().flat_map(BTreeMap::keys);
        claims.filter(|claim| prefix.contains(*claim)).copied().collect()
    }

    /// The addresses in both.
    #[must_use]
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::default();
        for (cluster, claims) in &self.clusters {
            let others = other.clusters.get(cluster).into_iter().flat_map(BTreeMap::keys);
            for (theirs, ours) in others.flat_map(|theirs| claims.keys().map(move |ours| (theirs, ours))) {
                if theirs.contains(ours) {
                    both.insert(cluster, *ours, None);
                } else if ours.contains(theirs) {
                    both.insert(cluster, *theirs, None);
                }
            }
        }
        both
    }

    /// Whether a cluster has a claim.
    #[must_use]
    pub(super) fn has(&self, cluster: &str) -> bool {
        self.clusters.contains_key(cluster)
    }

    /// These claims and the others that they do not contain.
    #[must_use]
    pub(super) fn union(mut self, others: &Self) -> Self {
        for (cluster, prefix) in others.iter() {
            if !self.is_owned(cluster, prefix) {
                self.insert(cluster, prefix, None);
            }
        }
        self
    }

    /// The claims of clusters that announce these prefixes already.
    pub(super) fn of_announced<'a>(announced: impl IntoIterator<Item = (&'a str, Vec<IpNet>)>) -> Self {
        let clusters = announced.into_iter().map(|(cluster, prefixes)| {
            let claims = prefixes.into_iter().map(|prefix| (prefix, None));
            (cluster.to_owned(), claims.collect())
        });
        Self {
            clusters: clusters.collect(),
        }
    }

    /// The record: of each cluster a line for each prefix.
    #[must_use]
    pub(super) fn format(&self) -> BTreeMap<String, String> {
        let clusters = self.clusters.iter().filter(|(_, claims)| !claims.is_empty());
        let lines = |claims: &BTreeMap<IpNet, Option<Timestamp>>| {
            claims.iter().fold(String::new(), |mut text, (prefix, since)| {
                let since = since.map(|at| format!(" {at}")).unwrap_or_default();
                let written = writeln!(text, "{prefix}{since}");
                debug_assert!(written.is_ok(), "{written:?}");
                text
            })
        };
        clusters
            .map(|(cluster, claims)| (cluster.clone(), lines(claims)))
            .collect()
    }

    /// Parses a record.
    ///
    /// # Errors
    /// The first malformed line, else the first overlap of two clusters.
    pub(super) fn parse(data: &BTreeMap<String, String>) -> Result<Self, RecordError> {
        let mut clusters: BTreeMap<String, BTreeMap<IpNet, Option<Timestamp>>> = BTreeMap::new();
        for (cluster, text) in data {
            for (i, line) in text.lines().enumerate() {
                let (prefix, since) = parse_line(line).ok_or_else(|| RecordError::Line {
                    cluster: cluster.clone(),
                    line: i.saturating_add(1),
                    text: line.chars().take(80).collect(),
                })?;
                clusters.entry(cluster.clone()).or_default().insert(prefix, since);
            }
        }
        let claims = Self { clusters };
        claims.first_overlap().map_or(Ok(claims), Err)
    }

    /// The first overlap of two clusters.
    fn first_overlap(&self) -> Option<RecordError> {
        let clusters = self.clusters.iter();
        let mut all: Vec<(IpNet, &str)> = clusters
            .flat_map(|(cluster, claims)| claims.keys().map(|prefix| (prefix.trunc(), cluster.as_str())))
            .collect();
        all.sort_unstable_by_key(|(prefix, _)| (prefix.network(), prefix.prefix_len()));
        // The prefixes that contain the current one, the longest last.
        let mut outer: Vec<(IpNet, &str)> = vec![];
        for (prefix, cluster) in all {
            while outer.pop_if(|(range, _)| !range.contains(&prefix)).is_some() {}
            if let Some((range, owner)) = outer.iter().find(|(_, owner)| *owner != cluster) {
                return Some(RecordError::Overlap {
                    cluster: cluster.to_owned(),
                    prefix,
                    range: *range,
                    owner: (*owner).to_owned(),
                });
            }
            outer.push((prefix, cluster));
        }
        None
    }
}

fn parse_line(line: &str) -> Option<(IpNet, Option<Timestamp>)> {
    let mut words = line.split(' ');
    let prefix = validation::cidr(words.next()?).ok()?;
    let since = words.next().map(str::parse).transpose().ok()?;
    words.next().is_none().then_some((prefix, since))
}

#[cfg(test)]
mod tests;
