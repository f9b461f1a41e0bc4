//! Decoy ports: told to the kernel, with a generation that has the stage when
//! the first port comes, and one without when the last goes.

use weir_bpf::decoy;

use super::Kernel;
use crate::{DecoyCounts, Decoys, Error, choice::without_decoys};

impl Kernel {
    /// See [`crate::Backend::set_decoys`].
    pub(super) fn put_decoys(&self, decoys: &Decoys) -> Result<(), Error> {
        let mut maintenance = self.maintenance.lock();
        let geometry = {
            let tables = self.tables();
            let (current, wanted) = (&tables.current, !decoys.ports.is_empty());
            if wanted && !current.has_decoys && !decoy::supported() {
                return Err(Error::Unsupported(
                    "this kernel cannot answer at decoy ports (probe: BPF helper bpf_tcp_raw_check_syncookie_ipv6, Linux 6.0 with CONFIG_SYN_COOKIES)".into(),
                ));
            }
            without_decoys(self.effective(), decoys)?;
            // The maps are those of all generations.
            current.decoys.write_own(&decoys.own)?;
            current.decoys.write_ports(&decoys.ports);
            if current.has_decoys == wanted {
                return Ok(());
            }
            current.table.geometry()
        };
        self.next_generation(&mut maintenance, geometry)
    }

    /// See [`crate::Backend::decoy_counts`].
    pub(super) fn count_decoys(&self) -> Result<DecoyCounts, Error> {
        Ok(self.tables().current.decoys.counts()?)
    }
}
