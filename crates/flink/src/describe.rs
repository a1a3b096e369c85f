//! What a connector's tables take, as a resource for Java: its options and metadata columns, one a line.
//!
//! Java declares none of them. A line is `option`, key, type, default, `map` or nothing, earlier keys separated by spaces,
//! and the text; or `metadata`, key, type, `r`, `w` or `rw`, and the text; with tabs between. The first line is
//! `connector`, its name, and `formatted` or `typed`, and `lookups` or nothing. An option that only one use of a table needs
//! is not `required` there: Flink would ask for it in every statement.

use aqueduct_connector::table::{TableFactory, UsedBy};

/// How a declaration says that there is no default.
const REQUIRED: &str = "required";

/// The resource of one connector.
pub(crate) fn resource(factory: &dyn TableFactory) -> String {
    let mut lines = vec![
        [
            "connector",
            factory.connector(),
            if factory.formatted() {
                "formatted"
            } else {
                "typed"
            },
            if factory.lookups() { "lookups" } else { "" },
        ]
        .join("\t"),
    ];
    for option in factory.options() {
        let declared = option.declaration;
        let default = match (declared.default.as_str(), option.used_by) {
            (REQUIRED, UsedBy::Scan) => "none, needed to read",
            (REQUIRED, UsedBy::Lookup) => "none, needed to look up",
            (REQUIRED, UsedBy::Sink) => "none, needed to write",
            (default, _) => default,
        };
        lines.push(
            [
                "option",
                declared.key,
                declared.kind,
                default,
                if option.map { "map" } else { "" },
                &declared.deprecated.join(" "),
                declared.doc,
            ]
            .map(|part| part.replace(['\t', '\n'], " "))
            .join("\t"),
        );
    }
    for column in factory.metadata() {
        let access = match (column.readable, column.writable) {
            (true, true) => "rw",
            (true, false) => "r",
            (false, _) => "w",
        };
        lines.push(["metadata", column.key, column.ty, access, column.doc].join("\t"));
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Where the Java build takes them from: beside the class of the connector's factory.
    fn path(connector: &str) -> PathBuf {
        let folder = match connector {
            crate::probe::CONNECTOR => "test/resources/io/aqueduct/flink/probe",
            "bigtable" => "main/resources/io/aqueduct/flink/bigtable",
            _ => "main/resources/io/aqueduct/flink/pubsub",
        };
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../flink/core/src")
            .join(folder)
            .join("table.tsv")
    }

    #[test]
    fn the_resources_in_the_jars_are_what_the_declarations_say() {
        for connector in ["bigtable", "pubsub", crate::probe::CONNECTOR] {
            let text = resource(crate::plan::factory(connector).expect("there"));
            let path = path(connector);
            if std::env::var_os("AQUEDUCT_WRITE").is_some() {
                std::fs::write(&path, &text).expect("writable");
            }
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == text,
                "{} is not what the options of '{connector}' say; write it anew with \
                 AQUEDUCT_WRITE=1 cargo test -p aqueduct-flink resources",
                path.display()
            );
        }
    }
}
