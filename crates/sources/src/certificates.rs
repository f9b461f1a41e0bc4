//! Who may vouch for a server: the authorities of this system, or those of a
//! file of the administrator's. For everything that speaks https: lists, and
//! the daemon's sinks.

use std::sync::OnceLock;

use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// The authorities of a text in PEM.
///
/// # Errors
/// It is not PEM, or there is no certificate in it; in words.
pub fn of(pem: &[u8]) -> Result<RootCerts, String> {
    let mut found = Vec::new();
    for item in parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(format!("it is not PEM: {error}")),
        }
    }
    match found.is_empty() {
        true => Err("there is no certificate in it".to_owned()),
        false => Ok(RootCerts::new_with_certs(&found)),
    }
}

/// The system's store; the one of Mozilla that is built in where there is none.
pub fn of_system() -> RootCerts {
    static ROOTS: OnceLock<RootCerts> = OnceLock::new();
    let load = || {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            return RootCerts::WebPki;
        }
        let all: Vec<_> = found
            .certs
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        RootCerts::new_with_certs(&all)
    };
    ROOTS.get_or_init(load).clone()
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn what_vouches_for_nobody_is_an_error() {
        for (pem, words) in [
            ("", "there is no certificate in it"),
            ("no PEM at all\n", "there is no certificate in it"),
            (
                "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
                "it is not PEM",
            ),
        ] {
            let why = of(pem.as_bytes()).expect_err(pem);
            assert!(why.contains(words), "{why}");
        }
    }
}
