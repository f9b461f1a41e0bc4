//! Decoy ports: told to the kernel, with a generation that has the stage when
//! the first port comes, and one without when the last goes.

use weir_bpf::decoy;

use super::Kernel;
use crate::{DecoyCounts, DecoyResponder, Decoys, Error, Feature};

impl DecoyResponder for Kernel {
    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error> {
        let mut maintenance = self.maintenance.lock();
        let backend = self.effective();
        let geometry = {
            let tables = self.tables();
            let (current, wanted) = (&tables.current, !decoys.ports.is_empty());
            if wanted && !current.has_decoys && !decoy::supported() {
                return Err(Error::Unsupported(
                    "this kernel cannot answer at decoy ports (probe: BPF helper bpf_tcp_raw_check_syncookie_ipv6, Linux 6.0 with CONFIG_SYN_COOKIES)".into(),
                ));
            }
            if let (true, Some(limit)) = (wanted, backend.limit(Feature::Decoys)) {
                return Err(limit.refusal(backend.name()));
            }
            // The maps are those of all generations.
            current.decoys.write_own(&decoys.own)?;
            current.decoys.write_ports(&decoys.ports);
            // Of what the kernel refused maintenance asks again.
            if current.has_decoys == wanted || (wanted && !self.may_have_decoys()) {
                return Ok(());
            }
            current.table.geometry()
        };
        self.next_generation(&mut maintenance, geometry)
    }

    fn decoy_counts(&self) -> Result<DecoyCounts, Error> {
        Ok(self.tables().current.decoys.counts()?)
    }
}
