//! What docs/metrics.md says of the metrics that are declared.

use weir_daemon::metrics::Metrics;

use crate::read;

#[test]
fn the_metrics_of_the_document_are_those_that_are_declared() {
    let declared = Metrics::default();
    let rows = declared.declared().map(|metric| {
        let labels: Vec<_> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        format!(
            "| `{}` | {} | {} | {} |\n",
            metric.name,
            metric.kind.name(),
            labels.join(", "),
            metric.help
        )
    });
    let rows: String = rows.collect();
    let document = read("docs/metrics.md");
    let written = document.lines().filter(|line| line.starts_with("| `weir_"));
    let written: String = written.map(|line| format!("{line}\n")).collect();
    assert!(
        written == rows,
        "docs/metrics.md has other rows; those declared are:\n{rows}"
    );
}
