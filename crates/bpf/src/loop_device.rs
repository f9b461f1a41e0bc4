//! The file that a loop device is made of (loop(4)).

use std::{fs::File, os::fd::AsRawFd};

/// `LOOP_GET_STATUS64` of linux/loop.h.
const GET_STATUS: libc::Ioctl = 0x4c05;

/// Device and inode of the file of a loop device, as stat(2) has them; `None`: the kernel does
/// not say, or it is no such device.
pub fn loop_image(device: &File) -> Option<(u64, u64)> {
    // A struct loop_info64 has 232 bytes, and begins with both.
    let mut info = [0_u64; 29];
    // SAFETY: the kernel writes no more than a loop_info64, for which there is room.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS, info.as_mut_ptr()) };
    (rc == 0).then_some((info[0], info[1]))
}
