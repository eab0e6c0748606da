//! Tables as aligned text, JSON or YAML. Pure.

use clap::ValueEnum;
use serde_json::{Map, Value};

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One object: a list of objects by section.
    Json,
    /// The same in YAML.
    Yaml,
}

/// Rows under named columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Name of the section.
    pub name: &'static str,
    /// Names of the columns, as in JSON.
    pub columns: &'static [&'static str],
    /// One value per column.
    pub rows: Vec<Vec<Value>>,
}

/// All tables in one text that ends with a line feed.
pub(super) fn render(tables: &[Table], format: Format) -> Result<String, String> {
    match format {
        Format::Table => {
            let titled = tables.len() > 1;
            let texts: Vec<String> = tables.iter().map(|table| aligned_text(table, titled)).collect();
            Ok(texts.join("\n"))
        }
        Format::Json => {
            let mut text =
                serde_json::to_string_pretty(&document(tables)).map_err(|error| error.to_string())?;
            text.push('\n');
            Ok(text)
        }
        Format::Yaml => serde_yaml_ng::to_string(&document(tables)).map_err(|error| error.to_string()),
    }
}

fn document(tables: &[Table]) -> Value {
    let sections = tables.iter().map(|table| {
        let rows = table.rows.iter().map(|row| {
            let columns = table.columns.iter().map(|column| (*column).to_owned());
            Value::Object(columns.zip(row.iter().cloned()).collect::<Map<_, _>>())
        });
        (table.name.to_owned(), Value::Array(rows.collect()))
    });
    Value::Object(sections.collect())
}

fn aligned_text(table: &Table, titled: bool) -> String {
    let header: Vec<String> = table
        .columns
        .iter()
        .map(|column| column.to_uppercase().replace('_', " "))
        .collect();
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(format_cell).collect())
        .collect();
    let mut widths: Vec<usize> = header.iter().map(String::len).collect();
    for row in &rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = (*width).max(text.chars().count());
        }
    }
    let mut lines = Vec::new();
    if titled {
        lines.push(format!("== {}", table.name));
    }
    for row in std::iter::once(&header).chain(&rows) {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(text, width)| format!("{text:<width$}"));
        lines.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}

fn format_cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(format_cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table() -> Table {
        Table {
            name: "peers",
            columns: &["address", "roles", "rtt_us"],
            rows: vec![
                vec![json!("192.0.2.1"), json!(["node", "gateway"]), json!(null)],
                vec![json!("fd00::1"), json!([]), json!(1.5)],
            ],
        }
    }

    #[test]
    fn columns_are_aligned_and_an_empty_cell_is_a_dash() {
        let text = render(&[table()], Format::Table).unwrap();
        assert_eq!(
            text,
            "ADDRESS    ROLES          RTT US\n192.0.2.1  node, gateway  -\nfd00::1    -              1.5\n"
        );
        assert!(
            render(&[table(), table()], Format::Table)
                .unwrap()
                .starts_with("== peers\n")
        );
    }

    #[test]
    fn json_and_yaml_have_equal_values() {
        let json: Value = serde_json::from_str(&render(&[table()], Format::Json).unwrap()).unwrap();
        let yaml: Value = serde_yaml_ng::from_str(&render(&[table()], Format::Yaml).unwrap()).unwrap();
        assert_eq!(json, yaml);
        assert_eq!(json["peers"][0]["roles"][1], "gateway");
        assert_eq!(json["peers"][1]["rtt_us"], 1.5);
    }
}
