//! Lists fetched from real servers on loopback that do what servers do, and
//! what they should not: every way to fail has an error of its own, in time.

#[path = "../../../tests/common/web.rs"]
#[allow(dead_code)]
mod web;

use std::{
    io::Write,
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use flate2::{Compression, write::GzEncoder};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use web::{Web, reply};
use weir_sources::list::{FetchOutcome, ListError, Patience, Request, Validators, crowdsec, get};

const LIST: &[u8] = b"198.51.100.0/24 ; SBL1\n2001:db8::/32\n";
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(5),
    read: Duration::from_secs(1),
    total: Duration::from_secs(3),
};

fn request(url: &str) -> Request<'_> {
    Request {
        url,
        ca_file: None,
        max_bytes: 1 << 20,
        known: None,
        key: None,
        patience: PATIENCE,
    }
}

fn fetch(url: &str) -> Result<FetchOutcome, ListError> {
    get(&request(url))
}

#[track_caller]
fn changed(fetched: Result<FetchOutcome, ListError>) -> (Vec<u8>, Validators) {
    match fetched {
        Ok(FetchOutcome::Changed { bytes, validators }) => (bytes, validators),
        other => panic!("{other:?}"),
    }
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_list_comes_once_and_then_only_when_it_has_changed() {
    let server = Web::start(|asked, stream| {
        if asked.header("if-none-match") == Some("\"v1\"") {
            assert_eq!(
                asked.header("if-modified-since"),
                Some("Sat, 21 Nov 2026 10:00:00 GMT")
            );
            return reply(stream, "304 Not Modified", &[], b"");
        }
        let head = [
            "ETag: \"v1\"",
            "Last-Modified: Sat, 21 Nov 2026 10:00:00 GMT",
        ];
        reply(stream, "200 OK", &head, LIST)
    });
    let url = server.url("drop.txt");
    let (bytes, validators) = changed(fetch(&url));
    assert_eq!(bytes, LIST);
    let mut again = request(&url);
    again.known = Some(&validators);
    assert_eq!(get(&again), Ok(FetchOutcome::Unchanged));
    let asked = server.asked();
    assert!(
        asked[0].line.starts_with("GET /drop.txt HTTP/1.1"),
        "{asked:?}"
    );
    assert!(asked[0].header("user-agent").unwrap().starts_with("weir/"));
    assert_eq!(asked[0].header("if-none-match"), None);
}

#[test]
fn refusals_say_what_the_server_said() {
    for (status, words) in [
        ("404 Not Found", "404: the list is not there"),
        ("403 Forbidden", "403: it wants a key"),
        ("429 Too Many Requests", "asked too often"),
        ("503 Service Unavailable", "trouble of its own"),
        ("204 No Content", "answered 204"),
        ("304 Not Modified", "without having been asked"),
    ] {
        let server = Web::start(move |_, stream| reply(stream, status, &[], b""));
        let error = fetch(&server.url("")).unwrap_err().to_string();
        assert!(error.contains(words), "{status}: {error}");
    }
}

#[test]
fn redirects_are_followed_and_bounded() {
    let target = Web::start(|_, stream| reply(stream, "200 OK", &[], LIST));
    let to = format!("Location: {}", target.url("there"));
    let server = Web::start(move |_, stream| reply(stream, "302 Found", &[&to], b""));
    assert_eq!(changed(fetch(&server.url("here"))).0, LIST);

    let server =
        Web::start(|_, stream| reply(stream, "301 Moved Permanently", &["Location: /again"], b""));
    assert_eq!(fetch(&server.url("loop")), Err(ListError::Redirects(5)));
    assert_eq!(server.asked().len(), 6);

    // A key goes to nobody else.
    let to = format!("Location: {}", target.url("stolen"));
    let server = Web::start(move |_, stream| reply(stream, "302 Found", &[&to], b""));
    let before = target.asked().len();
    let asked = crowdsec::ask(&server.url(""), "secret", true, 1000, None, PATIENCE);
    assert_eq!(asked, Err(ListError::Status(302)));
    assert_eq!(target.asked().len(), before);
}

#[test]
fn a_slow_server_ends_in_time() {
    // Silence.
    let server = Web::start(|_, _| {
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    });
    let begin = Instant::now();
    let error = fetch(&server.url("")).unwrap_err();
    assert!(matches!(error, ListError::Timeout(_)), "{error}");
    // A byte now and then, forever.
    let server = Web::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")?;
        loop {
            stream.write_all(b"#")?;
            stream.flush()?;
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let error = fetch(&server.url("")).unwrap_err();
    assert!(matches!(error, ListError::Timeout(_)), "{error}");
    assert!(error.to_string().contains("bytes"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn too_much_is_refused_while_it_comes() {
    // By what it says of itself,
    let server = Web::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n")
    });
    assert_eq!(fetch(&server.url("")), Err(ListError::TooLarge(1 << 20)));
    // by what comes,
    let server = Web::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        loop {
            stream.write_all(&[b'#'; 4096])?;
        }
    });
    assert_eq!(fetch(&server.url("")), Err(ListError::TooLarge(1 << 20)));
    // and by what it would be, unpacked: 100 MiB in 100 KiB.
    let bomb = packed(&vec![b'#'; 100 << 20]);
    assert!(bomb.len() < 1 << 18);
    for head in ["Content-Encoding: gzip", "Content-Type: application/gzip"] {
        let bomb = bomb.clone();
        let server = Web::start(move |_, stream| reply(stream, "200 OK", &[head], &bomb));
        assert_eq!(
            fetch(&server.url("")),
            Err(ListError::TooLarge(1 << 20)),
            "{head}"
        );
    }
}

#[test]
fn packed_lists_are_unpacked() {
    for head in ["Content-Encoding: gzip", "Content-Type: application/gzip"] {
        let server = Web::start(move |_, stream| reply(stream, "200 OK", &[head], &packed(LIST)));
        assert_eq!(changed(fetch(&server.url("list.gz"))).0, LIST, "{head}");
    }
    let cut = packed(LIST);
    let cut = cut[..cut.len() - 6].to_vec();
    let server = Web::start(move |_, stream| reply(stream, "200 OK", &[], &cut));
    let error = fetch(&server.url("")).unwrap_err();
    assert!(matches!(error, ListError::Packed(_)), "{error}");
}

#[test]
fn a_download_that_is_cut_off_is_not_a_list() {
    let server = Web::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")?;
        stream.write_all(LIST)
    });
    assert_eq!(fetch(&server.url("")), Err(ListError::Cut(LIST.len())));
    let server = Web::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        stream.write_all(b"5\r\n1.2.3\r\n")
    });
    assert_eq!(fetch(&server.url("")), Err(ListError::Cut(5)));
    let server = Web::start(|_, _| Ok(()));
    let error = fetch(&server.url("")).unwrap_err().to_string();
    assert!(error.contains("closed the connection"), "{error}");
}

#[test]
fn nobody_there_is_said() {
    let port = {
        let server = Web::start(|_, _| Ok(()));
        server.addr.port()
    };
    let error = fetch(&format!("http://127.0.0.1:{port}/"))
        .unwrap_err()
        .to_string();
    assert!(error.to_lowercase().contains("refused"), "{error}");
    let error = fetch("http://no-such-host.invalid/").unwrap_err();
    assert!(
        matches!(error, ListError::Network(_) | ListError::Timeout(_)),
        "{error}"
    );
    for url in [
        "ftp://lists.example/",
        "lists.example",
        "http://",
        "file:///etc/passwd",
        "https://user:password@lists.example/",
        "",
    ] {
        assert!(matches!(fetch(url), Err(ListError::Url(_))), "{url}");
    }
}

/// A server with this certificate.
fn tls(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Web {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let wrap = move |stream: TcpStream| -> Box<dyn web::Stream> {
        let connection = ServerConnection::new(config.clone()).unwrap();
        Box::new(StreamOwned::new(connection, stream))
    };
    Web::wrapped(Box::new(wrap), 0, |_, stream| {
        reply(stream, "200 OK", &[], LIST)
    })
}

fn over_tls(server: &Web, host: &str, ca_file: Option<&Path>) -> Result<FetchOutcome, ListError> {
    let url = format!("https://{host}:{}/", server.addr.port());
    let mut request = request(&url);
    request.ca_file = ca_file;
    get(&request)
}

#[test]
fn certificates_are_checked_and_own_authorities_can_be_named() {
    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("own.pem");
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    std::fs::write(&ca_file, ca_cert.pem()).unwrap();
    let issuer = Issuer::new(ca, &ca_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();

    let server = tls(vec![leaf.der().clone()], &key);
    assert_eq!(
        changed(over_tls(&server, "localhost", Some(&ca_file))).0,
        LIST
    );
    let error = over_tls(&server, "localhost", None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("self-signed") && error.contains("ca_file"),
        "{error}"
    );
    let error = over_tls(&server, "127.0.0.1", Some(&ca_file))
        .unwrap_err()
        .to_string();
    assert!(error.contains("another name"), "{error}");

    let mut old = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    old.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let old = old.signed_by(&key, &issuer).unwrap();
    let server = tls(vec![old.der().clone()], &key);
    let error = over_tls(&server, "localhost", Some(&ca_file))
        .unwrap_err()
        .to_string();
    assert!(error.contains("expired"), "{error}");

    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = own.self_signed(&key).unwrap();
    let server = tls(vec![own.der().clone()], &key);
    let error = over_tls(&server, "localhost", None).unwrap_err();
    assert!(matches!(error, ListError::Certificate(_)), "{error}");
    // Whoever names just this certificate trusts it.
    std::fs::write(&ca_file, own.pem()).unwrap();
    assert_eq!(
        changed(over_tls(&server, "localhost", Some(&ca_file))).0,
        LIST
    );

    std::fs::write(&ca_file, "not a certificate").unwrap();
    let error = over_tls(&server, "localhost", Some(&ca_file))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no certificate in it"), "{error}");
    let error = over_tls(&server, "localhost", Some(Path::new("/nonexistent.pem"))).unwrap_err();
    assert!(matches!(error, ListError::File { .. }), "{error}");
}

#[test]
fn whoever_asked_safely_is_not_sent_to_plain_http() {
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = own.self_signed(&key).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("own.pem");
    std::fs::write(&ca_file, own.pem()).unwrap();
    let plain = Web::start(|_, stream| reply(stream, "200 OK", &[], LIST));
    let to = format!("Location: {}", plain.url(""));
    let server = tls(vec![own.der().clone()], &key);
    server.answer(move |_, stream| reply(stream, "302 Found", &[&to], b""));
    let error = over_tls(&server, "localhost", Some(&ca_file));
    assert_eq!(error, Err(ListError::Redirects(5)));
    assert!(plain.asked().is_empty());
    // And no TLS at all where it is expected.
    let server = Web::start(|_, stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    assert!(over_tls(&server, "localhost", Some(&ca_file)).is_err());
}

#[test]
fn crowdsec_is_asked_as_its_api_wants_it() {
    let server = Web::start(|asked, stream| {
        if asked.header("x-api-key") != Some("secret") {
            return reply(
                stream,
                "403 Forbidden",
                &[],
                b"{\"message\":\"access forbidden\"}",
            );
        }
        reply(stream, "200 OK", &[], b"{\"new\":null,\"deleted\":null}")
    });
    let ask =
        |key, everything| crowdsec::ask(&server.url(""), key, everything, 1 << 20, None, PATIENCE);
    assert_eq!(
        ask("secret", true).unwrap(),
        b"{\"new\":null,\"deleted\":null}"
    );
    ask("secret", false).unwrap();
    let error = ask("another", true).unwrap_err().to_string();
    assert!(error.contains("cscli bouncers add"), "{error}");
    let lines: Vec<_> = server.asked().iter().map(|a| a.line.clone()).collect();
    assert!(
        lines[0].starts_with("GET /v1/decisions/stream?startup=true&"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("GET /v1/decisions/stream?startup=false&"),
        "{lines:?}"
    );
}
