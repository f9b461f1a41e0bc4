//! The country database as the benchmark needs it: one address for the
//! NFQUEUE program, all ranges for nft, and whether the clients' addresses are
//! where the rules want them. weir reads the same file by itself.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use anyhow::{Context, ensure};
use maxminddb::{PathElement, Reader, WithinOptions};
use weir_core::geo::Country;

/// Where the two layouts in use keep a country's code: MaxMind's own, and the
/// flat one of the database that comes with weir.
const LAYOUTS: [&[PathElement<'_>]; 2] = [
    &[PathElement::Key("country"), PathElement::Key("iso_code")],
    &[PathElement::Key("country_code")],
];

/// IPv4 addresses from the first to the second, in one country.
pub type Range = (u32, u32, Country);

/// An open database.
pub struct World {
    reader: Reader<Vec<u8>>,
    layout: &'static [PathElement<'static>],
}

impl World {
    /// Reads it and finds out its layout.
    pub fn open(file: &Path) -> anyhow::Result<Self> {
        let reader =
            Reader::open_readfile(file).with_context(|| format!("open {}", file.display()))?;
        let mut world = Self {
            reader,
            layout: LAYOUTS[0],
        };
        for layout in LAYOUTS {
            world.layout = layout;
            let mut some = world.reader.networks(WithinOptions::default())?.take(100);
            let named = some.any(|found| {
                let found = found.and_then(|found| found.decode_path::<&str>(layout));
                matches!(found, Ok(Some(_)))
            });
            if named {
                return Ok(world);
            }
        }
        anyhow::bail!("{} names no countries", file.display())
    }

    /// The country of an address.
    pub fn country(&self, addr: IpAddr) -> Option<Country> {
        let found = self.reader.lookup(addr).ok()?;
        country(found.decode_path(self.layout).ok()??)
    }

    /// All IPv4 ranges in order, neighbours in one country joined.
    pub fn ranges(&self) -> anyhow::Result<Vec<Range>> {
        let all = "0.0.0.0/0".parse().expect("a prefix");
        let mut ranges: Vec<Range> = Vec::new();
        for found in self.reader.within(all, WithinOptions::default())? {
            let found = found?;
            let Some(country) = found.decode_path(self.layout)?.and_then(country) else {
                continue;
            };
            let network = found.network()?;
            let IpAddr::V4(first) = network.ip() else {
                continue;
            };
            let first = first.to_bits();
            let last = first | u32::MAX.checked_shr(network.prefix().into()).unwrap_or(0);
            match ranges.last_mut() {
                Some(before) if before.1.checked_add(1) == Some(first) && before.2 == country => {
                    before.1 = last;
                }
                before => {
                    ensure!(
                        before.is_none_or(|before| before.1 < first),
                        "the database is out of order at {}",
                        Ipv4Addr::from(first)
                    );
                    ranges.push((first, last, country));
                }
            }
        }
        Ok(ranges)
    }
}

fn country(code: &str) -> Option<Country> {
    Country::from_letters(code.as_bytes().try_into().ok()?)
}
