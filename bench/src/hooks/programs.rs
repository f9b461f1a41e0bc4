//! The rows that are one BPF program on an interface.

use std::sync::Arc;

use anyhow::Context;
use weir_bpf::bare::{Attached, BareDrop, BareHook};

use super::{
    flood_target::FloodTarget,
    task::{Running, Task},
};

struct Program {
    place: Arc<FloodTarget>,
    drop: BareDrop,
    attached: Option<Attached>,
}

/// Loads the program of this hook and attaches it.
pub fn attach(task: &Task, hook: BareHook) -> anyhow::Result<Box<dyn Running>> {
    let place = task.place.clone();
    let drop = BareDrop::denying(hook, &task.banned())
        .with_context(|| format!("BPF program for {hook:?}"))?;
    let index = place.ifindex()?;
    let attached = place
        .enter(|| drop.attach(index))?
        .with_context(|| format!("BPF attachment by {hook:?}"))?;
    Ok(Box::new(Program {
        place,
        drop,
        attached: Some(attached),
    }))
}

impl Running for Program {
    fn dropped(&mut self) -> anyhow::Result<u64> {
        Ok(self.drop.dropped()?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let attached = self.attached.take();
        // A filter of tc is found in its own namespace alone.
        let _ = self.place.enter(|| drop(attached));
    }
}
