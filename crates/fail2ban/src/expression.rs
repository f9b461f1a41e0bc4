//! The arithmetic that Fail2ban hands to Python: durations (`1d12h30m`, `1year-6mo`) and
//! the formula by which bans grow (`ban.Time * (1<<(ban.Count if ban.Count<20 else 20))`).
//! An evaluator of its own: numbers, operators, a condition and a few functions, of
//! bounded length and depth, and nothing else.

use std::time::Duration;

/// Bytes of an expression.
const MAX_LENGTH: usize = 1000;
/// Parentheses and signs inside of each other.
const MAX_DEPTH: usize = 40;
/// A thousand years, in seconds; longer is for ever.
const MAX_SECONDS: f64 = 1000.0 * 31_557_600.0;

/// Why a formula has no value that grows beyond all numbers.
pub(crate) const TOO_LARGE: &str = "the result is no number";

/// A year of 365.25 days, as Fail2ban counts; a month is its twelfth.
const YEAR: f64 = 31_557_600.0;

/// What a name stands for.
pub(crate) type Names<'a> = &'a dyn Fn(&str) -> Option<f64>;

/// Reads a duration in seconds, which may be negative.
///
/// # Errors
/// What cannot be read.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    evaluate(text, true, &|_| None)
}

/// Reads a length of time as Fail2ban's files write it, such as `1d12h30m`; `None` is for
/// ever: a negative one, or one of a thousand years.
///
/// # Errors
/// What cannot be read.
pub fn duration(text: &str) -> Result<Option<Duration>, String> {
    seconds(text).map(to_duration)
}

/// Seconds as a duration; `None` is for ever.
pub(crate) fn to_duration(seconds: f64) -> Option<Duration> {
    let is_bounded = (0.0..MAX_SECONDS).contains(&seconds);
    is_bounded.then(|| Duration::from_secs_f64(seconds))
}

/// The value of a formula.
///
/// # Errors
/// What cannot be read, a name that nobody has, or a result that is no number.
pub(crate) fn formula(text: &str, names: Names<'_>) -> Result<f64, String> {
    evaluate(text, false, names)
}

fn evaluate(text: &str, has_units: bool, names: Names<'_>) -> Result<f64, String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("longer than {MAX_LENGTH} characters"));
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        has_units,
        names,
        depth: 0,
    };
    let value = parser.condition()?;
    match parser.next() {
        None if value.is_finite() => Ok(value),
        None if value.is_nan() => Err("the result is not defined".to_owned()),
        None => Err(TOO_LARGE.to_owned()),
        Some(token) => Err(format!("did not expect {}", token.shown())),
    }
}

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Number(f64),
    Word(String),
    Sign(&'static str),
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Word(word) => word.clone(),
            Self::Sign(sign) => (*sign).to_owned(),
        }
    }
}

/// The longer ones first.
const SIGNS: [&str; 19] = [
    "<<", ">>", "<=", ">=", "==", "!=", "**", "//", "+", "-", "*", "/", "%", "(", ")", ",", "<",
    ">", "~",
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_digit() || first == '.' {
            let end = |c: char| !(c.is_ascii_digit() || c == '.');
            let end = rest.find(end).unwrap_or(rest.len());
            let number = rest[..end]
                .parse()
                .map_err(|_| format!("{} is no number", &rest[..end]))?;
            tokens.push(Token::Number(number));
            end
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = |c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '_');
            let mut end = rest.find(end).unwrap_or(rest.len());
            // `1d12h`: a unit ends where a number begins.
            let begins_number = |c: char| c.is_ascii_digit();
            if matches!(tokens.last(), Some(Token::Number(_)))
                && let Some(at) = rest[..end].find(begins_number)
            {
                end = at;
            }
            tokens.push(Token::Word(rest[..end].to_owned()));
            end
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            sign.len()
        } else {
            return Err(format!("did not expect {first:?}"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn unit(word: &str) -> Option<f64> {
    let word = word.to_ascii_lowercase();
    Some(match word.as_str() {
        "s" | "ss" | "se" | "sec" | "second" | "seconds" => 1.0,
        "m" | "mm" | "mi" | "min" | "minute" | "minutes" => 60.0,
        "h" | "hh" | "ho" | "hou" | "hour" | "hours" => 3600.0,
        "d" | "dd" | "da" | "day" | "days" => 86_400.0,
        "w" | "ww" | "we" | "wee" | "week" | "weeks" => 604_800.0,
        "mo" | "mon" | "month" | "months" => YEAR / 12.0,
        "y" | "yy" | "ye" | "yea" | "year" | "years" => YEAR,
        _ => return None,
    })
}

struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    /// Whether a word behind a number is a unit, and two numbers are a sum.
    has_units: bool,
    names: Names<'a>,
    depth: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn sign(&self) -> Option<&'static str> {
        match self.tokens.get(self.at) {
            Some(Token::Sign(sign)) => Some(sign),
            _ => None,
        }
    }

    fn takes(&mut self, token: &str) -> bool {
        let is_it = match self.tokens.get(self.at) {
            Some(Token::Sign(sign)) => *sign == token,
            Some(Token::Word(word)) => word == token,
            _ => false,
        };
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.takes(token) {
            true => Ok(()),
            false => Err(format!("expected {token}")),
        }
    }

    /// `a if b else c`
    fn condition(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("parentheses are too deep".to_owned());
        }
        let value = self.comparison()?;
        let value = if self.takes("if") {
            let holds = self.comparison()? != 0.0;
            self.expect("else")?;
            let other = self.condition()?;
            if holds { value } else { other }
        } else {
            value
        };
        self.depth -= 1;
        Ok(value)
    }

    fn comparison(&mut self) -> Result<f64, String> {
        let left = self.shift()?;
        let Some(sign @ ("<" | ">" | "<=" | ">=" | "==" | "!=")) = self.sign() else {
            return Ok(left);
        };
        self.at += 1;
        let right = self.shift()?;
        let holds = match sign {
            "<" => left < right,
            ">" => left > right,
            "<=" => left <= right,
            ">=" => left >= right,
            "==" => left == right,
            _ => left != right,
        };
        Ok(f64::from(u8::from(holds)))
    }

    fn shift(&mut self) -> Result<f64, String> {
        let mut value = self.sum()?;
        while let Some(sign @ ("<<" | ">>")) = self.sign() {
            self.at += 1;
            let by = self.sum()?;
            if !(0.0..=62.0).contains(&by) {
                return Err(format!("{sign} by {by}; allowed: 0 to 62"));
            }
            let times = by.trunc().exp2();
            value = if sign == "<<" {
                value * times
            } else {
                (value / times).floor()
            };
        }
        Ok(value)
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.takes("+") {
                value += self.product()?;
            } else if self.takes("-") {
                value -= self.product()?;
            } else if self.has_units && matches!(self.tokens.get(self.at), Some(Token::Number(_))) {
                value += self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.signed()?;
        loop {
            if let Some(Token::Word(word)) = self.tokens.get(self.at)
                && self.has_units
            {
                let times = unit(word)
                    .ok_or_else(|| format!("{word} is no unit; allowed: s, m, h, d, w, mo, y"))?;
                value *= times;
                self.at += 1;
                continue;
            }
            let Some(sign @ ("*" | "/" | "//" | "%")) = self.sign() else {
                return Ok(value);
            };
            self.at += 1;
            let right = self.signed()?;
            if sign != "*" && right == 0.0 {
                return Err("division by zero".to_owned());
            }
            value = match sign {
                "*" => value * right,
                "/" => value / right,
                "//" => (value / right).floor(),
                _ => value - right * (value / right).floor(),
            };
        }
    }

    fn signed(&mut self) -> Result<f64, String> {
        let mut is_negative = false;
        loop {
            if self.takes("-") {
                is_negative = !is_negative;
            } else if !self.takes("+") {
                break;
            }
        }
        let value = self.power()?;
        Ok(if is_negative { -value } else { value })
    }

    fn power(&mut self) -> Result<f64, String> {
        let base = self.single()?;
        if !self.takes("**") {
            return Ok(base);
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("powers are too deep".to_owned());
        }
        let exponent = self.signed()?;
        self.depth -= 1;
        Ok(base.powf(exponent))
    }

    fn single(&mut self) -> Result<f64, String> {
        match self.next() {
            Some(Token::Number(number)) => Ok(number),
            Some(Token::Sign("(")) => {
                let value = self.condition()?;
                self.expect(")")?;
                Ok(value)
            }
            Some(Token::Word(word)) if self.takes("(") => {
                let mut given = vec![self.condition()?];
                while self.takes(",") {
                    given.push(self.condition()?);
                }
                self.expect(")")?;
                call(&word, &given)
            }
            Some(Token::Word(word)) => match word.as_str() {
                "math.pi" => Ok(std::f64::consts::PI),
                "math.e" => Ok(std::f64::consts::E),
                _ => (self.names)(&word).ok_or_else(|| format!("{word} is not known")),
            },
            Some(token) => Err(format!("did not expect {}", token.shown())),
            None => Err("expected a number".to_owned()),
        }
    }
}

fn call(name: &str, given: &[f64]) -> Result<f64, String> {
    match (name, given) {
        ("min", [_, ..]) => Ok(given.iter().copied().fold(f64::INFINITY, f64::min)),
        ("max", [_, ..]) => Ok(given.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ("float", [x]) => Ok(*x),
        ("int" | "math.trunc", [x]) => Ok(x.trunc()),
        ("abs" | "math.fabs", [x]) => Ok(x.abs()),
        ("round", [x]) => Ok(x.round_ties_even()),
        ("pow" | "math.pow", [x, y]) => Ok(x.powf(*y)),
        ("math.exp", [x]) => Ok(x.exp()),
        ("math.log", [x]) => Ok(x.ln()),
        ("math.log", [x, base]) => Ok(x.log(*base)),
        ("math.log2", [x]) => Ok(x.log2()),
        ("math.log10", [x]) => Ok(x.log10()),
        ("math.sqrt", [x]) => Ok(x.sqrt()),
        ("math.floor", [x]) => Ok(x.floor()),
        ("math.ceil", [x]) => Ok(x.ceil()),
        _ => Err(format!("{name} with {} values is not known", given.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_fail2ban() {
        for (text, expected) in [
            ("600", 600.0),
            ("10m", 600.0),
            ("1d12h30m", 131_400.0),
            ("1h 2m 3s", 3723.0),
            ("1hour+30min", 5400.0),
            ("0d 1h 30m", 5400.0),
            ("1year-6mo", 15_778_800.0),
            ("6 months", 15_778_800.0),
            ("1W", 604_800.0),
            ("2*3h", 21_600.0),
            ("60 * 60", 3600.0),
            ("-1", -1.0),
            ("1.5h", 5400.0),
            ("(1h+1)*2", 7202.0),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        assert_eq!(duration("-1"), Ok(None));
        assert_eq!(duration("100000y"), Ok(None));
        assert_eq!(duration("90"), Ok(Some(Duration::from_secs(90))));
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        let deep = "(".repeat(500) + "1" + &")".repeat(400);
        let long = "1+".repeat(600) + "1";
        for (text, expected) in [
            ("", "expected a number"),
            ("forever", "forever is not known"),
            (
                "1h 2parsecs",
                "parsecs is no unit; allowed: s, m, h, d, w, mo, y",
            ),
            ("1/0", "division by zero"),
            ("1..2", "1..2 is no number"),
            ("__import__('os')", "did not expect '\\''"),
            ("10**400", "the result is no number"),
            ("1 +", "expected a number"),
            ("(1", "expected )"),
            ("1)", "did not expect )"),
            (&deep, "parentheses are too deep"),
            (&long, "longer than 1000 characters"),
        ] {
            assert_eq!(seconds(text), Err(expected.to_owned()), "{text}");
        }
        let powers = "2**".repeat(200) + "2";
        assert_eq!(seconds(&powers), Err("powers are too deep".to_owned()));
    }

    #[test]
    fn formulas_of_the_documentation_are_evaluated() {
        let value = |text: &str, count: f64| {
            formula(text, &|name| match name {
                "ban.Time" => Some(600.0),
                "ban.Count" => Some(count),
                "banFactor" => Some(2.0),
                _ => None,
            })
        };
        let usual = "ban.Time * (1<<(ban.Count if ban.Count<20 else 20)) * banFactor";
        assert_eq!(value(usual, 3.0), Ok(9600.0));
        assert_eq!(value(usual, 25.0), Ok(600.0 * 1_048_576.0 * 2.0));
        let growing = "ban.Time * math.exp(float(ban.Count+1)*banFactor)/math.exp(1*banFactor)";
        let expected = 600.0 * (2.0_f64 * 2.0).exp() / 2.0_f64.exp();
        assert!((value(growing, 1.0).unwrap() - expected).abs() < 1e-6);
        assert_eq!(value("min(7, max(1, int(2.9)), 3)", 0.0), Ok(2.0));
        assert_eq!(value("7 // 2 + -7 % 3 - 2**3", 0.0), Ok(-3.0));
        assert_eq!(value("nobody", 0.0), Err("nobody is not known".to_owned()));
        assert_eq!(
            value("open(1)", 0.0),
            Err("open with 1 values is not known".to_owned())
        );
        assert_eq!(
            value("1 << 64", 0.0),
            Err("<< by 64; allowed: 0 to 62".to_owned())
        );
    }
}
