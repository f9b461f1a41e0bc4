//! Which countries there are: code, continent and English name. The codes are those
//! of ISO 3166-1, and two that databases have besides: XK for Kosovo, and AN, which
//! ISO has withdrawn. The continents are GeoNames', as in MaxMind's files. Messages
//! use the names; a file that names no continents gets them from here.

use super::{
    Continent::{self, Af, An, As, Eu, Na, Oc, Sa},
    Country,
};

/// All countries, by code.
const COUNTRIES: [(&str, Continent, &str); 251] = [
    ("AD", Eu, "Andorra"),
    ("AE", As, "United Arab Emirates"),
    ("AF", As, "Afghanistan"),
    ("AG", Na, "Antigua and Barbuda"),
    ("AI", Na, "Anguilla"),
    ("AL", Eu, "Albania"),
    ("AM", As, "Armenia"),
    ("AN", Na, "Netherlands Antilles"),
    ("AO", Af, "Angola"),
    ("AQ", An, "Antarctica"),
    ("AR", Sa, "Argentina"),
    ("AS", Oc, "American Samoa"),
    ("AT", Eu, "Austria"),
    ("AU", Oc, "Australia"),
    ("AW", Na, "Aruba"),
    ("AX", Eu, "Åland Islands"),
    ("AZ", As, "Azerbaijan"),
    ("BA", Eu, "Bosnia and Herzegovina"),
    ("BB", Na, "Barbados"),
    ("BD", As, "Bangladesh"),
    ("BE", Eu, "Belgium"),
    ("BF", Af, "Burkina Faso"),
    ("BG", Eu, "Bulgaria"),
    ("BH", As, "Bahrain"),
    ("BI", Af, "Burundi"),
    ("BJ", Af, "Benin"),
    ("BL", Na, "Saint Barthélemy"),
    ("BM", Na, "Bermuda"),
    ("BN", As, "Brunei"),
    ("BO", Sa, "Bolivia"),
    ("BQ", Na, "Caribbean Netherlands"),
    ("BR", Sa, "Brazil"),
    ("BS", Na, "Bahamas"),
    ("BT", As, "Bhutan"),
    ("BV", An, "Bouvet Island"),
    ("BW", Af, "Botswana"),
    ("BY", Eu, "Belarus"),
    ("BZ", Na, "Belize"),
    ("CA", Na, "Canada"),
    ("CC", As, "Cocos Islands"),
    ("CD", Af, "Democratic Republic of the Congo"),
    ("CF", Af, "Central African Republic"),
    ("CG", Af, "Congo"),
    ("CH", Eu, "Switzerland"),
    ("CI", Af, "Côte d'Ivoire"),
    ("CK", Oc, "Cook Islands"),
    ("CL", Sa, "Chile"),
    ("CM", Af, "Cameroon"),
    ("CN", As, "China"),
    ("CO", Sa, "Colombia"),
    ("CR", Na, "Costa Rica"),
    ("CU", Na, "Cuba"),
    ("CV", Af, "Cape Verde"),
    ("CW", Na, "Curaçao"),
    ("CX", Oc, "Christmas Island"),
    ("CY", Eu, "Cyprus"),
    ("CZ", Eu, "Czechia"),
    ("DE", Eu, "Germany"),
    ("DJ", Af, "Djibouti"),
    ("DK", Eu, "Denmark"),
    ("DM", Na, "Dominica"),
    ("DO", Na, "Dominican Republic"),
    ("DZ", Af, "Algeria"),
    ("EC", Sa, "Ecuador"),
    ("EE", Eu, "Estonia"),
    ("EG", Af, "Egypt"),
    ("EH", Af, "Western Sahara"),
    ("ER", Af, "Eritrea"),
    ("ES", Eu, "Spain"),
    ("ET", Af, "Ethiopia"),
    ("FI", Eu, "Finland"),
    ("FJ", Oc, "Fiji"),
    ("FK", Sa, "Falkland Islands"),
    ("FM", Oc, "Micronesia"),
    ("FO", Eu, "Faroe Islands"),
    ("FR", Eu, "France"),
    ("GA", Af, "Gabon"),
    ("GB", Eu, "United Kingdom"),
    ("GD", Na, "Grenada"),
    ("GE", As, "Georgia"),
    ("GF", Sa, "French Guiana"),
    ("GG", Eu, "Guernsey"),
    ("GH", Af, "Ghana"),
    ("GI", Eu, "Gibraltar"),
    ("GL", Na, "Greenland"),
    ("GM", Af, "Gambia"),
    ("GN", Af, "Guinea"),
    ("GP", Na, "Guadeloupe"),
    ("GQ", Af, "Equatorial Guinea"),
    ("GR", Eu, "Greece"),
    ("GS", An, "South Georgia and the South Sandwich Islands"),
    ("GT", Na, "Guatemala"),
    ("GU", Oc, "Guam"),
    ("GW", Af, "Guinea-Bissau"),
    ("GY", Sa, "Guyana"),
    ("HK", As, "Hong Kong"),
    ("HM", An, "Heard Island and McDonald Islands"),
    ("HN", Na, "Honduras"),
    ("HR", Eu, "Croatia"),
    ("HT", Na, "Haiti"),
    ("HU", Eu, "Hungary"),
    ("ID", As, "Indonesia"),
    ("IE", Eu, "Ireland"),
    ("IL", As, "Israel"),
    ("IM", Eu, "Isle of Man"),
    ("IN", As, "India"),
    ("IO", As, "British Indian Ocean Territory"),
    ("IQ", As, "Iraq"),
    ("IR", As, "Iran"),
    ("IS", Eu, "Iceland"),
    ("IT", Eu, "Italy"),
    ("JE", Eu, "Jersey"),
    ("JM", Na, "Jamaica"),
    ("JO", As, "Jordan"),
    ("JP", As, "Japan"),
    ("KE", Af, "Kenya"),
    ("KG", As, "Kyrgyzstan"),
    ("KH", As, "Cambodia"),
    ("KI", Oc, "Kiribati"),
    ("KM", Af, "Comoros"),
    ("KN", Na, "Saint Kitts and Nevis"),
    ("KP", As, "North Korea"),
    ("KR", As, "South Korea"),
    ("KW", As, "Kuwait"),
    ("KY", Na, "Cayman Islands"),
    ("KZ", As, "Kazakhstan"),
    ("LA", As, "Laos"),
    ("LB", As, "Lebanon"),
    ("LC", Na, "Saint Lucia"),
    ("LI", Eu, "Liechtenstein"),
    ("LK", As, "Sri Lanka"),
    ("LR", Af, "Liberia"),
    ("LS", Af, "Lesotho"),
    ("LT", Eu, "Lithuania"),
    ("LU", Eu, "Luxembourg"),
    ("LV", Eu, "Latvia"),
    ("LY", Af, "Libya"),
    ("MA", Af, "Morocco"),
    ("MC", Eu, "Monaco"),
    ("MD", Eu, "Moldova"),
    ("ME", Eu, "Montenegro"),
    ("MF", Na, "Saint Martin"),
    ("MG", Af, "Madagascar"),
    ("MH", Oc, "Marshall Islands"),
    ("MK", Eu, "North Macedonia"),
    ("ML", Af, "Mali"),
    ("MM", As, "Myanmar"),
    ("MN", As, "Mongolia"),
    ("MO", As, "Macao"),
    ("MP", Oc, "Northern Mariana Islands"),
    ("MQ", Na, "Martinique"),
    ("MR", Af, "Mauritania"),
    ("MS", Na, "Montserrat"),
    ("MT", Eu, "Malta"),
    ("MU", Af, "Mauritius"),
    ("MV", As, "Maldives"),
    ("MW", Af, "Malawi"),
    ("MX", Na, "Mexico"),
    ("MY", As, "Malaysia"),
    ("MZ", Af, "Mozambique"),
    ("NA", Af, "Namibia"),
    ("NC", Oc, "New Caledonia"),
    ("NE", Af, "Niger"),
    ("NF", Oc, "Norfolk Island"),
    ("NG", Af, "Nigeria"),
    ("NI", Na, "Nicaragua"),
    ("NL", Eu, "Netherlands"),
    ("NO", Eu, "Norway"),
    ("NP", As, "Nepal"),
    ("NR", Oc, "Nauru"),
    ("NU", Oc, "Niue"),
    ("NZ", Oc, "New Zealand"),
    ("OM", As, "Oman"),
    ("PA", Na, "Panama"),
    ("PE", Sa, "Peru"),
    ("PF", Oc, "French Polynesia"),
    ("PG", Oc, "Papua New Guinea"),
    ("PH", As, "Philippines"),
    ("PK", As, "Pakistan"),
    ("PL", Eu, "Poland"),
    ("PM", Na, "Saint Pierre and Miquelon"),
    ("PN", Oc, "Pitcairn"),
    ("PR", Na, "Puerto Rico"),
    ("PS", As, "Palestine"),
    ("PT", Eu, "Portugal"),
    ("PW", Oc, "Palau"),
    ("PY", Sa, "Paraguay"),
    ("QA", As, "Qatar"),
    ("RE", Af, "Réunion"),
    ("RO", Eu, "Romania"),
    ("RS", Eu, "Serbia"),
    ("RU", Eu, "Russia"),
    ("RW", Af, "Rwanda"),
    ("SA", As, "Saudi Arabia"),
    ("SB", Oc, "Solomon Islands"),
    ("SC", Af, "Seychelles"),
    ("SD", Af, "Sudan"),
    ("SE", Eu, "Sweden"),
    ("SG", As, "Singapore"),
    ("SH", Af, "Saint Helena"),
    ("SI", Eu, "Slovenia"),
    ("SJ", Eu, "Svalbard and Jan Mayen"),
    ("SK", Eu, "Slovakia"),
    ("SL", Af, "Sierra Leone"),
    ("SM", Eu, "San Marino"),
    ("SN", Af, "Senegal"),
    ("SO", Af, "Somalia"),
    ("SR", Sa, "Suriname"),
    ("SS", Af, "South Sudan"),
    ("ST", Af, "São Tomé and Príncipe"),
    ("SV", Na, "El Salvador"),
    ("SX", Na, "Sint Maarten"),
    ("SY", As, "Syria"),
    ("SZ", Af, "Eswatini"),
    ("TC", Na, "Turks and Caicos Islands"),
    ("TD", Af, "Chad"),
    ("TF", An, "French Southern Territories"),
    ("TG", Af, "Togo"),
    ("TH", As, "Thailand"),
    ("TJ", As, "Tajikistan"),
    ("TK", Oc, "Tokelau"),
    ("TL", Oc, "Timor-Leste"),
    ("TM", As, "Turkmenistan"),
    ("TN", Af, "Tunisia"),
    ("TO", Oc, "Tonga"),
    ("TR", As, "Türkiye"),
    ("TT", Na, "Trinidad and Tobago"),
    ("TV", Oc, "Tuvalu"),
    ("TW", As, "Taiwan"),
    ("TZ", Af, "Tanzania"),
    ("UA", Eu, "Ukraine"),
    ("UG", Af, "Uganda"),
    ("UM", Oc, "United States Minor Outlying Islands"),
    ("US", Na, "United States"),
    ("UY", Sa, "Uruguay"),
    ("UZ", As, "Uzbekistan"),
    ("VA", Eu, "Vatican City"),
    ("VC", Na, "Saint Vincent and the Grenadines"),
    ("VE", Sa, "Venezuela"),
    ("VG", Na, "British Virgin Islands"),
    ("VI", Na, "United States Virgin Islands"),
    ("VN", As, "Vietnam"),
    ("VU", Oc, "Vanuatu"),
    ("WF", Oc, "Wallis and Futuna"),
    ("WS", Oc, "Samoa"),
    ("XK", Eu, "Kosovo"),
    ("YE", As, "Yemen"),
    ("YT", Af, "Mayotte"),
    ("ZA", Af, "South Africa"),
    ("ZM", Af, "Zambia"),
    ("ZW", Af, "Zimbabwe"),
];

/// What people write for a country's code, and mean.
const MEANT: [(&str, &str); 7] = [
    ("BURMA", "MM"),
    ("EL", "GR"),
    ("ENGLAND", "GB"),
    ("HOLLAND", "NL"),
    ("TURKEY", "TR"),
    ("UK", "GB"),
    ("USA", "US"),
];

fn entry(country: Country) -> Option<&'static (&'static str, Continent, &'static str)> {
    let code = country.letters();
    COUNTRIES
        .binary_search_by_key(&code.as_slice(), |(code, ..)| code.as_bytes())
        .ok()
        .map(|at| &COUNTRIES[at])
}

impl Country {
    /// The country's English name; `None` if no country has this code.
    pub fn name(self) -> Option<&'static str> {
        entry(self).map(|(.., name)| *name)
    }

    /// The continent that most of it is said to be on.
    pub fn continent(self) -> Option<Continent> {
        entry(self).map(|(_, continent, _)| *continent)
    }

    /// The countries that somebody who wrote `text` may have meant, with their
    /// names: by name, by a code that is not ISO's, or by one letter of two.
    pub fn near(text: &str) -> Vec<(Country, &'static str)> {
        /// The most suggestions: more are no help.
        const MOST: usize = 5;
        let wanted = text.trim().to_uppercase();
        let meant = MEANT.iter().find(|(typed, _)| *typed == wanted);
        let is = |code: &str| meant.is_some_and(|(_, meant)| *meant == code);
        let named = |name: &str| wanted.len() > 3 && name.to_uppercase().contains(&wanted);
        let mut best: Vec<_> = COUNTRIES
            .iter()
            .filter(|(code, _, name)| is(code) || named(name))
            .collect();
        best.sort_by_key(|(.., name)| name.to_uppercase() != wanted);
        if best.is_empty() && wanted.len() == 2 {
            best = COUNTRIES
                .iter()
                .filter(|(code, ..)| swapped(code, &wanted) || starts(code, &wanted))
                .collect();
            // Two letters in the wrong order are the likelier mistake.
            best.sort_by_key(|(code, ..)| !swapped(code, &wanted));
        }
        best.into_iter()
            .filter_map(|(code, _, name)| {
                let letters = <[u8; 2]>::try_from(code.as_bytes()).ok()?;
                Some((Country::from_letters(letters)?, *name))
            })
            .take(MOST)
            .collect()
    }
}

fn swapped(code: &str, typed: &str) -> bool {
    code.bytes().rev().eq(typed.bytes())
}

fn starts(code: &str, typed: &str) -> bool {
    code.as_bytes().first() == typed.as_bytes().first()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn country(code: &str) -> Country {
        Country::from_letters(code.as_bytes().try_into().unwrap()).unwrap()
    }

    #[test]
    fn the_table_is_sorted_and_every_code_is_found() {
        assert!(COUNTRIES.is_sorted_by(|a, b| a.0 < b.0));
        for (code, continent, name) in COUNTRIES {
            assert_eq!(country(code).name(), Some(name));
            assert_eq!(country(code).continent(), Some(continent));
        }
        assert_eq!(country("ZZ").name(), None);
        assert_eq!(country("ZZ").continent(), None);
    }

    #[test]
    fn codes_that_two_spaces_share_are_different_places() {
        // Rule G3: the continent's code is another place's country.
        for (code, place) in [
            ("NA", "Namibia"),
            ("SA", "Saudi Arabia"),
            ("AF", "Afghanistan"),
            ("AS", "American Samoa"),
        ] {
            let continent = Continent::from_code(code).unwrap();
            assert_eq!(country(code).name(), Some(place));
            assert_ne!(country(code).continent(), Some(continent), "{code}");
        }
    }

    #[test]
    fn a_mistake_is_answered_with_what_was_meant() {
        let near = |text| {
            Country::near(text)
                .into_iter()
                .map(|(country, _)| country.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(near("UK"), ["GB"]);
        assert_eq!(near("usa"), ["US"]);
        assert_eq!(near("Netherlands"), ["NL", "AN", "BQ"]);
        assert_eq!(near("LN")[0], "NL");
        assert_eq!(near("XX"), ["XK"]);
        assert!(near("").is_empty());
        assert!(near("ÄÖÜ").is_empty());
    }
}
