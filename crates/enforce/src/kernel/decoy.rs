//! Decoy and tarpit ports: told to the kernel, with what answers there from the first port on
//! until the last goes.

use weir_bpf::{AnswerProgram, fault};

use super::Kernel;
use crate::{DecoyCounts, DecoyResponder, Decoys, Error, Feature, NeighbourSnapshot, TarpitCounts};

impl DecoyResponder for Kernel {
    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error> {
        let maintenance = self.maintenance.lock();
        // Held until the ports are there: an interface that came in between could be
        // given netfilter's hook, where there are none.
        let (points, _) = self.attach_points();
        let backend = self.effective_where(points.any_on_netfilter());
        let kinds = [
            (AnswerProgram::Decoy, decoys.ports.is_empty()),
            (AnswerProgram::Tarpit, !decoys.has_tarpits()),
        ];
        let wanted = !decoys.is_empty();
        if wanted {
            if !AnswerProgram::Decoy.is_supported() {
                return Err(Error::Unsupported(
                    "this kernel cannot answer at decoy ports (probe: BPF helper bpf_tcp_raw_check_syncookie_ipv6, Linux 6.0 with CONFIG_SYN_COOKIES)".into(),
                ));
            }
            if let Some(limit) = backend.limit(Feature::Decoys) {
                return Err(limit.refusal(backend.name()));
            }
            // Of what the kernel refuses maintenance asks again.
            for (answer, _) in kinds.iter().filter(|(_, none)| !none) {
                if !self.tables().current.wants(*answer) {
                    self.answer(&maintenance, *answer);
                }
            }
        }
        fault::point("decoys-before-ports");
        let tables = self.tables();
        // The maps are those of all generations.
        let current = &tables.current;
        if wanted {
            current.decoys.write_own(&decoys.own)?;
        }
        current.decoys.write_ports(&decoys.ports);
        current.decoys.write_tarpits(&decoys.tarpit);
        let (dark, after) = (&decoys.dark, decoys.dark_after);
        current
            .decoys
            .write_prefixes(&decoys.addresses, dark, after)?;
        for generation in tables.generations() {
            generation.table.set_port_features(current.port_features());
        }
        for (answer, _) in kinds.iter().filter(|(_, none)| *none) {
            current.fall_silent(*answer)?;
        }
        if !wanted {
            // Nobody asks for them, however many there are.
            current.decoys.write_own(&[])?;
        }
        Ok(())
    }

    fn set_segment(&self, segment: &NeighbourSnapshot) -> Result<(), Error> {
        let decoys = &self.tables().current.decoys;
        // Those first, for a link is what begins to answer.
        decoys.note_alive(&segment.alive, segment.seconds)?;
        Ok(decoys.write_links(&segment.links)?)
    }

    fn decoy_counts(&self) -> Result<DecoyCounts, Error> {
        Ok(self.tables().current.decoys.counts()?)
    }

    fn tarpit_counts(&self) -> Result<TarpitCounts, Error> {
        Ok(self.tables().current.decoys.tarpit_counts()?)
    }
}
