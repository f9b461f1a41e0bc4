//! QUIC connections whose client changes its port: real ones, of aioquic.

use super::*;

/// What a real runs: number, server ID, certificate, key, and the addresses that it serves.
const SERVER: &str = "
import asyncio, os, sys, types
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.quic import connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived

number, server_id, cert, key, *addresses = sys.argv[1:]
server_id = bytes.fromhex(server_id)

# Connection IDs of QUIC-LB in plaintext, of configuration 0: its length, the server ID, and
# whatever else. Nothing else of 12 bytes is asked of it.
def urandom(n):
    if n != 12: return os.urandom(n)
    return (bytes([12]) + server_id + os.urandom(12))[:12]
connection.os = types.SimpleNamespace(**{**vars(os), 'urandom': urandom})

class Who(QuicConnectionProtocol):
    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, number.encode(), end_stream=True)

async def main():
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=['who'], connection_id_length=12)
    configuration.load_cert_chain(cert, key)
    for address in addresses:
        await serve(address, 443, configuration=configuration, create_protocol=Who)
    print('serving', flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
";

/// A client's connections, one a line: the reals that answered before each of eight moves
/// and after the last one, or `x` and the end where nobody did.
const CLIENT_SCRIPT: &str = "
import select, socket, ssl, sys, time
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived

vip, count, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
family = socket.AF_INET6 if ':' in vip else socket.AF_INET
peer = (vip, 443)

class Client:
    def __init__(self):
        configuration = QuicConfiguration(alpn_protocols=['who'], server_name='vip',
                                          verify_mode=ssl.CERT_NONE)
        self.quic = QuicConnection(configuration=configuration)
        self.move()
        self.quic.connect(peer, now=time.time())

    # The socket before it is closed: what is sent there arrives no more.
    def move(self):
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.setblocking(False)

    def ask(self):
        stream = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream, b'who', end_stream=True)
        end = time.time() + patience
        while time.time() < end:
            for data, _ in self.quic.datagrams_to_send(now=time.time()):
                self.socket.sendto(data, peer)
            timer = self.quic.get_timer() or end
            wait = max(0, min(timer, end) - time.time())
            if select.select([self.socket], [], [], wait)[0]:
                data, _ = self.socket.recvfrom(65536)
                self.quic.receive_datagram(data, peer, now=time.time())
            elif time.time() >= timer:
                self.quic.handle_timer(now=time.time())
            while event := self.quic.next_event():
                if isinstance(event, StreamDataReceived) and event.stream_id == stream:
                    return event.data.decode()
        return 'x'

for _ in range(count):
    client = Client()
    answers = [client.ask()]
    for move in range(8):
        if answers[-1] == 'x': break
        client.move()
        # By its router's wish, or its own, with another connection ID.
        if move % 2: client.quic.change_connection_id()
        answers.append(client.ask())
    print(*answers, flush=True)
";

/// aioquic of PyPI, in an environment of its own below `dir`: its Python; `None`: it cannot
/// be had, which was said.
fn aioquic(dir: &std::path::Path) -> Option<String> {
    let run = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-ec", script]).current_dir(dir);
        shell.stdin(Stdio::null()).output().unwrap()
    };
    let made = run("python3 -m venv venv; \
         openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=vip");
    assert!(made.status.success(), "package python3-venv: {made:?}");
    let installed = run("venv/bin/pip -q install aioquic==1.7.2");
    if !installed.status.success() {
        let said = String::from_utf8_lossy(&installed.stderr);
        println!("skipped: aioquic cannot be installed from PyPI: {said}");
        return None;
    }
    Some(dir.join("venv/bin/python").display().to_string())
}

/// The answers of each connection to each virtual address, each waited for so many seconds.
fn connections(
    segment: &PoolNetwork,
    python: &str,
    count: usize,
    patience: u32,
) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for vip in VIP {
        let (count, patience) = (count.to_string(), patience.to_string());
        let out = segment
            .client
            .run(python, &["-c", CLIENT_SCRIPT, vip, &count, &patience]);
        let lines = String::from_utf8(out.unwrap().stdout).unwrap();
        let answers = lines.lines().map(|line| line.split(' ').map(str::to_owned));
        all.extend(answers.map(Iterator::collect::<Vec<_>>));
    }
    all
}

#[test]
fn root_quic_connections_stay_with_their_real_when_their_client_moves() {
    if skipped(&["nginx", "python3", "openssl"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let dir = segment.dir.path();
    let Some(python) = aioquic(dir) else {
        return;
    };
    let ids = ["0a01", "0a02"];
    let file = |name: &str| dir.join(name).display().to_string();
    let _servers = [0, 1].map(|n: usize| {
        let mut command = Command::new(&python);
        command.args([
            "-c",
            SERVER,
            &n.to_string(),
            ids[n],
            &file("cert"),
            &file("key"),
        ]);
        command.args(VIP).stdin(Stdio::null());
        let child = segment.reals[n].spawn(command).unwrap();
        soon("the QUIC server to listen", || {
            let sockets = segment.reals[n]
                .run("ss", &["-Huln", "sport = :443"])
                .unwrap();
            (String::from_utf8_lossy(&sockets.stdout).lines().count() == 2).then_some(())
        });
        child
    });
    let plain = config("tcx").replace("5353/udp", "443/udp");
    let named = REAL
        .iter()
        .zip(ids)
        .fold(plain.clone(), |text, (real, id)| {
            let address = format!("address = \"{real}\"");
            text.replace(&address, &format!("{address}, quic_server_id = \"{id}\""))
        });
    let weir = Weir::start(&segment.host, &named);
    live_soon(&weir, 2);
    assert_eq!(pool(&weir)["reals"][1]["quic_server_id"], ids[1]);

    let answers = connections(&segment, &python, 8, 30);
    assert_eq!(answers.len(), 16);
    for of_one in &answers {
        assert_eq!(of_one.len(), 9, "{answers:?}");
        assert!(of_one.iter().all(|n| *n == of_one[0]), "{answers:?}");
    }
    assert_eq!(
        answers
            .iter()
            .map(|of_one| &of_one[0])
            .collect::<BTreeSet<_>>()
            .len(),
        2
    );

    // Both families' services say so, in every place where they are shown.
    let counted = |weir: &Weir, key: &str| -> Vec<Option<u64>> {
        let shown = pool(weir);
        let services = shown["services"].as_array().unwrap().iter();
        let of_udp = services.filter(|service| service["port"] == "443/udp");
        of_udp.map(|service| service[key].as_u64()).collect()
    };
    let placed = counted(&weir, "quic_placed");
    assert_eq!(placed.len(), 2);
    assert!(
        placed.iter().all(|count| *count > Some(8 * 8)),
        "{placed:?}"
    );
    assert_eq!(counted(&weir, "quic_unknown"), [Some(0); 2]);
    let of_tcp = pool(&weir)["services"][0].clone();
    assert_eq!(of_tcp["port"], "80/tcp");
    assert!(of_tcp.get("quic_placed").is_none(), "{of_tcp}");
    let shown = weir.ask(&["pool", "show", "web"]).done().out;
    assert!(shown.contains("QUIC-PLACED"), "{shown}");
    for vip in VIP {
        let count = |server: &str| {
            let labels = ["web", vip, "443/udp", server];
            weir.metric("weir_pool_service_quic_packets_total", &labels)
        };
        assert!(count("known") > Some(64), "{:?}", count("known"));
        assert_eq!(count("unknown"), Some(0));
    }
    // Servers that write the IDs of no real.
    let others = named.replace("\"0a0", "\"0b0");
    assert_ne!(others, named);
    let placed = counted(&weir, "quic_placed");
    weir.configure(&others);
    weir.ask(&["reload"]).done();
    connections(&segment, &python, 2, 3);
    assert_eq!(counted(&weir, "quic_placed"), placed);
    assert!(
        counted(&weir, "quic_unknown")
            .iter()
            .all(|count| *count > Some(0))
    );

    // Without the IDs some of them get to a server that does not know them.
    weir.configure(&plain);
    weir.ask(&["reload"]).done();
    assert_eq!(counted(&weir, "quic_placed"), [None; 2]);
    let answers = connections(&segment, &python, 2, 8);
    assert!(answers.iter().all(|of_one| of_one[0] != "x"), "{answers:?}");
    assert!(
        answers.iter().any(|of_one| of_one.last().unwrap() == "x"),
        "{answers:?}"
    );
}
