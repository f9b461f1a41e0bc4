//! What this kernel lacks: it is named with the kernel that has it, and
//! everything else goes on. On a kernel that has it all there is nothing to
//! show; `make kernels` runs this on those that do not.

mod common;

use std::net::SocketAddr;

use common::{ATTACKER, CUSTOMER, HOST, TestNet, Weir, addr, skipped};
use weir_bpf::{AnswerProgram, decoy, probe, programs};
use weir_testkit::traffic::TcpServer;

const PORT: u16 = 8080;

fn lacks(has: bool, what: &str) -> bool {
    if has {
        println!("skipped: this kernel has {what}");
    }
    !has && !skipped(&[])
}

/// Bans hold, of both families, and customers come in.
fn protects(net: &TestNet, weir: &Weir) {
    let _server = TcpServer::start(&net.host, SocketAddr::new(addr("::"), PORT), b"").unwrap();
    for family in [0, 1] {
        let to = SocketAddr::new(addr(HOST[family]), PORT);
        net.serves(ATTACKER[family], to);
        weir.ask(&["ban", ATTACKER[family], "--for", "1h"]).done();
        assert!(!net.connects(ATTACKER[family], to));
        net.serves(CUSTOMER[family], to);
    }
}

#[test]
fn root_without_tcx_a_filter_takes_its_place() {
    if !lacks(probe::tcx_programs(1).is_some(), "tcx") {
        return;
    }
    let net = TestNet::new();
    for backend in ["tcx", "auto"] {
        let config = format!("interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n");
        let mut weir = Weir::start(&net.host, &config);
        assert_eq!(weir.json(&["status"])["backend"], "cls_bpf");
        let said = weir.ask(&["status"]).done().out;
        assert!(
            said.contains("this kernel has no tcx (6.6 or newer)"),
            "{said}"
        );
        protects(&net, &weir);
        weir.stop();
        weir.detach().done();
    }
}

#[test]
fn root_without_a_netfilter_hook_it_is_refused_by_name() {
    if !lacks(programs::netfilter_supported(), "the netfilter hook") {
        return;
    }
    let net = TestNet::new();
    let netfilter = "interfaces = [\"eth0\"]\nbackend = \"netfilter\"\n";
    let words = ["netfilter", "Linux 6.4", "CONFIG_NETFILTER_BPF_LINK"];
    let mut weir = Weir::new(&net.host, netfilter);
    weir.fails().refused(&words);
    assert!(!weir.pins().join("current").exists());
    // Nor does a reload take what there is away.
    weir.configure("interfaces = [\"eth0\"]\nbackend = \"cls_bpf\"\n");
    weir.run();
    weir.configure(netfilter);
    weir.ask(&["reload"]).refused(&words);
    protects(&net, &weir);
}

#[test]
fn root_without_cookies_decoy_ports_are_refused_by_name() {
    if !lacks(decoy::supported(), "SYN cookies for BPF") {
        return;
    }
    let net = TestNet::new();
    let plain = "interfaces = [\"eth0\"]\nbackend = \"cls_bpf\"\n";
    let mut weir = Weir::new(
        &net.host,
        &format!("{plain}[decoy]\nports = [\"23/tcp\"]\n"),
    );
    weir.fails()
        .refused(&["bpf_tcp_raw_check_syncookie_ipv6", "Linux 6.0"]);
    weir.configure(plain);
    weir.run();
    protects(&net, &weir);
}

#[test]
fn root_without_answers_bans_that_reject_drop() {
    if !lacks(AnswerProgram::Reject.is_supported(), "bpf_xdp_load_bytes") {
        return;
    }
    let net = TestNet::new();
    let config = "interfaces = [\"eth0\"]\nbackend = \"cls_bpf\"\n";
    let weir = Weir::start(&net.host, config);
    weir.ask(&["ban", "192.0.2.77", "--for", "1h", "--reject"])
        .done();
    protects(&net, &weir);
}
