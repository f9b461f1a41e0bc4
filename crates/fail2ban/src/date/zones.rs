//! Time zones by the abbreviations that Fail2ban knows, and offsets as digits. An
//! abbreviation is an offset for it, in summer and winter.

/// Abbreviations by the minutes that they are east of UTC.
const ZONES: &[(i32, &str)] = &[
    (-12 * 60, "Y"),
    (-11 * 60, "X NUT SST"),
    (-10 * 60, "W CKT HAST HST TAHT TKT"),
    (-9 * 60 - 30, "MART MIT"),
    (-9 * 60, "V AKST GAMT GIT HADT HNY"),
    (-8 * 60, "U AKDT CIST HAY HNP PST PT"),
    (-7 * 60, "T HAP HNR MST PDT"),
    (-6 * 60, "S CST EAST GALT HAR HNC MDT"),
    (-5 * 60, "R CDT COT EASST ECT EST ET HAC HNE PET"),
    (-4 * 60 - 30, "HLV VET"),
    (-4 * 60, "Q AST BOT CLT COST EDT FKT GYT HAE HNA PYT"),
    (-3 * 60 - 30, "HNT NST NT"),
    (
        -3 * 60,
        "P ADT ART BRT CLST FKST GFT HAA PMST PYST SRT UYT WGT",
    ),
    (-2 * 60 - 30, "HAT NDT"),
    (-2 * 60, "O BRST FNT PMDT UYST WGST"),
    (-60, "N AZOT CVT EGT"),
    (0, "Z EGST GMT UTC WET WT"),
    (60, "A CET DFT WAT WEDT WEST"),
    (2 * 60, "B CAT CEDT CEST EET SAST WAST"),
    (3 * 60, "C EAT EEDT EEST IDT MSK"),
    (3 * 60 + 30, "IRST"),
    (4 * 60, "D AMT AZT GET GST KUYT MSD MUT RET SAMT SCT"),
    (4 * 60 + 30, "AFT IRDT"),
    (
        5 * 60,
        "E AMST AQTT AZST HMT MAWT MVT PKT TFT TJT TMT UZT YEKT",
    ),
    (5 * 60 + 30, "SLT"),
    (5 * 60 + 45, "NPT"),
    (6 * 60, "F ALMT BIOT BTT IOT KGT NOVT OMST YEKST"),
    (6 * 60 + 30, "CCT MMT"),
    (7 * 60, "G CXT DAVT HOVT ICT KRAT NOVST OMSST THA WIB"),
    (
        8 * 60,
        "H ACT AWST BDT BNT CAST HKT IRKT KRAST MYT PHT SGT ULAT WITA WST",
    ),
    (9 * 60, "I AWDT IRKST JST KST PWT TLT WDT WIT YAKT"),
    (9 * 60 + 30, "ACST"),
    (10 * 60, "K AEST ChST PGT VLAT YAKST YAPT"),
    (10 * 60 + 30, "ACDT LHST"),
    (11 * 60, "L AEDT LHDT MAGT NCT PONT SBT VLAST VUT"),
    (11 * 60 + 30, "NFT"),
    (
        12 * 60,
        "M ANAST ANAT FJT GILT MAGST MHT NZST PETST PETT TVT WFT",
    ),
    (13 * 60, "FJST NZDT"),
];

/// The minutes east of UTC of `CET`, `+0100`, `UTC-03:30`.
pub fn offset(text: &str) -> Option<i32> {
    let sign = text.find(['+', '-']).unwrap_or(text.len());
    let (name, digits) = text.split_at(sign);
    let base = match name {
        "" => 0,
        name => {
            ZONES
                .iter()
                .find(|(_, names)| names.split(' ').any(|known| known == name))?
                .0
        }
    };
    if digits.is_empty() {
        return (!name.is_empty()).then_some(base);
    }
    let sign = if digits.starts_with('-') { -1 } else { 1 };
    let digits: String = digits[1..].chars().filter(|c| *c != ':').collect();
    if !matches!(digits.len(), 2 | 4) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: i32 = digits.parse().ok()?;
    let minutes = match digits.len() {
        2 => number * 60,
        _ => number / 100 * 60 + number % 100,
    };
    Some(base + sign * minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_read() {
        for (text, minutes) in [
            ("Z", Some(0)),
            ("CET", Some(60)),
            ("NPT", Some(345)),
            ("+0100", Some(60)),
            ("-03:30", Some(-210)),
            ("-08", Some(-480)),
            ("UTC+0530", Some(330)),
            ("", None),
            ("error", None),
            ("+1", None),
        ] {
            assert_eq!(offset(text), minutes, "{text}");
        }
    }
}
