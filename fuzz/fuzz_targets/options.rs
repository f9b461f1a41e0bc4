//! What `weir options probe` meets: packets that arrive, what agents and their requesters say,
//! files of results, and options as they are named.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_option_probe::{
    agent_protocol::{Request, Response, read_message, write_message},
    matrix::Matrix,
    packet::PacketParts,
    probe_packet::{Carrier, Marker, Path, craft},
    result_file::{ResultFile, write_head, write_pair},
    site::SiteSpec,
    verdict::{Change, compare},
};
use weir_options::{Layer, OptionSpec, Sections};

#[derive(Debug, Arbitrary)]
struct Input {
    packet: Vec<u8>,
    run: u32,
    index: u16,
    option: String,
    carrier: u8,
    is_v4: bool,
    flipped: Vec<u16>,
    line: Vec<u8>,
    results: Vec<u8>,
    site: String,
}

/// An option on a packet is found again, and a changed packet gets some verdict.
fn probe(input: &Input, option: &OptionSpec) {
    let again: OptionSpec = option.to_string().parse().expect("it was shown");
    assert_eq!(again, *option);
    let carrier = Carrier::ALL[usize::from(input.carrier) % 3];
    if !carrier.can_carry(option.layer, input.is_v4) || Sections::of(&[again]).is_err() {
        return;
    }
    let address = |last: u8| match input.is_v4 {
        true => [192, 0, 2, last].into(),
        false => [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into(),
    };
    let path = Path {
        source: address(1),
        dest: address(2),
        port: 443,
    };
    let marker = Marker {
        run: input.run,
        index: input.index,
    };
    let sent = craft(&path, carrier, Some(option), marker).expect("it has room");
    // A header that tells of others behind it is no header any more.
    if option.layer != Layer::Extension {
        assert_eq!(Marker::find(&sent, input.run), Some(marker));
        assert_eq!(compare(option, &sent, &sent), Change::Passed);
    }
    let mut changed = sent.clone();
    for at in &input.flipped {
        let at = usize::from(*at) % (changed.len() * 8);
        changed[at / 8] ^= 1 << (at % 8);
    }
    let _ = compare(option, &sent, &changed);
    let _ = compare(option, &sent, &input.packet);
}

fuzz_target!(|input: Input| {
    let _ = PacketParts::read(&input.packet);
    let _ = Marker::find(&input.packet, input.run);
    if let Ok(option) = input.option.parse::<OptionSpec>() {
        probe(&input, &option);
    }
    if let Ok(request) = read_message::<Request>(&mut &input.line[..]) {
        let _ = request.check();
        let mut bytes = Vec::new();
        write_message(&mut bytes, &request).expect("memory");
        assert_eq!(
            read_message::<Request>(&mut &bytes[..]).expect("it was written"),
            request
        );
    }
    if let Ok(answer) = read_message::<Response>(&mut &input.line[..]) {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &answer).expect("memory");
        assert_eq!(
            read_message::<Response>(&mut &bytes[..]).expect("it was written"),
            answer
        );
    }
    let head = b"{\"weir_options_probe\":1}\n";
    if let Ok(file) = ResultFile::read(&[&head[..], &input.results].concat()[..]) {
        let mut bytes = Vec::new();
        write_head(&mut bytes).expect("memory");
        for pair in &file.pairs {
            write_pair(&mut bytes, pair).expect("memory");
        }
        assert_eq!(
            ResultFile::read(&bytes[..]).expect("it was written").pairs,
            file.pairs
        );
        let matrix = Matrix::new(&file.pairs);
        let _ = (matrix.text(), matrix.svg());
    }
    let _ = input.site.parse::<SiteSpec>();
});
