//! How bans of an address that comes back grow: Fail2ban's `bantime.increment` and what
//! goes with it, as a table of durations, because a ban's time depends on nothing but
//! how many there were before.

use std::time::Duration;

use crate::{error::Error, expression, filter_files::wrong, text::Text};

/// The usual formula, by which a ban doubles twenty times.
const USUAL: &str = "ban.Time * (1<<(ban.Count if ban.Count<20 else 20)) * banFactor";
/// Bans before of which the table knows; of more, the last one counts.
const MOST: usize = 64;

/// The keys as they are written.
pub(crate) struct Growth<'a> {
    pub formula: Option<&'a Text>,
    pub factor: Option<&'a Text>,
    pub multipliers: Option<&'a Text>,
    pub max_time: Option<&'a Text>,
}

impl Growth<'_> {
    /// The time of a ban by the number of bans before it; the last one is that of all
    /// further ones. `None` is for ever.
    ///
    /// # Errors
    /// A key that cannot be read.
    pub fn table(&self, ban_time: Duration) -> Result<Vec<Option<Duration>>, Error> {
        let base = ban_time.as_secs_f64();
        let no_names = |_: &str| None;
        let factor = match self.factor {
            None => 1.0,
            Some(text) => expression::formula(&text.joined(), &no_names)
                .map_err(|e| wrong("bantime.factor", text, &format!("a number: {e}")))?,
        };
        let most = match self.max_time {
            None => f64::INFINITY,
            Some(text) => expression::seconds(&text.joined())
                .map_err(|e| wrong("bantime.maxtime", text, &format!("a time such as 5w: {e}")))?,
        };
        let multipliers = match self.multipliers {
            None => Vec::new(),
            Some(text) => {
                let joined = text.joined();
                let numbers = joined
                    .split_whitespace()
                    .map(|word| word.parse::<u64>().ok());
                let numbers = numbers.collect::<Option<Vec<_>>>();
                numbers
                    .filter(|numbers| (1..=MOST).contains(&numbers.len()))
                    .ok_or_else(|| wrong("bantime.multipliers", text, "1 to 64 numbers"))?
            }
        };
        if !multipliers.is_empty() {
            let time = |by: &u64| (base * factor * *by as f64).min(most);
            return Ok(multipliers
                .iter()
                .map(time)
                .map(expression::to_duration)
                .collect());
        }
        let usual = Text::parameter(USUAL);
        let formula = self.formula.unwrap_or(&usual);
        let text = formula.joined();
        let mut table = Vec::new();
        for count in 0..MOST {
            let names = |name: &str| match name {
                "ban.Time" => Some(base),
                "ban.Count" => Some(count as f64),
                "banFactor" => Some(factor),
                _ => None,
            };
            let seconds = match expression::formula(&text, &names) {
                Ok(seconds) => seconds,
                // What was finite for fewer bans has grown beyond all numbers.
                Err(e) if count > 0 && e == expression::TOO_LARGE => f64::INFINITY,
                // Fail2ban leaves a ban whose time it cannot compute as it is.
                Err(_) if count > 0 => base,
                Err(e) => {
                    return Err(wrong(
                        "bantime.formula",
                        formula,
                        &format!("a formula: {e}"),
                    ));
                }
            };
            table.push(expression::to_duration(seconds.max(base).min(most)));
        }
        while table.len() > 1 && table[table.len() - 1] == table[table.len() - 2] {
            table.pop();
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(keys: [&str; 4]) -> Result<Vec<Option<u64>>, String> {
        let [formula, factor, multipliers, max_time] = keys.map(Text::parameter);
        let given = |text| Some(text).filter(|text: &&Text| !text.is_empty());
        let growth = Growth {
            formula: given(&formula),
            factor: given(&factor),
            multipliers: given(&multipliers),
            max_time: given(&max_time),
        };
        let table = growth
            .table(Duration::from_secs(600))
            .map_err(|e| e.to_string())?;
        Ok(table
            .into_iter()
            .map(|time| time.map(|time| time.as_secs()))
            .collect())
    }

    #[test]
    fn bans_grow_by_formula_or_by_multipliers() {
        let usual = table(["", "", "", ""]).unwrap();
        assert_eq!(usual[..4], [Some(600), Some(1200), Some(2400), Some(4800)]);
        assert_eq!(usual.len(), 21);
        let bounded = table(["", "", "", "1h"]).unwrap();
        assert_eq!(bounded, [600, 1200, 2400, 3600].map(Some));
        let steps = table(["", "2", "1 5 30", "4h"]).unwrap();
        assert_eq!(steps, [1200, 6000, 14_400].map(Some));
        let flat = table(["ban.Time", "", "", ""]).unwrap();
        assert_eq!(flat, [Some(600)]);
        // Beyond a thousand years a ban is for ever.
        let steep = table(["ban.Time * 1000000 ** ban.Count", "", "", ""]).unwrap();
        assert_eq!(steep, [Some(600), Some(600_000_000), None]);
        // No permanent ban by a formula that cannot be computed for some count.
        let gap = table(["ban.Time * 2 / (ban.Count - 1)", "", "", ""]).unwrap();
        assert_eq!(gap[..4], [600, 600, 1200, 600].map(Some));
        let shrinking = table(["ban.Time / 2", "", "", ""]).unwrap();
        assert_eq!(shrinking, [Some(600)]);
    }

    #[test]
    fn wrong_keys_are_named() {
        for (keys, expected) in [
            (
                ["x", "", "", ""],
                "bantime.formula = x: expected a formula: x is not known",
            ),
            (
                ["", "2x", "", ""],
                "bantime.factor = 2x: expected a number: did not expect x",
            ),
            (
                ["", "", "1 b", ""],
                "bantime.multipliers = 1 b: expected 1 to 64 numbers",
            ),
            (
                ["", "", "", "x"],
                "bantime.maxtime = x: expected a time such as 5w: x is not known",
            ),
        ] {
            let error = table(keys).unwrap_err();
            assert_eq!(error, format!("a parameter: {expected}"));
        }
    }
}
