//! Annotations of ours with a new key, compatible with the previous release for one version.

use std::collections::BTreeMap;

use kube::{Resource, ResourceExt as _};

/// An annotation that this version writes under both keys and reads under either.
///
/// The previous release knows the previous key only, so a leader and a member of different versions understand each
/// other, and a downgrade finds its own key. Where the two values differ the previous key counts: both versions write
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenamedAnnotation {
    /// The key of this version.
    pub key: &'static str,
    /// The key of the previous release.
    pub previous: &'static str,
}

impl RenamedAnnotation {
    /// Both keys, the new one first.
    #[must_use]
    pub const fn keys(&self) -> [&'static str; 2] {
        [self.key, self.previous]
    }

    /// The value, from the previous key if present.
    #[must_use]
    pub fn get<'a>(&self, object: &'a impl Resource) -> Option<&'a str> {
        let annotations = object.annotations();
        annotations
            .get(self.previous)
            .or_else(|| annotations.get(self.key))
            .map(String::as_str)
    }

    /// The keys whose value differs from `wanted`, with `wanted`: the change that makes both equal to it.
    pub fn changes<'a>(
        self,
        object: &impl Resource,
        wanted: Option<&'a str>,
    ) -> impl Iterator<Item = (&'static str, Option<&'a str>)> {
        let annotations = object.annotations();
        self.keys()
            .map(|key| (key, annotations.get(key).map(String::as_str) != wanted))
            .into_iter()
            .filter_map(move |(key, differs)| differs.then_some((key, wanted)))
    }

    /// Both keys with one value, for a new object.
    #[must_use]
    pub fn entries(&self, value: &str) -> BTreeMap<String, String> {
        self.keys().map(|key| (key.to_owned(), value.to_owned())).into()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    const RENAMED: RenamedAnnotation = RenamedAnnotation {
        key: "example/new",
        previous: "example/old",
    };

    fn object(annotations: &[(&str, &str)]) -> ConfigMap {
        let mut object = ConfigMap::default();
        let entries = annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        object.metadata.annotations = Some(entries.collect());
        object
    }

    #[test]
    fn either_key_is_read_and_the_previous_one_counts() {
        assert_eq!(RENAMED.get(&object(&[])), None);
        assert_eq!(RENAMED.get(&object(&[("example/new", "a")])), Some("a"));
        assert_eq!(RENAMED.get(&object(&[("example/old", "b")])), Some("b"));
        let both = object(&[("example/new", "a"), ("example/old", "b")]);
        assert_eq!(RENAMED.get(&both), Some("b"));
    }

    #[test]
    fn a_change_covers_both_keys_and_nothing_that_is_equal() {
        let changes = |annotations: &[(&str, &str)], wanted| {
            let object = object(annotations);
            RENAMED.changes(&object, wanted).collect::<Vec<_>>()
        };
        let both = [("example/new", Some("a")), ("example/old", Some("a"))];
        assert_eq!(changes(&[], Some("a")), both);
        assert_eq!(changes(&[("example/old", "a")], Some("a")), both[..1]);
        let equal = [("example/new", "a"), ("example/old", "a")];
        assert_eq!(changes(&equal, Some("a")), []);
        assert_eq!(
            changes(&equal, None),
            [("example/new", None), ("example/old", None)]
        );
    }
}
