//! What every net has at the same place: the device, and who runs on which core.

/// The device that the path protects.
pub const DEVICE: &str = "d0";
/// Client and server.
pub const CLIENT_CORE: usize = 0;
/// What sends the background load, and the softirqs that it raises.
pub const LOAD_CORE: usize = 1;
