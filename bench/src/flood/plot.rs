//! The curves of a run over time, like the thesis's figures, as SVG. Its font is
//! that of who looks at it: a server has none.

use std::path::Path;

use anyhow::anyhow;
use plotters::{coord::Shift, prelude::*};

use super::measure::{Outcome, Sample};

const SIZE: (u32, u32) = (1100, 520);
/// Intervals shorter than this share of a second make no rate.
const SHORTEST: f64 = 0.1;

/// One curve: its name, colour, width, and what it counts.
struct Curve {
    name: &'static str,
    colour: RGBColor,
    width: u32,
    count: fn(&Sample) -> f64,
}

/// From the bottom to the top; colours that the colour-blind tell apart
/// (Okabe and Ito).
const CURVES: [Curve; 5] = [
    Curve {
        name: "unwanted, sent",
        colour: RGBColor(170, 170, 170),
        width: 3,
        count: |s| s.unwanted as f64,
    },
    Curve {
        name: "ideal drop",
        colour: RGBColor(230, 159, 0),
        width: 3,
        count: |s| s.ideal,
    },
    Curve {
        name: "unwanted, dropped",
        colour: RGBColor(213, 94, 0),
        width: 2,
        count: |s| s.dropped as f64,
    },
    Curve {
        name: "unwanted, reached the server",
        colour: RGBColor(0, 114, 178),
        width: 2,
        count: |s| s.received as f64,
    },
    Curve {
        name: "wanted, answered",
        colour: RGBColor(0, 158, 115),
        width: 2,
        count: |s| s.answered as f64,
    },
];

/// Draws a run into `dir`, the file named after it.
pub fn draw(outcome: &Outcome, dir: &Path) -> anyhow::Result<()> {
    let file = dir.join(format!("{}.svg", outcome.name.replace(' ', "-")));
    curves(outcome, &SVGBackend::new(&file, SIZE).into_drawing_area())
        .map_err(|error| anyhow!("draw {}: {error}", outcome.name))
}

/// Counts a second between each two samples, at the later one's time.
fn rates(samples: &[Sample], count: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    samples
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .filter(|(before, now)| now.at - before.at >= SHORTEST)
        .map(|(before, now)| {
            let rate = (count(&now) - count(&before)) / (now.at - before.at);
            (now.at, rate.max(0.0))
        })
        .collect()
}

fn title(outcome: &Outcome) -> String {
    let later = outcome
        .of_ideal_later()
        .map(|n| format!(", {n:.2} % from the second cycle on"))
        .unwrap_or_default();
    format!(
        "{}: {} clients, bans of {:.0} s; dropped {:.2} % of ideal{later}",
        outcome.name,
        outcome.clients,
        outcome.ban_seconds,
        outcome.of_ideal(),
    )
}

fn curves<B: DrawingBackend>(
    outcome: &Outcome,
    area: &DrawingArea<B, Shift>,
) -> Result<(), Box<dyn std::error::Error>>
where
    B::ErrorType: 'static,
{
    let all: Vec<_> = CURVES
        .iter()
        .map(|curve| (curve, rates(&outcome.samples, curve.count)))
        .collect();
    let highest = all
        .iter()
        .flat_map(|(_, points)| points.iter().map(|(_, rate)| *rate))
        .fold(1.0, f64::max);
    let (unit, scale) = if highest >= 1e6 {
        ("million", 1e6)
    } else {
        ("thousand", 1e3)
    };
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(title(outcome), ("sans-serif", 19))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..outcome.length(), 0.0..highest / scale * 1.4)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc("seconds")
        .y_desc(format!("{unit} packets a second"))
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    for (curve, points) in all {
        let style = curve.colour.stroke_width(curve.width);
        let scaled = points.into_iter().map(|(at, rate)| (at, rate / scale));
        chart
            .draw_series(LineSeries::new(scaled, style))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 15))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_whole_without_a_font_of_the_system() {
        let samples = (0..40u64)
            .map(|n| Sample {
                at: n as f64 / 4.0,
                unwanted: n * 25_000,
                dropped: n * 20_000,
                ..Sample::default()
            })
            .collect();
        let outcome = Outcome {
            name: "file ipv4 100k".into(),
            experiment: Some(2),
            clients: 65_534,
            wanted_rate: 10_000,
            ban_seconds: 3.0,
            samples,
            arrived: None,
            bans: None,
            read: None,
            lost: None,
            second: None,
            cpu_filter: None,
            cpu_server: 0.0,
            alerts: Vec::new(),
        };
        let dir = tempfile::tempdir().unwrap();
        draw(&outcome, dir.path()).unwrap();
        let svg = std::fs::read_to_string(dir.path().join("file-ipv4-100k.svg")).unwrap();
        for text in ["seconds", "thousand packets a second", "ideal drop"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn rates_are_counts_by_time() {
        let at = |at, unwanted| Sample {
            at,
            unwanted,
            ..Sample::default()
        };
        let samples = [at(0.0, 0), at(0.25, 500), at(0.75, 500), at(0.76, 900)];
        let rates = rates(&samples, |s| s.unwanted as f64);
        assert_eq!(rates, [(0.25, 2000.0), (0.75, 0.0)]);
    }
}
