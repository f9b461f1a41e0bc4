//! Metrics as text, in Prometheus' exposition format 0.0.4: each family with its
//! help and kind, without time stamps, so that it is also a file for
//! node_exporter's textfile collector.

use std::fmt::{self, Write};

use crate::{Metric, Value};

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes metrics as text.
pub fn text(metrics: &[Metric]) -> String {
    let mut text = String::new();
    for metric in metrics {
        write(&mut text, metric).expect("a string takes all");
    }
    text
}

fn write(out: &mut String, metric: &Metric) -> fmt::Result {
    let name = metric.name;
    out.write_str("# HELP ")?;
    out.write_str(name)?;
    out.write_char(' ')?;
    escape(out, metric.help, false)?;
    writeln!(out, "\n# TYPE {name} {}", metric.kind.name())?;
    for sample in &metric.samples {
        out.write_str(name)?;
        for (n, (label, value)) in sample.labels.iter().enumerate() {
            out.write_char(if n == 0 { '{' } else { ',' })?;
            write!(out, "{label}=\"")?;
            escape(out, value, true)?;
            out.write_char('"')?;
        }
        if !sample.labels.is_empty() {
            out.write_char('}')?;
        }
        match sample.value {
            Value::Whole(value) => writeln!(out, " {value}")?,
            Value::Real(value) if value == f64::INFINITY => out.write_str(" +Inf\n")?,
            Value::Real(value) if value == f64::NEG_INFINITY => out.write_str(" -Inf\n")?,
            Value::Real(value) => writeln!(out, " {value}")?,
        }
    }
    Ok(())
}

/// What the format would take for its own.
fn escape(out: &mut String, text: &str, is_label: bool) -> fmt::Result {
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '"' if is_label => out.write_str("\\\"")?,
            c => out.write_char(c)?,
        }
    }
    Ok(())
}
