//! A filter's text made the expressions that read lines.

use weir_core::json::Fields;

use super::{
    Filter,
    expression::{self, Expression, Expressions},
    groups::Names,
    json_pattern,
};
use crate::{
    date::Dates,
    error::Error,
    filter_source::{FilterSource, Pattern, UseDns},
};

impl Filter {
    /// Compiles what was read.
    ///
    /// # Errors
    /// An expression that cannot be translated, or that names nobody; with its place.
    pub fn new(source: &FilterSource) -> Result<Self, Error> {
        let mut names = Names::default();
        let finds_names = source.usedns != Some(UseDns::No);
        let multi = source.maxlines > 1;
        let of_json = || source.failregex.iter().chain(&source.ignoreregex);
        let asks = of_json().find(|pattern| json_pattern::asks(pattern));
        let paths = match (asks, &source.prefregex) {
            (None, _) => Vec::new(),
            (Some(pattern), Some(_)) => {
                let why = "<json:field> and prefregex do not go together";
                return Err(expression::error(pattern, why));
            }
            (Some(pattern), None) if multi => {
                let why = "<json:field> and maxlines do not go together: each line is an object";
                return Err(expression::error(pattern, why));
            }
            (Some(_), None) => json_pattern::paths(of_json())?,
        };
        let fields = Fields::new(&paths);
        let mut compile = |pattern: &Pattern, multi| {
            let expanded = match paths.is_empty() {
                true => None,
                false => Some(json_pattern::expanded(pattern, &paths)?),
            };
            let pattern = expanded.as_ref().unwrap_or(pattern);
            Expression::new(pattern, multi, finds_names, &mut names)
        };
        let prefregex = (source.prefregex.as_ref())
            .map(|pattern| compile(pattern, false))
            .transpose()?;
        let mut failregex = Vec::new();
        for pattern in &source.failregex {
            let expression = compile(pattern, multi)?;
            let is_named = [Some(&expression), prefregex.as_ref()]
                .into_iter()
                .flatten()
                .any(Expression::names_somebody);
            if !is_named {
                return Err(expression::error(
                    pattern,
                    "it names nobody: there is no <HOST>, <ADDR>, <F-ID> or <F-MLFID> in it",
                ));
            }
            failregex.push(expression);
        }
        let ignoreregex = (source.ignoreregex.iter())
            .map(|pattern| compile(pattern, false))
            .collect::<Result<_, _>>()?;
        let pattern = source.datepattern.as_ref();
        let dates = Dates::new(pattern.map(|pattern| &*pattern.text)).map_err(|why| {
            let pattern = pattern.expect("the usual dates are expressions");
            expression::error(pattern, &format!("datepattern: {why}"))
        })?;
        Ok(Self {
            dates,
            prefregex: Expressions::new(prefregex.into_iter().collect()),
            failregex: Expressions::new(failregex),
            ignoreregex: Expressions::new(ignoreregex),
            names: names.into_shared(),
            maxlines: source.maxlines,
            fields,
        })
    }
}
