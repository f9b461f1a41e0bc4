//! Every backend against a model of what weir does with a packet, by chance.

use super::*;

/// A stream of numbers that is the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % sides
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.roll(of.len())]
    }

    /// Somebody outside; few, so that prefixes hold many of them.
    fn source(&mut self) -> IpAddr {
        let n = self.roll(48) as u16;
        Self::sources_of(n)[self.roll(2)]
    }

    fn sources_of(n: u16) -> [IpAddr; 2] {
        [
            IpAddr::from([198, 18, (n >> 4) as u8, (n & 15) as u8 * 16 + 1]),
            IpAddr::from([0x2001, 0xdb8, 0xbad, n >> 3, 0, 0, 0, (n & 7) + 1]),
        ]
    }

    fn sources() -> impl Iterator<Item = IpAddr> {
        (0..48).flat_map(Self::sources_of)
    }

    fn prefix(&mut self) -> Prefix {
        let source = self.source();
        let lengths: &[u8] = match source {
            IpAddr::V4(_) => &[32, 32, 32, 32, 32, 31, 28, 27, 25, 24],
            IpAddr::V6(_) => &[128, 128, 128, 128, 127, 126, 125, 64, 64, 63],
        };
        Prefix::new(source, lengths[self.roll(lengths.len())]).unwrap()
    }
}

/// Every source somewhere or nowhere, and a geofence of two rules: for one port
/// by whom it lets in, for the others by whom it does not. Adds it to the
/// configuration; returns it as the reference has it.
fn places(dice: &mut Dice, weir: &Weir, config: &mut String) -> (GeoTable, Vec<Fence>) {
    let mut database = Mmdb::new("Test-Country");
    let mut builder = GeoTableBuilder::default();
    for source in Dice::sources() {
        let code = *dice.pick(&[&"RU", &"NL", &"NA", &""]);
        if code.is_empty() {
            continue;
        }
        let continent = if code == "NA" { "AF" } else { "EU" };
        let host = Prefix::host(source);
        let network = format!("{source}/{}", host.bits());
        database = database.with(&network, country(code, continent));
        let place = Place {
            country: Country::from_letters(code.as_bytes().try_into().unwrap()),
            continent: Continent::from_code(continent),
            asn: None,
        };
        let place = builder.number(place).unwrap();
        builder.add(host, place);
    }
    let file = weir.path("places.mmdb");
    fs::write(&file, database.build()).unwrap();
    *config += &format!(
        "[geofence]\ndatabase = {file:?}\ndeny = [\"country:RU\"]\n\
         [geofence.rules.some]\nports = [\"2222/udp\"]\ndefault = \"drop\"\n\
         unknown = \"drop\"\nallow = [\"continent:EU\"]\n"
    );
    let selectors = |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect();
    let rest = Fence {
        name: "geofence".to_owned(),
        scope: PortSet::all(),
        direction: Direction::In,
        default: RuleAction::Pass,
        allow: Vec::new(),
        deny: selectors(&["country:RU"]),
        unknown: RuleAction::Pass,
        except: PrefixSet::default(),
    };
    let some = Fence {
        name: "some".to_owned(),
        scope: "2222/udp".parse().unwrap(),
        default: RuleAction::Drop,
        allow: selectors(&["continent:EU"]),
        deny: Vec::new(),
        unknown: RuleAction::Drop,
        ..rest.clone()
    };
    (builder.finish(), vec![some, rest])
}

/// Random bans, allow list, lists and, where there is one, geofence; random
/// packets. Who gets through is whom the reference decision lets through, with
/// every backend.
#[test]
fn root_every_backend_agrees_with_the_reference() {
    if skipped(&PROGRAMS) {
        return;
    }
    const PORTS: [u16; 3] = [PORT, OTHER_PORT, 5353];
    const NOBODY: [&str; 4] = ["0.1.2.3", "::5", "::ffff:198.18.0.1", "::198.18.0.1"];
    const SCOPES: [&str; 7] = [
        "all",
        "all",
        "8080/udp",
        "2222",
        "2000-9000/udp",
        "22/tcp,8080/tcp",
        "5353/udp,8080",
    ];
    for (case, seed) in only().flat_map(|case| [(case, 1), (case, 2)]) {
        let mut dice = Dice(seed);
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, "");
        let prefixes =
            |dice: &mut Dice, count| -> Vec<Prefix> { (0..count).map(|_| dice.prefix()).collect() };
        let lists = [prefixes(&mut dice, 6), prefixes(&mut dice, 6)];
        let allow: Vec<_> = (0..8).map(|_| Prefix::host(dice.source())).collect();
        let exempt: PrefixSet = allow.iter().copied().collect();
        let scopes: [PortSet; 2] = ["all", "2222/udp"].map(|scope| scope.parse().unwrap());
        let mut more = format!("allow = {:?}\n", texts(&allow));
        let (geo_table, fences) = match case.geofence {
            true => places(&mut dice, &weir, &mut more),
            false => Default::default(),
        };
        for (number, list) in lists.iter().enumerate() {
            let file = weir.path(&format!("list{number}.txt"));
            fs::write(&file, texts(list).join("\n") + "\n").unwrap();
            let ports = ["", "ports = [\"2222/udp\"]\n"][number];
            more += &format!("[list.l{number}]\nfile = {file:?}\n{ports}");
        }
        weir.configure(&config(case, &more));
        weir.run();
        if case.backend == "nft" {
            soon("its chain at ingress", || {
                let note = weir.attachment("eth0").1;
                note.contains("at ingress and").then_some(())
            });
        }
        let mut bans: Vec<(Prefix, PortSet)> = Vec::new();
        for _ in 0..24 {
            let (subject, scope) = (dice.prefix(), dice.pick(&SCOPES));
            // Nobody bans whom the allow list holds.
            if exempt.covering(subject).is_some() {
                continue;
            }
            let text = subject.to_string();
            let mut verb = vec!["ban", &text, "--for", "1h"];
            if scope != "all" {
                verb.extend(["--port", scope]);
            }
            weir.ask(&verb).done();
            bans.push((subject, scope.parse().unwrap()));
        }
        for _ in 0..4 {
            let (subject, _) = bans[dice.roll(bans.len())].clone();
            weir.ask(&["unban", &subject.to_string()]).done();
            bans.retain(|(other, _)| *other != subject);
            if bans.is_empty() {
                break;
            }
        }

        let layers: Vec<_> = ["l0", "l1"]
            .into_iter()
            .enumerate()
            .map(|(number, name)| ListLayer {
                name,
                scope: &scopes[number],
                direction: Direction::In,
                prefixes: &lists[number],
            })
            .collect();
        let classes = Plan {
            geo_table: &geo_table,
            fences: &fences,
            lists: &layers,
        };
        let classes = classes.join().unwrap();
        let expected = |source: IpAddr, port: u16| {
            let holding = bans.iter().filter(|(subject, _)| subject.contains(source));
            let asked = Asked {
                source: Some(source),
                ports: &[(17, port)],
                denied: classes.judge(source, false, Some((17, port))).reason(),
                allowed: exempt.lookup(source).is_some(),
                observe: false,
            };
            decide(holding.map(|(_, scope)| (scope, Action::Drop)), &asked)
        };

        let sockets = net
            .host
            .enter(|| PORTS.map(|port| UdpSocket::bind(any(port)).unwrap()));
        let sockets = sockets.unwrap();
        let (mut dropped, mut passed, mut fenced) = (0, 0, 0);
        for round in 0..16u32 {
            // Some from addresses that nobody has, some behind priority tags.
            let packets: Vec<(IpAddr, usize, usize)> = (0..60)
                .map(|_| {
                    let source = match dice.roll(12) {
                        0 => addr(dice.pick(&NOBODY)),
                        _ => dice.source(),
                    };
                    let tags = [0, 0, 0, 1, 2, 3][dice.roll(6)];
                    (source, dice.roll(PORTS.len()), tags)
                })
                .collect();
            let send = |source: IpAddr, port: usize, tags: usize, number: u32| {
                let family = usize::from(source.is_ipv6());
                let wire = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A));
                let frame = (0..tags)
                    .fold(wire, |frame, _| frame.vlan(0))
                    .ip(source, addr(HOST[family]))
                    .udp(40022, PORTS[port])
                    .payload(&number.to_be_bytes())
                    .build();
                let sent = send_frames(&net.internet, "eth0", [&frame[..]].into_iter());
                assert_eq!(sent.unwrap(), 1, "{source}");
            };
            for (number, (source, port, tags)) in packets.iter().enumerate() {
                send(*source, *port, *tags, number as u32);
            }
            // One wire: what was to come has come when these are here.
            let mut arrived = vec![false; packets.len()];
            for (port, socket) in sockets.iter().enumerate() {
                send(addr(GATEWAY[0]), port, 0, u32::MAX);
                socket.set_read_timeout(Some(SOON)).unwrap();
                let mut bytes = [0; 4];
                loop {
                    retry_interrupted(|| socket.recv(&mut bytes)).unwrap();
                    match u32::from_be_bytes(bytes) {
                        u32::MAX => break,
                        number => arrived[number as usize] = true,
                    }
                }
            }
            for ((source, port, tags), arrived) in packets.iter().zip(arrived) {
                // nftables' ingress cannot look behind two tags.
                let reason = match case.backend == "nft" && *tags > 1 {
                    true => Reason::TooManyTags,
                    false => expected(*source, PORTS[*port]),
                };
                assert_eq!(
                    arrived,
                    !reason.is_drop(),
                    "{case:?}, seed {seed}, round {round}: {source} ({:?}) behind {tags} tags to {}: {reason}\n{bans:?}\n{lists:?}\n{allow:?}",
                    geo_table.place(*source),
                    PORTS[*port]
                );
                fenced += usize::from(reason == Reason::Fenced);
                match arrived {
                    true => passed += 1,
                    false => dropped += 1,
                }
            }
        }
        println!(
            "{} seed {seed}: {dropped} dropped, {fenced} for their place, {passed} passed",
            case.backend
        );
        assert!(dropped > 100 && passed > 100);
        assert_eq!(fenced > 50, case.geofence);
    }
}

fn texts(prefixes: &[Prefix]) -> Vec<String> {
    prefixes.iter().map(ToString::to_string).collect()
}
