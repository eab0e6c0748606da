//! Label selectors, parsed strictly and comparable.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{Expression, SelectorExt as _};
use serde_json::Value;

/// A rejected selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A field of another type.
    #[error("{field} is not {expected}")]
    Type {
        /// Path of the field inside the selector; "the selector" for itself.
        field: String,
        /// Its type.
        expected: &'static str,
    },
    /// A field that selectors do not have.
    #[error("{field} is not a field of selectors")]
    UnknownField {
        /// Path of the field inside the selector.
        field: String,
    },
    /// An unknown operator.
    #[error("{field} {operator:?} is not In, NotIn, Exists or DoesNotExist")]
    Operator {
        /// Path of the field inside the selector.
        field: String,
        /// The value.
        operator: String,
    },
    /// `In` or `NotIn` without values.
    #[error("{field} is empty, but {operator} needs values")]
    NoValues {
        /// Path of the field inside the selector.
        field: String,
        /// The operator.
        operator: String,
    },
    /// `Exists` or `DoesNotExist` with values.
    #[error("{field} is not empty, but {operator} has no values")]
    SuperfluousValues {
        /// Path of the field inside the selector.
        field: String,
        /// The operator.
        operator: String,
    },
}

/// A `LabelSelector`: all its requirements have to be met. The default has none and matches all.
///
/// *Guarantees*: selectors with the same requirements are equal, regardless of their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabelSelector(BTreeSet<Expression>);

// === impl LabelSelector ===

impl LabelSelector {
    /// Parses the JSON of a `LabelSelector`. Invalid requirements are errors as in an API server: without them the
    /// selector matches more.
    pub fn parse(selector: &Value) -> Result<Self, SelectorError> {
        let fields = selector
            .as_object()
            .ok_or_else(|| type_error("the selector", "an object"))?;
        let mut expressions = BTreeSet::new();
        for (key, value) in fields {
            match key.as_str() {
                _ if value.is_null() => {}
                "matchLabels" => parse_labels(value, &mut expressions)?,
                "matchExpressions" => parse_expressions(value, &mut expressions)?,
                _ => return Err(SelectorError::UnknownField { field: key.clone() }),
            }
        }
        Ok(Self(expressions))
    }

    /// Whether these labels meet all requirements.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|expression| expression.matches(labels))
    }
}

fn type_error(field: &str, expected: &'static str) -> SelectorError {
    SelectorError::Type {
        field: field.to_owned(),
        expected,
    }
}

fn parse_labels(labels: &Value, expressions: &mut BTreeSet<Expression>) -> Result<(), SelectorError> {
    let labels = labels
        .as_object()
        .ok_or_else(|| type_error("matchLabels", "an object"))?;
    for (key, value) in labels {
        let text = value
            .as_str()
            .ok_or_else(|| type_error(&format!("matchLabels[{key:?}]"), "a string"))?;
        expressions.insert(Expression::Equal(key.clone(), text.to_owned()));
    }
    Ok(())
}

fn parse_expressions(list: &Value, expressions: &mut BTreeSet<Expression>) -> Result<(), SelectorError> {
    let list = list
        .as_array()
        .ok_or_else(|| type_error("matchExpressions", "a list"))?;
    for (index, requirement) in list.iter().enumerate() {
        expressions.insert(parse_expression(
            requirement,
            &format!("matchExpressions[{index}]"),
        )?);
    }
    Ok(())
}

fn parse_expression(requirement: &Value, path: &str) -> Result<Expression, SelectorError> {
    let fields = requirement
        .as_object()
        .ok_or_else(|| type_error(path, "an object"))?;
    if let Some(key) = fields
        .keys()
        .find(|key| !["key", "operator", "values"].contains(&key.as_str()))
    {
        return Err(SelectorError::UnknownField {
            field: format!("{path}.{key}"),
        });
    }
    let text = |key: &str| {
        fields
            .get(key)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| type_error(&format!("{path}.{key}"), "a string"))
    };
    let (key, operator) = (text("key")?, text("operator")?);
    let field = format!("{path}.values");
    let values = parse_values(fields.get("values"), &field)?;
    match operator.as_str() {
        "In" | "NotIn" if values.is_empty() => Err(SelectorError::NoValues { field, operator }),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            Err(SelectorError::SuperfluousValues { field, operator })
        }
        "In" => Ok(Expression::In(key, values)),
        "NotIn" => Ok(Expression::NotIn(key, values)),
        "Exists" => Ok(Expression::Exists(key)),
        "DoesNotExist" => Ok(Expression::DoesNotExist(key)),
        _ => Err(SelectorError::Operator {
            field: format!("{path}.operator"),
            operator,
        }),
    }
}

fn parse_values(values: Option<&Value>, field: &str) -> Result<BTreeSet<String>, SelectorError> {
    let Some(values) = values.filter(|values| !values.is_null()) else {
        return Ok(BTreeSet::new());
    };
    let texts = values.as_array().and_then(|list| {
        list.iter()
            .map(|value| value.as_str().map(str::to_owned))
            .collect()
    });
    texts.ok_or_else(|| type_error(field, "a list of strings"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_matched(selector: &Value, labels: &[(&str, &str)]) -> bool {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        LabelSelector::parse(selector).unwrap().matches(&labels)
    }

    #[test]
    fn all_requirements_have_to_be_met() {
        let web = [("app", "web"), ("tier", "front")];
        for (selector, expected) in [
            (json!({}), true),
            (json!({ "matchLabels": null, "matchExpressions": [] }), true),
            (json!({ "matchLabels": { "app": "web" } }), true),
            (json!({ "matchLabels": { "app": "web", "tier": "back" } }), false),
            (json!({ "matchLabels": { "absent": "" } }), false),
        ] {
            assert_eq!(is_matched(&selector, &web), expected, "{selector}");
        }
        for (operator, key, values, expected) in [
            ("In", "app", json!(["web", "db"]), true),
            ("In", "app", json!(["db"]), false),
            ("In", "absent", json!(["db"]), false),
            ("NotIn", "app", json!(["web"]), false),
            ("NotIn", "absent", json!(["web"]), true),
            ("Exists", "app", json!(null), true),
            ("Exists", "absent", json!([]), false),
            ("DoesNotExist", "absent", json!(null), true),
            ("DoesNotExist", "app", json!(null), false),
        ] {
            let selector =
                json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
            assert_eq!(is_matched(&selector, &web), expected, "{selector}");
        }
    }

    #[test]
    fn the_order_of_requirements_is_irrelevant() {
        let parse = |selector: Value| LabelSelector::parse(&selector).unwrap();
        let exists = |key: &str| json!({ "key": key, "operator": "Exists" });
        assert_eq!(
            parse(json!({ "matchExpressions": [exists("a"), exists("b")] })),
            parse(json!({ "matchExpressions": [exists("b"), exists("a"), exists("b")] }))
        );
    }

    #[test]
    fn invalid_selectors_are_rejected() {
        let expression = |e: Value| json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }, e] });
        for (selector, error) in [
            (json!(5), "the selector is not an object"),
            (json!({ "matchLabel": {} }), "matchLabel is not a field"),
            (json!({ "matchLabels": [] }), "matchLabels is not an object"),
            (
                json!({ "matchLabels": { "a": 1 } }),
                "matchLabels[\"a\"] is not a string",
            ),
            (
                json!({ "matchExpressions": {} }),
                "matchExpressions is not a list",
            ),
            (
                expression(json!({ "key": "a", "operator": "Like", "values": ["x"] })),
                "matchExpressions[1].operator \"Like\" is not In, NotIn, Exists or DoesNotExist",
            ),
            (
                expression(json!({ "key": "a", "operator": "In" })),
                "matchExpressions[1].values is empty, but In needs values",
            ),
            (
                expression(json!({ "key": "a", "operator": "Exists", "values": ["x"] })),
                "but Exists has no values",
            ),
            (
                expression(json!({ "key": "", "operator": "Exists" })),
                "matchExpressions[1].key is not a string",
            ),
            (
                expression(json!({ "key": "a", "operator": "In", "values": [1] })),
                "values is not a list of strings",
            ),
            (
                expression(json!({ "key": "a", "operator": "Exists", "x": 1 })),
                "matchExpressions[1].x is not a field",
            ),
        ] {
            let text = LabelSelector::parse(&selector).unwrap_err().to_string();
            assert!(text.contains(error), "{selector}: {text}");
        }
    }
}
