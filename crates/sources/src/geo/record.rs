//! One record of a database, in the keys of the makers that there are:
//! `country.iso_code`, `continent.code` and `autonomous_system_number` of
//! MaxMind and DB-IP, `country_code` and `continent_code` at the top of
//! ip-location-db's and IPinfo's files, `asn` as `"AS64496"` or a number. A
//! value of another type says nothing; only a broken file is an error.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use weir_core::geo::{Continent, Country, Place};

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Record {
    country: Value,
    country_code: Value,
    registered_country: Value,
    continent: Value,
    continent_code: Value,
    autonomous_system_number: Value,
    asn: Value,
}

/// User-assigned codes that registries and databases write for "nowhere".
const NOWHERE: [&str; 2] = ["XX", "ZZ"];

impl Record {
    pub(super) fn place(&self) -> Place {
        let mut place = Place {
            asn: self.autonomous_system_number.number().or(self.asn.number()),
            ..Place::default()
        };
        let codes = [&self.country, &self.country_code, &self.registered_country];
        for code in codes.into_iter().filter_map(Value::code) {
            if NOWHERE.contains(&code.to_string().as_str()) {
                continue;
            }
            match code.to_string().as_str() {
                // Of the registries, where nobody said which country.
                "EU" => place.continent = Some(Continent::Eu),
                "AP" => place.continent = Some(Continent::As),
                _ => place.country = Some(code),
            }
            break;
        }
        let named = [&self.continent, &self.continent_code];
        if let Some(continent) = named.into_iter().find_map(Value::continent) {
            place.continent = Some(continent);
        } else if let Some(country) = place.country {
            place.continent = country.continent();
        }
        place
    }
}

/// A text, a number, or a map that has such a text as its code.
#[derive(Default)]
struct Value {
    text: Option<Box<str>>,
    number: Option<u32>,
}

/// Longer texts are no codes.
const MAX_CODE: usize = 16;

impl Value {
    fn code(&self) -> Option<Country> {
        let text = self.text.as_deref()?;
        Country::from_letters(text.as_bytes().try_into().ok()?)
    }

    fn continent(&self) -> Option<Continent> {
        Continent::from_code(self.text.as_deref()?)
    }

    fn number(&self) -> Option<u32> {
        let text = || self.text.as_deref()?.strip_prefix("AS")?.parse().ok();
        self.number.or_else(text)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Values { below: false })
    }
}

/// The same inside of a map, where a further map says nothing.
struct Below(Value);

impl<'de> Deserialize<'de> for Below {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Values { below: true }).map(Self)
    }
}

struct Values {
    below: bool,
}

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value {
            text: (text.len() <= MAX_CODE).then(|| text.into()),
            number: None,
        })
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value {
            text: None,
            number: u32::try_from(number).ok(),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut code = Value::default();
        while let Some(key) = map.next_key::<&str>()? {
            if !self.below && matches!(key, "iso_code" | "code") {
                code = map.next_value::<Below>()?.0;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(code)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::default())
    }

    fn visit_u128<E>(self, _: u128) -> Result<Value, E> {
        Ok(Value::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::default())
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Value, E> {
        Ok(Value::default())
    }
}
