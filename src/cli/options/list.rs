//! `weir options list`

use clap::builder::PossibleValuesParser;
use serde_json::json;
use weir_options::{CODEPOINTS, Layer};

use super::super::{ExitAnswer, show};

#[derive(clap::Args)]
pub struct Args {
    /// Only options of this layer: ip, tcp, udp, hop, dst, ext
    #[arg(
        long,
        value_name = "LAYER",
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(Layer::ALL.map(Layer::name))
    )]
    layer: Option<String>,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let is_wanted = |layer: Layer| args.layer.as_ref().is_none_or(|name| name == layer.name());
    let rows = CODEPOINTS.iter().filter(|c| is_wanted(c.layer));
    if args.json {
        let rows: Vec<_> = rows
            .map(|codepoint| {
                json!({
                    "layer": codepoint.layer.name(),
                    "number": codepoint.number,
                    "name": codepoint.name,
                    "reference": codepoint.reference,
                    "purpose": codepoint.purpose,
                    "data": hex::encode(codepoint.data()),
                })
            })
            .collect();
        show::json(&json!({ "options": rows }))?;
        return Ok(ExitAnswer::Done);
    }
    let rows: Vec<_> = rows
        .map(|codepoint| {
            vec![
                format!("{}:{}", codepoint.layer.name(), codepoint.name),
                format!("{} (0x{:02x})", codepoint.number, codepoint.number),
                codepoint.purpose.to_owned(),
                codepoint.reference.to_owned(),
            ]
        })
        .collect();
    show::table(&["OPTION", "NUMBER", "PURPOSE", "REFERENCE"], &rows)?;
    Ok(ExitAnswer::Done)
}
