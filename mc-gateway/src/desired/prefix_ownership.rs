//! Who owns which prefix: the first claim wins, and overlapping ones are refused.

use ipnet::IpNet;

use crate::cidr::{overlaps, parse_prefix};
use crate::objects::FieldError;

/// Prefixes already given away, each with whom it belongs to.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefixOwners {
    owners: Vec<(IpNet, String)>,
}

impl PrefixOwners {
    /// Gives `prefix` to `owner` without asking.
    pub(super) fn assign(&mut self, prefix: IpNet, owner: &str) {
        self.owners.push((prefix, owner.to_owned()));
    }

    /// Takes back what [`Self::claim`] gave.
    pub(super) fn release(&mut self, prefix: IpNet, owner: &str) {
        self.owners
            .retain(|(taken, by)| !(*taken == prefix && by == owner));
    }

    /// Who else owns part of `prefix`, and which part.
    pub(super) fn conflict(&self, prefix: IpNet, owner: &str) -> Option<&(IpNet, String)> {
        self.owners
            .iter()
            .find(|(taken, by)| by != owner && overlaps(*taken, prefix))
    }

    /// Parses `text` and gives it to `owner`, or says why not.
    pub(super) fn parse_and_assign(
        &mut self,
        owner: &str,
        field: &str,
        text: &str,
        rejected: &mut Vec<FieldError>,
    ) -> Option<IpNet> {
        let result = parse_prefix(text)
            .map_err(|error| error.to_string())
            .and_then(|prefix| match self.conflict(prefix, owner) {
                Some((taken, by)) => Err(format!("overlaps {taken} of {by}")),
                None => Ok(prefix),
            });
        match result {
            Ok(prefix) => {
                self.assign(prefix, owner);
                Some(prefix)
            }
            Err(reason) => {
                rejected.push(FieldError {
                    object: owner.to_owned(),
                    field: field.to_owned(),
                    value: text.to_owned(),
                    reason,
                });
                None
            }
        }
    }
}
