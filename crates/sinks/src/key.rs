//! CURVE public keys as people write them. libzmq takes any characters for a
//! key; here what is not one is refused, so that no typing mistake ends in a
//! connection that is not what was meant.

use z85::DecodeError;

const LENGTH: usize = 40;

/// Reads 40 characters of Z85, or the 80 hexadecimal digits of these (which is
/// how ipt_geofence wants it).
pub fn read(text: &str) -> Result<[u8; 32], String> {
    match text.len() {
        LENGTH => z85(text.as_bytes()),
        n if n == 2 * LENGTH => z85(&hexadecimal(text)?),
        n => Err(format!(
            "{n} characters are neither {LENGTH} nor {}",
            2 * LENGTH
        )),
    }
}

fn hexadecimal(text: &str) -> Result<Vec<u8>, String> {
    hex::decode(text).map_err(|_| "80 characters that are not all hexadecimal digits".to_owned())
}

/// Z85 as ZeroMQ RFC 32 has it. The crate also takes an end filled up with `#`,
/// which makes less than 32 bytes: no key.
fn z85(text: &[u8]) -> Result<[u8; 32], String> {
    let bytes = z85::decode(text).map_err(|error| match error {
        DecodeError::InvalidByte(..) => "a character that Z85 does not have",
        _ => "a group of five above 2^32",
    })?;
    let key = <[u8; 32]>::try_from(bytes).map_err(|_| "a group of five above 2^32")?;
    if key == [0; 32] {
        return Err("all zeros".to_owned());
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

    /// libzmq writes them.
    #[test]
    fn both_ways_to_write_a_key_are_read() {
        let library = weir_libzmq::Libzmq::get().unwrap();
        for _ in 0..100 {
            let text = library.curve_keys().unwrap().public;
            let key = read(&text).unwrap();
            assert_eq!(z85::encode(key), text);
            let hex = hex::encode_upper(&text);
            assert_eq!(read(&hex), Ok(key), "{text}");
            assert_eq!(read(&hex.to_lowercase()), Ok(key), "{text}");
        }
        assert!(read(PUBLIC).is_ok());
    }

    /// G13: whatever is no key is refused.
    #[test]
    fn what_is_no_key_is_refused() {
        let changed = |at: usize, to: &str| {
            let mut text = PUBLIC.to_owned();
            text.replace_range(at..at + 1, to);
            text
        };
        for text in [
            "",
            "x",
            &PUBLIC[..39],
            &format!("{PUBLIC}0"),
            &changed(3, "\\"),
            &changed(3, " "),
            &changed(3, "\""),
            &changed(0, "#"),
            &changed(35, "#"),
            &changed(0, "é"),
            &"0".repeat(40),
            &"#".repeat(40),
            &"g".repeat(80),
            &"30".repeat(40),
            &"ab".repeat(32),
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
