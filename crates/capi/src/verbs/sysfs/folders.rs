//! Folders of devices that programs list by themselves.
//!
//! What a program lists with is a stream of the C library's own, so there must be a folder that it is of. One is made when it
//! is asked for, below this user's folder ([`user_folders`]), and has names only: a file is a link that leads nowhere, since
//! files are asked for by their whole path; a folder in it lists as the folder does that it stands for.
//!
//! A folder is called after what is in it, is filled as often as it is asked for, and stays. So it does not matter who makes it,
//! how many do so at once, and where one of them is killed meanwhile: there are as many folders as there are different lists.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use oarlock_device::DeviceInfo;
use oarlock_hostd::user_folders;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::super::query::GID_TABLE_LEN;

/// What a folder lists: names, none of them twice.
pub(super) type List = Vec<(String, Entry)>;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Entry {
    File,
    Folder(List),
    /// A link to a folder, as the kernel has for devices.
    Link(List),
    /// What is there without these devices, at this path.
    Kernels(PathBuf),
}

/// The folder at `path` below the root of sysfs, if it is one of these devices.
pub(super) fn of_sysfs(path: &str, devices: &[DeviceInfo]) -> Option<List> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    if parts.next() != Some("class") {
        return None;
    }
    let mut list = vec![
        folder(
            "infiniband",
            devices
                .iter()
                .map(|info| (info.name.clone(), Entry::Link(of_device(info))))
                .collect(),
        ),
        folder("infiniband_verbs", of_verbs(devices)),
    ];
    let mut depth = 0;
    for part in parts {
        let (_, entry) = list.into_iter().find(|(name, _)| name == part)?;
        list = match entry {
            Entry::File | Entry::Kernels(_) => return None,
            Entry::Folder(list) | Entry::Link(list) => list,
        };
        depth += 1;
    }
    // The folder of all classes is the kernel's.
    (depth > 0).then_some(list)
}

/// The folder with the devices' nodes.
pub(super) fn of_nodes(devices: &[DeviceInfo]) -> List {
    let nodes = devices
        .iter()
        .map(|info| (format!("uverbs{}", info.index), Entry::File));
    nodes.collect()
}

/// A list with what the kernel lists in the folder at `path` besides.
///
/// # Errors
/// The kernel has no such folder, or does not list it.
pub(super) fn with_kernels(mut list: List, path: &Path) -> io::Result<List> {
    let ours: HashSet<_> = list.iter().map(|(name, _)| name.clone()).collect();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // The kernel's names are plain ones.
        let name = entry.file_name().into_string();
        if let Some(name) = name.ok().filter(|name| !ours.contains(name)) {
            list.push((name, Entry::Kernels(entry.path())));
        }
    }
    Ok(list)
}

fn of_verbs(devices: &[DeviceInfo]) -> List {
    let mut list = files(&["abi_version"]);
    list.extend(devices.iter().map(|info| {
        let name = format!("uverbs{}", info.index);
        (name, Entry::Link(files(&["abi_version", "ibdev"])))
    }));
    list
}

fn of_device(info: &DeviceInfo) -> List {
    let mut list = files(&[
        "board_id",
        "fw_ver",
        "hca_type",
        "hw_rev",
        "node_desc",
        "node_guid",
        "node_type",
        "sys_image_guid",
    ]);
    let port = folder(&info.port_num.to_string(), of_port(info));
    list.push(folder("ports", vec![port]));
    list
}

fn of_port(info: &DeviceInfo) -> List {
    let mut list = files(&[
        "cap_mask",
        "lid",
        "lid_mask_count",
        "link_layer",
        "phys_state",
        "rate",
        "sm_lid",
        "sm_sl",
        "state",
    ]);
    // Only what is in the table has attributes that can be read, though the kernel lists those of every place.
    let count = info.gids.len().min(GID_TABLE_LEN);
    let attributes = vec![
        folder("ndevs", numbered(count)),
        folder("types", numbered(count)),
    ];
    list.extend([
        folder("gid_attrs", attributes),
        folder("gids", numbered(GID_TABLE_LEN)),
        folder("pkeys", numbered(1)),
    ]);
    list
}

fn folder(name: &str, list: List) -> (String, Entry) {
    (name.to_owned(), Entry::Folder(list))
}

fn files(names: &[&str]) -> List {
    let files = names.iter().map(|name| ((*name).to_owned(), Entry::File));
    files.collect()
}

fn numbered(count: usize) -> List {
    (0..count)
        .map(|index| (index.to_string(), Entry::File))
        .collect()
}

/// A folder in the file system that lists so.
///
/// # Errors
/// What the system says; this user has no folder of its own.
pub(super) fn made(list: &List) -> io::Result<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute());
    let user = rustix::process::geteuid().as_raw();
    let mut problem = io::Error::from(io::ErrorKind::NotFound);
    for parent in user_folders(runtime.as_deref(), &env::temp_dir()) {
        match made_in(&parent, list, user) {
            Ok(made) => return Ok(made),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

fn made_in(parent: &Path, list: &List, user: u32) -> io::Result<PathBuf> {
    match rustix::fs::mkdir(parent, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let opened = rustix::fs::open(parent, FOLDER, Mode::empty())?;
    // One of another user, or to which others write, may lead anywhere.
    let stat = rustix::fs::fstat(&opened)?;
    if stat.st_uid != user || stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        let path = parent.display();
        return Err(io::Error::other(format!("{path} is not this user's alone")));
    }
    let name = name_of(list);
    fill(&opened, &opened, &name, list)?;
    Ok(parent.join(name))
}

fn name_of(list: &List) -> String {
    let mut hasher = DefaultHasher::new();
    list.hash(&mut hasher);
    format!("sysfs-{:016x}", hasher.finish())
}

/// Makes the folder `name` in `parent`, and all that it lists. What links lead to stands in `top`.
fn fill(top: &OwnedFd, parent: &OwnedFd, name: &str, list: &List) -> io::Result<()> {
    let unless_there = |done: rustix::io::Result<()>| match done {
        Err(Errno::EXIST) => Ok(()),
        done => done,
    };
    unless_there(rustix::fs::mkdirat(parent, name, Mode::RWXU))?;
    let folder = rustix::fs::openat(parent, name, FOLDER, Mode::empty())?;
    for (name, entry) in list {
        match entry {
            Entry::File => unless_there(rustix::fs::symlinkat(NOWHERE, &folder, name))?,
            Entry::Kernels(path) => unless_there(rustix::fs::symlinkat(path, &folder, name))?,
            Entry::Folder(list) => fill(top, &folder, name, list)?,
            Entry::Link(list) => {
                let target = name_of(list);
                fill(top, top, &target, list)?;
                let target = format!("../{target}");
                unless_there(rustix::fs::symlinkat(target, &folder, name))?;
            }
        }
    }
    Ok(())
}

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY);
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Where the links lead that stand for files.
const NOWHERE: &str = "a file of a device of oarlock";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::info;
    use super::super::{of_device as content_of_device, of_verbs as content_of_verbs};
    use super::*;

    /// Every file below a list, by its path.
    fn paths(list: &List, before: &str, into: &mut Vec<String>) {
        for (name, entry) in list {
            let path = format!("{before}{name}");
            match entry {
                Entry::File | Entry::Kernels(_) => into.push(path),
                Entry::Folder(list) | Entry::Link(list) => paths(list, &format!("{path}/"), into),
            }
        }
    }

    #[test]
    fn what_is_listed_can_be_read() {
        let info = info();
        let devices = [info.clone()];
        let mut found = Vec::new();
        let list = of_sysfs("/class/infiniband/soft_lo", &devices).unwrap();
        paths(&list, "", &mut found);
        assert!(found.len() > 17 + GID_TABLE_LEN, "{found:?}");
        for path in &found {
            let file: Vec<_> = path.split('/').collect();
            assert!(content_of_device(&info, true, &file).is_some(), "{path}");
        }
        let list = of_sysfs("/class/infiniband_verbs/uverbs3", &devices).unwrap();
        for (name, entry) in &list {
            assert_eq!(*entry, Entry::File);
            assert!(content_of_verbs(&info, &[name]).is_some(), "{name}");
        }
    }

    #[test]
    fn only_folders_of_devices_are_found() {
        let devices = [info()];
        let names = |path| {
            let list = of_sysfs(path, &devices)?;
            Some(list.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(names("/class/infiniband").unwrap(), ["soft_lo"]);
        assert_eq!(names("/class/infiniband/").unwrap(), ["soft_lo"]);
        assert_eq!(names("/class/infiniband/soft_lo/ports").unwrap(), ["1"]);
        let types = "/class/infiniband/soft_lo/ports/1/gid_attrs/types";
        assert_eq!(names(types).unwrap(), ["0", "1"]);
        assert_eq!(
            names("/class/infiniband_verbs").unwrap(),
            ["abi_version", "uverbs3"]
        );
        for path in [
            "",
            "/class",
            "/class/infiniband_mad",
            "/class/infiniband/soft_eth0",
            "/class/infiniband/soft_lo/node_guid",
            "/class/infiniband/soft_lo/ports/2",
            "/bus/infiniband",
        ] {
            assert_eq!(names(path), None, "{path}");
        }
        assert_eq!(of_nodes(&devices), files(&["uverbs3"]));
    }

    #[test]
    fn a_folder_is_made_once_and_mended() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path().join("oarlock");
        let user = rustix::process::geteuid().as_raw();
        let devices = [info()];
        let list = of_sysfs("/class/infiniband", &devices).unwrap();
        let made = made_in(&parent, &list, user).unwrap();
        let names = |path: &Path| -> BTreeSet<String> {
            let entries = fs::read_dir(path).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        };
        let expected = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(names(&made), expected(&["soft_lo"]));
        assert!(made.join("soft_lo").is_symlink());
        assert_eq!(names(&made.join("soft_lo/ports")), expected(&["1"]));
        assert_eq!(
            names(&made.join("soft_lo/ports/1/gids")).len(),
            GID_TABLE_LEN
        );
        // No content that could be taken for the file's.
        assert!(fs::read(made.join("soft_lo/node_guid")).is_err());
        // Whoever was killed half-way, or cleaned up, does no harm.
        fs::remove_file(made.join("soft_lo/node_guid")).unwrap();
        fs::remove_dir(made.join("soft_lo/ports/1/pkeys")).unwrap_err();
        let before = names(&parent);
        assert_eq!(made_in(&parent, &list, user).unwrap(), made);
        assert!(made.join("soft_lo/node_guid").is_symlink());
        assert_eq!(names(&parent), before);
        assert_eq!(before.len(), 2);
        // A folder that is another user's is not used.
        let error = made_in(&parent, &list, user + 1).unwrap_err();
        assert!(error.to_string().contains("alone"), "{error}");
    }
}
