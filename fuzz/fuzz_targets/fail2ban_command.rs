//! What a program sends to Fail2ban's socket: a flat list of words, or an error, and
//! never more words than bytes. Commands that CPython would write are read as they are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_daemon::api::fail2ban::read_command;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(words) = read_command(bytes) {
        assert!(words.len() <= bytes.len() && words.len() <= 1024);
    }
    // The same bytes as the one word of a command.
    if let Ok(word) = std::str::from_utf8(bytes) {
        let length = (word.len() as u32).to_le_bytes();
        let command = [b"\x80\x04](X", &length[..], bytes, b"e."].concat();
        assert_eq!(read_command(&command).as_deref(), Ok(&[word.to_owned()][..]));
    }
});
