//! The part that one user may have of a table in which users can have as much noted as they like:
//! who fills his keeps nobody else out.

use std::{os::unix::fs::MetadataExt, path::Path};

use super::way::reach_link;

/// So many owners fill a table, less the part that is left to root, which may have all of it.
pub(super) const OWNERS: usize = 4;

/// Who decides what is at a path: the first user but root who owns something on the way to it, be
/// it a directory, a link or what is there. The owner of what a link leads to would be one whom
/// whoever made the link has chosen.
pub(super) fn owner_of(path: &Path) -> u32 {
    let mut way: Vec<&Path> = path.ancestors().collect();
    way.reverse();
    let owners = way.into_iter();
    let mut owners = owners.map_while(|part| Some(reach_link(part)?.about().ok()?.uid()));
    owners.find(|owner| *owner != 0).unwrap_or(0)
}

/// Is there room for one more of this owner in a table of so many, which has some of these owners?
/// All users together leave a part to root.
pub(super) fn has_room(most: usize, owners: impl Iterator<Item = u32>, owner: u32) -> bool {
    let (mut all, mut of_users, mut own) = (0, 0, 0);
    for is in owners {
        all += 1;
        of_users += usize::from(is != 0);
        own += usize::from(is == owner);
    }
    let share = most / OWNERS;
    all < most && (owner == 0 || own < share && of_users < most - share)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{chown, lchown, symlink},
    };

    use super::*;

    #[test]
    fn each_user_has_a_part_and_root_what_is_left() {
        let has = |owners: &[(u32, usize)], owner| {
            let owners = owners.iter();
            let all = owners.flat_map(|(owner, count)| std::iter::repeat_n(*owner, *count));
            has_room(16, all, owner)
        };
        assert!(has(&[(1000, 3)], 1000));
        assert!(!has(&[(1000, 4)], 1000));
        assert!(has(&[(1000, 4)], 1001));
        assert!(!has(&[(1000, 4), (1001, 4), (1002, 4)], 1003));
        assert!(has(&[(1000, 4), (1001, 4), (1002, 4), (0, 3)], 0));
        assert!(has(&[(0, 15)], 1000) && has(&[(0, 15)], 0));
        assert!(!has(&[(0, 16)], 1000) && !has(&[(0, 16)], 0));
    }

    #[test]
    fn root_whoever_can_put_another_file_at_a_path_owns_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "one").unwrap();
        if chown(at("file"), Some(1001), None).is_err() {
            eprintln!("skipped: files cannot be given away without root");
            return;
        }
        assert_eq!(owner_of(&at("file")), 1001);
        assert_eq!(owner_of(Path::new("/")), 0);
        fs::create_dir(at("home")).unwrap();
        fs::write(at("home/roots"), "one").unwrap();
        symlink("/", at("home/link")).unwrap();
        assert_eq!(owner_of(&at("home/roots")), 0);
        lchown(at("home/link"), Some(1002), None).unwrap();
        assert_eq!(owner_of(&at("home/link/etc")), 1002);
        chown(at("home"), Some(1000), None).unwrap();
        for name in ["home/roots", "home/link/etc", "home/none/at/all"] {
            assert_eq!(owner_of(&at(name)), 1000, "{name}");
        }
    }
}
