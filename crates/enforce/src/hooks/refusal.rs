//! Why a hook could not be had, in words.

use std::io;

use weir_bpf::{
    attachment::{self, Hook},
    device::Device,
    object,
};

/// Why a hook could not be had, for `weir status` and the log.
pub(super) fn refusal(hook: Hook, device: &Device, e: &io::Error) -> String {
    let occupied = matches!(hook, Hook::Xdp | Hook::XdpGeneric)
        .then(|| attachment::xdp_program_on(device.index))
        .flatten();
    match occupied {
        Some((id, mode)) => {
            let name = object::program_name(id);
            let name = if name.is_empty() {
                String::new()
            } else {
                format!(" {name:?}")
            };
            format!(
                "{}: another XDP program{name} (id {id}, {mode}) is there",
                hook.name()
            )
        }
        None if matches!(hook, Hook::Tcx | Hook::Egress)
            && e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) =>
        {
            format!("{}: this kernel has no tcx (6.6 or newer)", hook.name())
        }
        None if matches!(hook, Hook::Tcx | Hook::Egress)
            && e.raw_os_error() == Some(rustix::io::Errno::RANGE.raw_os_error()) =>
        {
            format!(
                "{}: as many other programs are there as the kernel takes",
                hook.name()
            )
        }
        None if hook == Hook::Netfilter => format!(
            "netfilter: {e} (probe: a BPF link of type netfilter; Linux 6.4, CONFIG_NETFILTER_BPF_LINK)"
        ),
        None if matches!(hook, Hook::ClsBpf | Hook::EgressClsBpf) => match e.kind() {
            io::ErrorKind::AlreadyExists => format!(
                "{}: filters of another kind have the first priorities; `tc filter show dev IF ingress` lists them",
                hook.name()
            ),
            _ => format!(
                "{}: {e} (probe: a clsact qdisc with a bpf filter; CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF)",
                hook.name()
            ),
        },
        None if hook == Hook::Xdp
            && e.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) =>
        {
            format!("xdp: the driver {:?} has no native XDP", device.driver)
        }
        None => format!("{}: {e}", hook.name()),
    }
}
