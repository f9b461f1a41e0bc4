//! The paper's figures: throughput by size (3), energy by hook (4), CPU by hook
//! (5), both by size (6); as SVG. Energy is drawn only where it was measured or
//! estimated, and says which.

use std::path::Path;

use anyhow::anyhow;
use plotters::{coord::Shift, prelude::*};

use super::{
    Run,
    figures::{Figure, Group, main_size, sizes},
    table::{HOOKS, Hook},
};

const SIZE: (u32, u32) = (1200, 720);

/// Colours that the colour-blind tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(150, 150, 150),
];

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Value<'a> = &'a dyn Fn(&Group<'_>) -> Option<Figure>;

/// A picture of curves over sizes or of bars, one a hook.
struct Picture<'a> {
    file: String,
    title: String,
    axis: &'a str,
    value: Value<'a>,
    bars: bool,
}

/// Draws what there is into `dir`.
pub fn draw(run: &Run, dir: &Path) -> anyhow::Result<()> {
    for family in ["ipv4", "ipv6"] {
        let Some(main) = main_size(run, family) else {
            continue;
        };
        let meters: Vec<&String> = match run.points.iter().find(|p| p.family == family) {
            Some(point) => point.joules.keys().collect(),
            None => Vec::new(),
        };
        let by_hook = |what: &str| format!("{what} by hook, {family}, {main} bytes of payload");
        let by_size = |what: &str| format!("{what} by size of the packet, {family}");
        let mut pictures = vec![
            Picture {
                file: format!("rate-by-hook-{family}"),
                title: by_hook("Drop rate"),
                axis: "million packets a second",
                value: &|group| group.rate(),
                bars: true,
            },
            Picture {
                file: format!("cpu-by-hook-{family}"),
                title: by_hook("CPU"),
                axis: "CPU seconds for a million packets",
                value: &|group| group.cpu(),
                bars: true,
            },
            Picture {
                file: format!("throughput-by-size-{family}"),
                title: by_size("Throughput dropped"),
                axis: "Gbit/s of frames",
                value: &|group| group.gbits(),
                bars: false,
            },
            Picture {
                file: format!("cpu-by-size-{family}"),
                title: by_size("CPU"),
                axis: "CPU seconds for a million packets",
                value: &|group| group.cpu(),
                bars: false,
            },
        ];
        let by_meter: Vec<_> = meters
            .iter()
            .map(|meter| move |group: &Group<'_>| group.joules(meter))
            .collect();
        for (number, (meter, value)) in meters.iter().zip(&by_meter).enumerate() {
            let ending = if number == 0 {
                String::new()
            } else {
                format!("-{number}")
            };
            for (bars, by, title) in [
                (true, "hook", &by_hook as &dyn Fn(&str) -> _),
                (false, "size", &by_size),
            ] {
                pictures.push(Picture {
                    file: format!("energy{ending}-by-{by}-{family}"),
                    title: title(&format!("Energy ({meter})")),
                    axis: "joules for a million packets",
                    value,
                    bars,
                });
            }
        }
        let several = sizes(run, family).len() > 1;
        for picture in pictures.iter().filter(|picture| picture.bars || several) {
            draw_one(run, family, main, picture, dir)?;
        }
    }
    Ok(())
}

fn draw_one(
    run: &Run,
    family: &str,
    main: u16,
    picture: &Picture<'_>,
    dir: &Path,
) -> anyhow::Result<()> {
    let name = &picture.file;
    let file = dir.join(format!("{name}.svg"));
    let drawn = if picture.bars {
        let bars = bars_of(run, family, main, picture.value);
        let size = (SIZE.0, HEAD + 76 + 26 * bars.len() as u32);
        let area = SVGBackend::new(&file, size).into_drawing_area();
        bars_on(&area, picture, &bars)
    } else {
        let curves = curves_of(run, family, picture.value);
        let area = SVGBackend::new(&file, SIZE).into_drawing_area();
        curves_on(&area, picture, &curves)
    };
    drawn.map_err(|error| anyhow!("draw {name}: {error}"))
}

/// What kind of row it is, by colour.
fn colour(hook: &Hook) -> RGBColor {
    if hook.name.starts_with("weir") {
        COLOURS[5]
    } else if hook.name.ends_with("131k") {
        COLOURS[6]
    } else if hook.paper.is_some() {
        COLOURS[1]
    } else {
        COLOURS[2]
    }
}

/// Title and legend above bars, in one line each.
const HEAD: u32 = 64;

/// The legend of the bars: each kind of processor time with its colour.
const KINDS: [(&str, usize); 4] = [
    ("in the paper", 1),
    ("not in the paper", 2),
    ("other programs' tables", 6),
    ("weir", 5),
];

struct Bar {
    hook: &'static Hook,
    figure: Figure,
}

fn bars_of(run: &Run, family: &str, main: u16, value: Value<'_>) -> Vec<Bar> {
    HOOKS
        .iter()
        .filter_map(|hook| {
            let figure = value(&Group::of(run, hook.name, family, main)?)?;
            Some(Bar { hook, figure })
        })
        .collect()
}

/// Bars from the top to the bottom, names at their left, deviations in them.
fn bars_on<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    picture: &Picture<'_>,
    bars: &[Bar],
) -> Drawn
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let area = &area.margin(8, 0, 0, 0);
    let longest = bars
        .iter()
        .map(|bar| bar.figure.median + bar.figure.deviation)
        .fold(f64::MIN_POSITIVE, f64::max);
    let count = bars.len();
    let (head, body) = area.split_vertically(HEAD);
    head.titled(&picture.title, ("sans-serif", 20))?;
    let mut chart = ChartBuilder::on(&body)
        .margin(12)
        .margin_top(0)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(210)
        .build_cartesian_2d(0.0..longest * 1.22, 0.0..count as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(picture.axis)
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    let font = ("sans-serif", 15).into_font();
    for (number, bar) in bars.iter().enumerate() {
        let top = (count - number) as f64;
        let Figure { median, deviation } = bar.figure;
        chart.draw_series([Rectangle::new(
            [(0.0, top - 0.85), (median.max(0.0), top - 0.15)],
            colour(bar.hook).filled(),
        )])?;
        chart.draw_series([PathElement::new(
            [
                (median - deviation, top - 0.5),
                (median + deviation, top - 0.5),
            ],
            BLACK.stroke_width(1),
        )])?;
        let (x, y) = chart.backend_coord(&((median + deviation).max(0.0), top - 0.5));
        area.draw(&Text::new(
            format!("{median:.3}"),
            (x + 6, y - 8),
            font.clone(),
        ))?;
        area.draw(&Text::new(bar.hook.name, (14, y - 8), font.clone()))?;
    }
    for (number, (kind, index)) in KINDS.into_iter().enumerate() {
        let x = 232 + 230 * number as i32;
        let square = [(x, 40), (x + 14, 54)];
        head.draw(&Rectangle::new(square, COLOURS[index].filled()))?;
        head.draw(&Text::new(kind, (x + 20, 38), font.clone()))?;
    }
    area.present()?;
    Ok(())
}

struct Curve {
    name: &'static str,
    points: Vec<(u16, f64)>,
}

fn curves_of(run: &Run, family: &str, value: Value<'_>) -> Vec<Curve> {
    let sizes = sizes(run, family);
    HOOKS
        .iter()
        .map(|hook| Curve {
            name: hook.name,
            points: sizes
                .iter()
                .filter_map(|size| {
                    let group = Group::of(run, hook.name, family, *size)?;
                    Some((*size, value(&group)?.median))
                })
                .collect(),
        })
        .filter(|curve| !curve.points.is_empty())
        .collect()
}

/// Curves over sizes at equal distances, their names in a column at the right
/// in the order in which they end: a legend that crosses nothing.
fn curves_on<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    picture: &Picture<'_>,
    curves: &[Curve],
) -> Drawn
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let mut sizes: Vec<u16> = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|(size, _)| *size))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let values = || {
        curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|(_, value)| *value))
    };
    let highest = values().fold(f64::MIN_POSITIVE, f64::max);
    let lowest = values()
        .filter(|value| *value > 0.0)
        .fold(highest, f64::min)
        .max(highest / 1e5);
    let place = |size: u16| sizes.iter().position(|s| *s == size).unwrap_or(0) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(&picture.title, ("sans-serif", 20))
        .margin(14)
        .margin_right(230)
        .x_label_area_size(46)
        .y_label_area_size(74)
        .build_cartesian_2d(
            -0.2..sizes.len() as f64 - 0.8,
            (lowest * 0.8..highest * 1.25).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc("bytes of UDP payload")
        .y_desc(picture.axis)
        .x_labels(sizes.len() * 2)
        .x_label_formatter(&|x| {
            let whole = (x - x.round()).abs() < 1e-6 && *x > -0.1;
            let size = sizes.get(x.round() as usize).filter(|_| whole);
            size.map_or(String::new(), u16::to_string)
        })
        // 0.7 is not 0.7000000000000001.
        .y_label_formatter(&|y| format!("{}", (y * 1e4).round() / 1e4))
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    let style = |number: usize| {
        let colour = COLOURS[number % COLOURS.len()];
        // Each further turn through the colours has thinner lines.
        colour.stroke_width([4, 2, 1][(number / COLOURS.len()).min(2)])
    };
    let mut ends = Vec::new();
    for (number, curve) in curves.iter().enumerate() {
        let points: Vec<(f64, f64)> = curve
            .points
            .iter()
            .filter(|(_, value)| *value > 0.0)
            .map(|(size, value)| (place(*size), *value))
            .collect();
        let Some(last) = points.last().copied() else {
            continue;
        };
        chart.draw_series(LineSeries::new(points.iter().copied(), style(number)))?;
        let marks = points
            .into_iter()
            .map(|at| Circle::new(at, 3, style(number).filled()));
        chart.draw_series(marks)?;
        ends.push((chart.backend_coord(&last), number));
    }
    ends.sort_by_key(|((_, y), _)| *y);
    // From the top on, no two names nearer than a line is high.
    const LINE: i32 = 20;
    let bottom = SIZE.1 as i32 - 70;
    let mut names: Vec<i32> = Vec::new();
    for ((_, y), _) in &ends {
        let least = names.last().map_or(44, |above| above + LINE);
        names.push((*y).max(least));
    }
    let mut below = bottom + LINE;
    for name in names.iter_mut().rev() {
        *name = (*name).min(below - LINE);
        below = *name;
    }
    let left = SIZE.0 as i32 - 218;
    for (((x, y), number), name) in ends.into_iter().zip(names) {
        let thin = COLOURS[number % COLOURS.len()].mix(0.5).stroke_width(1);
        area.draw(&PathElement::new([(x + 5, y), (left - 4, name)], thin))?;
        area.draw(&PathElement::new(
            [(left, name), (left + 22, name)],
            style(number),
        ))?;
        area.draw(&Text::new(
            curves[number].name,
            (left + 28, name - 8),
            ("sans-serif", 15).into_font(),
        ))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::hooks::measure::Point;

    fn run(sizes: &[u16]) -> Run {
        let mut run = Run::default();
        for (number, hook) in HOOKS.iter().enumerate() {
            for size in sizes {
                run.points.push(Point {
                    hook: hook.name.into(),
                    family: "ipv4".into(),
                    payload: *size,
                    frame: 42 + u32::from(*size),
                    round: 0,
                    sources: 1,
                    sent: 1_000_000,
                    arrived: 1_000_000,
                    dropped: 1_000_000,
                    seconds: 0.2 + 0.1 * number as f64,
                    cpu_sender: 0.2 + 0.1 * number as f64,
                    cpu_softirq: 0.0,
                    cpu_program: 0.0,
                    cores: vec![1.0, 0.0],
                    from: 0.0,
                    to: 1.0,
                    joules: BTreeMap::from([("estimate".into(), 1.0 + number as f64)]),
                });
            }
        }
        run
    }

    #[test]
    fn the_papers_figures_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        draw(&run(&[16, 32, 1472]), dir.path()).unwrap();
        for (name, texts) in [
            (
                "throughput-by-size-ipv4",
                ["bytes of UDP payload", "Gbit/s of frames"],
            ),
            (
                "cpu-by-hook-ipv4",
                ["CPU seconds for a million packets", "weir-xdp-131k"],
            ),
            ("cpu-by-size-ipv4", ["bytes of UDP payload", "nft-ingress"]),
            (
                "energy-by-hook-ipv4",
                ["joules for a million packets", "Energy (estimate)"],
            ),
            (
                "energy-by-size-ipv4",
                ["joules for a million packets", "userspace-notrack"],
            ),
        ] {
            let svg = std::fs::read_to_string(dir.path().join(format!("{name}.svg"))).unwrap();
            for text in texts {
                assert!(svg.contains(text), "{name}: {text}");
            }
            assert!(
                !svg.contains("00000001\n"),
                "{name}: a label with its error"
            );
        }
    }

    #[test]
    fn without_energy_no_picture_claims_any() {
        let mut run = run(&[32]);
        for point in &mut run.points {
            point.joules.clear();
        }
        let dir = tempfile::tempdir().unwrap();
        draw(&run, dir.path()).unwrap();
        let names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(
            names.iter().any(|name| name == "cpu-by-hook-ipv4.svg"),
            "{names:?}"
        );
        assert!(
            !names.iter().any(|name| name.contains("energy")),
            "{names:?}"
        );
        assert!(
            !names.iter().any(|name| name.contains("by-size")),
            "{names:?}"
        );
    }
}
