//! Rows of a report that is on disk, of one unit, as a picture with a bar for each.

use std::{fs, path::PathBuf};

use anyhow::{Context, anyhow, ensure};
use plotters::prelude::*;
use serde::Deserialize;

/// Arguments of `weir-bench bars`.
#[derive(clap::Args)]
pub struct BarsArgs {
    /// A file that another command wrote with --json.
    rows: PathBuf,
    /// Draw the rows of this unit.
    #[arg(long, value_name = "UNIT")]
    unit: String,
    /// Of these, only rows whose names hold one of these texts; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// What stands above the bars.
    #[arg(long, default_value = "", value_name = "TEXT")]
    title: String,
    /// Write the picture to this file.
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
}

#[derive(Deserialize)]
struct Rows {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    value: f64,
    unit: String,
    min: f64,
    max: f64,
    ratio: Option<f64>,
}

/// Colours that the colour-blind tell apart (Okabe and Ito): weir's rows, and what they are
/// compared with.
const OURS: RGBColor = RGBColor(0, 114, 178);
const OTHERS: RGBColor = RGBColor(230, 159, 0);
/// Words of rows that are not of weir.
const NOT_OURS: [&str; 9] = [
    "bare",
    "unconditional",
    "none",
    "direct",
    "pen",
    "haproxy",
    "nginx",
    "AF_PACKET",
    "without pools",
];

/// Draws the picture.
pub fn run(args: &BarsArgs) -> anyhow::Result<()> {
    let shown = args.rows.display();
    let text = fs::read_to_string(&args.rows).with_context(|| format!("read {shown}"))?;
    let rows: Rows = serde_json::from_str(&text).with_context(|| format!("{shown}"))?;
    let is_wanted = |row: &Row| {
        let named = args
            .only
            .iter()
            .any(|text| row.name.contains(text.as_str()));
        row.unit == args.unit && (args.only.is_empty() || named)
    };
    let rows: Vec<_> = rows.rows.into_iter().filter(is_wanted).collect();
    ensure!(
        !rows.is_empty(),
        "{shown} has no such row of unit {}",
        args.unit
    );
    draw(args, &rows).map_err(|error| anyhow!("draw {}: {error}", args.svg.display()))
}

/// Bars from the top to the bottom, names at their left, least and greatest as a line.
fn draw(args: &BarsArgs, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    const HEAD: u32 = 44;
    let size = (1000, HEAD + 76 + 26 * rows.len() as u32);
    let area = SVGBackend::new(&args.svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.margin(8, 0, 0, 0);
    let longest = rows.iter().map(|row| row.max);
    let longest = longest.fold(f64::MIN_POSITIVE, f64::max);
    let (head, body) = area.split_vertically(HEAD);
    head.titled(&args.title, ("sans-serif", 20))?;
    let mut chart = ChartBuilder::on(&body)
        .margin(12)
        .margin_top(0)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(300)
        .build_cartesian_2d(0.0..longest * 1.25, 0.0..rows.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(&args.unit)
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    let font = ("sans-serif", 15).into_font();
    for (number, row) in rows.iter().enumerate() {
        let top = (rows.len() - number) as f64;
        let is_ours = !NOT_OURS.iter().any(|word| row.name.contains(word));
        let colour = if is_ours { OURS } else { OTHERS };
        let bar = [(0.0, top - 0.85), (row.value.max(0.0), top - 0.15)];
        chart.draw_series([Rectangle::new(bar, colour.filled())])?;
        let spread = [(row.min, top - 0.5), (row.max, top - 0.5)];
        chart.draw_series([PathElement::new(spread, BLACK.stroke_width(1))])?;
        let (x, y) = chart.backend_coord(&(row.max.max(0.0), top - 0.5));
        let figure = match row.ratio {
            Some(ratio) => format!("{:.3} ({ratio:.2})", row.value),
            None => format!("{:.3}", row.value),
        };
        body.draw(&Text::new(figure, (x + 6, y - 52), font.clone()))?;
        body.draw(&Text::new(row.name.as_str(), (14, y - 52), font.clone()))?;
    }
    area.present()?;
    Ok(())
}
