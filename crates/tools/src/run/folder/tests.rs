use super::*;
use std::os::unix::fs::{PermissionsExt as _, symlink};

/// A program's folder, and those where links may be made.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "run", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let place = Self { folder };
        place.mode("run", 0o700);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn put(&self, name: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "object").unwrap();
    }

    fn find(&self) -> Result<Libraries, Refusal> {
        let runtime = self.path("run");
        libraries_of(
            &self.path("bin"),
            Some(runtime.as_os_str()),
            &self.path("tmp"),
        )
    }

    fn temporary(&self) -> PathBuf {
        self.path(&format!(
            "tmp/oarlock-{}",
            rustix::process::geteuid().as_raw()
        ))
    }
}

fn assert_complete(libraries: &Libraries) {
    for name in LIBRARIES {
        let found = fs::canonicalize(libraries.folder.join(name)).unwrap();
        assert_eq!(found, libraries.object);
    }
}

#[test]
fn one_folder_that_was_copied_in_is_enough() {
    let place = Place::new();
    let refusal = place.find().unwrap_err();
    assert_eq!(refusal.status, 125);
    let bin = place.path("bin");
    let looked = format!(
        "in none of {0}/deps, {0}, {0}/../lib/oarlock",
        bin.display()
    );
    for part in ["liboarlock_capi.so", &looked, "dist/folder.sh"] {
        assert!(refusal.sentence.contains(part), "{}", refusal.sentence);
    }
    place.put("bin/liboarlock_capi.so");
    let found = place.find().unwrap();
    assert_complete(&found);
    assert!(
        found.folder.starts_with(place.path("run/oarlock")),
        "{}",
        found.folder.display()
    );
    let listing = || fs::read_dir(&found.folder).unwrap().count();
    assert_eq!(listing(), 2);
    assert_eq!(place.find().unwrap(), found, "it is found again");
    assert_eq!(listing(), 2);
    assert!(
        fs::read_dir(place.path("bin")).unwrap().count() == 1,
        "nothing is written beside the program"
    );
}

#[test]
fn a_folder_that_has_both_names_is_taken_as_it_is() {
    for places in ["bin", "lib/oarlock", "lib"] {
        let place = Place::new();
        place.put(&format!("{places}/liboarlock_capi.so"));
        for name in LIBRARIES {
            symlink("liboarlock_capi.so", place.path(places).join(name)).unwrap();
        }
        let found = place.find().unwrap();
        assert_complete(&found);
        assert_eq!(found.folder, fs::canonicalize(place.path(places)).unwrap());
        assert_eq!(fs::read_dir(place.path("run")).unwrap().count(), 0);
    }
}

/// What was copied with its links followed has three files, of which two would know nothing of each other.
#[test]
fn copies_are_not_taken_for_links() {
    let place = Place::new();
    for name in ["liboarlock_capi.so", LIBRARIES[0], LIBRARIES[1]] {
        place.put(&format!("bin/{name}"));
    }
    let found = place.find().unwrap();
    assert_complete(&found);
    assert!(found.folder.starts_with(place.path("run")));
}

#[test]
fn a_folder_whose_name_means_something_to_the_dynamic_linker_is_not_named_to_it() {
    let place = Place::new();
    place.put("bin/a:b/liboarlock_capi.so");
    for name in LIBRARIES {
        symlink("liboarlock_capi.so", place.path("bin/a:b").join(name)).unwrap();
    }
    let runtime = place.path("run");
    let found = libraries_of(
        &place.path("bin/a:b"),
        Some(runtime.as_os_str()),
        &place.path("tmp"),
    )
    .unwrap();
    assert_complete(&found);
    assert!(found.folder.starts_with(runtime));
    // Nor can it be one for links.
    fs::create_dir(place.path("r:n")).unwrap();
    let runtime = place.path("r:n");
    let found = libraries_of(
        &place.path("bin/a:b"),
        Some(runtime.as_os_str()),
        &place.path("tmp"),
    )
    .unwrap();
    assert!(found.folder.starts_with(place.temporary()));
}

#[test]
fn a_link_that_leads_elsewhere_is_replaced() {
    let place = Place::new();
    place.put("bin/liboarlock_capi.so");
    let found = place.find().unwrap();
    let link = found.folder.join(LIBRARIES[0]);
    fs::remove_file(&link).unwrap();
    symlink("/nowhere", &link).unwrap();
    fs::remove_file(found.folder.join(LIBRARIES[1])).unwrap();
    assert_eq!(place.find().unwrap(), found);
    assert_complete(&found);
}

/// Nothing is written where others could have laid something, or where a link leads.
#[test]
fn what_could_be_somebody_elses_is_not_written_to() {
    let place = Place::new();
    place.put("bin/liboarlock_capi.so");
    place.mode("run", 0o770);
    let found = place.find().unwrap();
    assert!(
        found.folder.starts_with(place.temporary()),
        "others write to the first"
    );
    assert_eq!(fs::read_dir(place.path("run")).unwrap().count(), 0);

    fs::remove_dir_all(place.temporary()).unwrap();
    fs::create_dir(place.path("elsewhere")).unwrap();
    symlink(place.path("elsewhere"), place.temporary()).unwrap();
    let second = place.path(&format!(
        "tmp/oarlock-{}.1",
        rustix::process::geteuid().as_raw()
    ));
    fs::create_dir(&second).unwrap();
    fs::set_permissions(&second, fs::Permissions::from_mode(0o777)).unwrap();
    let found = place.find().unwrap();
    assert_complete(&found);
    assert!(
        found.folder.to_str().unwrap().contains(".2/lib-"),
        "{}",
        found.folder.display()
    );
    for untouched in [place.path("elsewhere"), second] {
        assert_eq!(fs::read_dir(untouched).unwrap().count(), 0);
    }
}

/// Somebody who has all the names keeps the program from running, and that is all.
#[test]
fn where_no_folder_can_be_had_there_is_one_sentence() {
    let place = Place::new();
    place.put("bin/liboarlock_capi.so");
    place.mode("run", 0o770);
    for number in 0..10 {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!(".{number}")
        };
        let mut folder = place.temporary().into_os_string();
        folder.push(suffix);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let refusal = place.find().unwrap_err();
    assert_eq!(refusal.status, 125);
    for part in ["others may write to it", "XDG_RUNTIME_DIR"] {
        assert!(refusal.sentence.contains(part), "{}", refusal.sentence);
    }
    assert!(!refusal.sentence.contains(".9"), "{}", refusal.sentence);
}

#[test]
fn many_at_once_find_the_same_folder_complete() {
    let place = Place::new();
    place.put("bin/liboarlock_capi.so");
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| place.find())).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for libraries in found {
        assert_complete(&libraries.unwrap());
    }
}
