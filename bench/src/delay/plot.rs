//! The two pictures, as SVG: latency by rate of new flows, and what
//! a path adds to a new flow beside the paper's figures.

use std::path::Path;

use anyhow::anyhow;
use plotters::{coord::Shift, prelude::*};

use super::{
    Shown,
    measure::Part,
    table::{self, KINDS, rate_name},
};

const SIZE: (u32, u32) = (1100, 560);
/// The paper's D_g at 30,000 pps, µs.
const PAPER_DELAY: f64 = 24.6;
/// The rate from which on it lost packets.
const PAPER_CEILING: f64 = 62_637.0;

/// Colours that the colour-blind tell apart (Okabe and Ito), paths in turn.
const COLOURS: [RGBColor; 8] = [
    RGBColor(120, 120, 120),
    RGBColor(180, 180, 180),
    RGBColor(240, 228, 66),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
];

/// Bars that are neither the paper's nor weir's.
const OTHERS: RGBColor = RGBColor(214, 214, 214);

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws what there is into `dir`.
pub fn draw(shown: &Shown, dir: &Path) -> anyhow::Result<()> {
    let has = |part| shown.points.iter().any(|point| point.part == part);
    if has(Part::Load) {
        picture(dir, "latency-by-rate", |area| by_rate(shown, area))?;
    }
    if has(Part::Idle) {
        picture(dir, "added", |area| added(shown, area))?;
    }
    Ok(())
}

fn picture(
    dir: &Path,
    name: &str,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn,
) -> anyhow::Result<()> {
    let file = dir.join(format!("{name}.svg"));
    draw(&SVGBackend::new(&file, SIZE).into_drawing_area())
        .map_err(|error| anyhow!("draw {name}: {error}"))
}

/// UDP p50, a curve a path; rates stand at equal distances.
fn by_rate<B: DrawingBackend>(shown: &Shown, area: &DrawingArea<B, Shift>) -> Drawn
where
    B::ErrorType: 'static,
{
    let points = &shown.points;
    let rates = table::rates(points, Part::Load);
    let (_, kind) = KINDS[1];
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(
            "First datagram of an allowed client and its answer, p50, beside new flows",
            ("sans-serif", 19),
        )
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(
            0.0..(rates.len() as f64 - 1.0) * 1.45,
            (8.0f64..300_000.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc("new flows a second (limit: as many as the generator gives)")
        .y_desc("µs")
        .x_labels(rates.len() * 2)
        .x_label_formatter(&|x| {
            let whole = (x - x.round()).abs() < 1e-6;
            let rate = rates.get(x.round() as usize).filter(|_| whole);
            rate.map_or(String::new(), |rate| rate_name(*rate))
        })
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    for (number, path) in table::groups(points, Part::Load, rates[0])
        .iter()
        .enumerate()
    {
        let curve: Vec<(f64, f64)> = rates
            .iter()
            .enumerate()
            .filter_map(|(x, rate)| {
                let groups = table::groups(points, Part::Load, *rate);
                let group = groups.iter().find(|group| group.path == path.path)?;
                let p50 = group.median(|p| kind(p).map_or(f64::NAN, |l| l.p50))?;
                p50.is_finite().then_some((x as f64, p50))
            })
            .collect();
        let colour = COLOURS[number % COLOURS.len()];
        // A second turn through the colours has thin lines.
        let style = colour.stroke_width(if number < COLOURS.len() { 3 } else { 1 });
        chart
            .draw_series(LineSeries::new(curve.iter().copied(), style))?
            .label(path.path)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        chart.draw_series(
            curve
                .into_iter()
                .map(|at| Circle::new(at, 3, colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}

/// Left what a path adds, right the rate from which on it loses.
fn added<B: DrawingBackend>(shown: &Shown, area: &DrawingArea<B, Shift>) -> Drawn
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 * 6 / 10);
    let mut bars: Vec<(String, f64)> = vec![("paper (D_g)".into(), PAPER_DELAY)];
    for group in table::groups(&shown.points, Part::Idle, Some(0)) {
        if group.path == "nothing" {
            continue;
        }
        for (name, kind) in KINDS {
            let added = group.added(|p| kind(p).map_or(f64::NAN, |l| l.p50));
            let added = added.filter(|added| added.is_finite()).unwrap_or(0.0);
            bars.push((format!("{}, {name}", group.path), added));
        }
    }
    horizontal(&left, "Added to a new flow, p50, µs", &bars, 1)?;
    let points = &shown.points;
    let mut bars = vec![("paper".to_owned(), PAPER_CEILING / 1e3)];
    if let Some(first) = table::rates(points, Part::Load).first() {
        for path in table::groups(points, Part::Load, *first) {
            let Some((highest, loses)) = table::ceiling_of(points, path.path) else {
                continue;
            };
            let limit = table::groups(points, Part::Load, None)
                .into_iter()
                .find(|group| group.path == path.path)
                .and_then(|group| group.median(|p| p.handled_rate()));
            let (word, rate) = match (loses, limit) {
                (false, Some(rate)) => ("handled, no loss", rate),
                _ => ("loses above", f64::from(highest.unwrap_or(0))),
            };
            bars.push((format!("{}: {word}", path.path), rate / 1e3));
        }
    }
    horizontal(&right, "New flows a second, thousands", &bars, 0)?;
    area.present()?;
    Ok(())
}

/// Bars from the top to the bottom with their names and values in them.
fn horizontal<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    bars: &[(String, f64)],
    digits: usize,
) -> Drawn
where
    B::ErrorType: 'static,
{
    let longest = bars.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let least = bars.iter().map(|(_, value)| *value).fold(0.0, f64::min);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(30)
        .build_cartesian_2d(least..longest * 1.35, 0.0..bars.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (number, (name, value)) in bars.iter().enumerate() {
        let top = (bars.len() - number) as f64;
        let colour = if name.starts_with("paper") {
            COLOURS[7]
        } else if name.starts_with("weir") {
            COLOURS[4]
        } else {
            OTHERS
        };
        chart.draw_series([Rectangle::new(
            [(0.0, top - 0.85), (*value, top - 0.15)],
            colour.filled(),
        )])?;
        chart.draw_series([Text::new(
            format!("{name}  {value:.digits$}"),
            (longest * 0.01, top - 0.25),
            ("sans-serif", 13).into_font(),
        )])?;
    }
    Ok(())
}
