//! placeholder
use super::route::Tables;
use xway_abi::Errno;
pub(super) struct Netlink {
    tables: Tables,
}
impl Netlink {
    pub(super) fn open() -> Result<Netlink, Errno> {
        Ok(Netlink { tables: Tables::default() })
    }
    pub(super) fn tables(&mut self) -> Result<&Tables, Errno> {
        Ok(&self.tables)
    }
}
