//! Who owns which prefix: the first claim wins, and overlapping ones are refused.

use ipnet::IpNet;

use crate::cidr::{overlaps, parse_prefix};
use crate::objects::Refusal;

/// Prefixes already given away, each with whom it belongs to.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    taken: Vec<(IpNet, String)>,
}

impl Claims {
    /// Gives `prefix` to `owner` without asking.
    pub(super) fn take(&mut self, prefix: IpNet, owner: &str) {
        self.taken.push((prefix, owner.to_owned()));
    }

    /// Takes back what [`Self::claim`] gave.
    pub(super) fn release(&mut self, prefix: IpNet, owner: &str) {
        self.taken
            .retain(|(taken, by)| !(*taken == prefix && by == owner));
    }

    /// Who else owns part of `prefix`, and which part.
    pub(super) fn conflict(&self, prefix: IpNet, owner: &str) -> Option<&(IpNet, String)> {
        self.taken
            .iter()
            .find(|(taken, by)| by != owner && overlaps(*taken, prefix))
    }

    /// Parses `text` and gives it to `owner`, or says why not.
    pub(super) fn claim(
        &mut self,
        owner: &str,
        field: &str,
        text: &str,
        refusals: &mut Vec<Refusal>,
    ) -> Option<IpNet> {
        let result = parse_prefix(text)
            .map_err(|error| error.to_string())
            .and_then(|prefix| match self.conflict(prefix, owner) {
                Some((taken, by)) => Err(format!("overlaps {taken} of {by}")),
                None => Ok(prefix),
            });
        match result {
            Ok(prefix) => {
                self.take(prefix, owner);
                Some(prefix)
            }
            Err(reason) => {
                refusals.push(Refusal {
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
