//! Folders of a user's own.

use std::path::{Path, PathBuf};

/// Where a user has folders for files that oarlock makes on its way, the best place first: `oarlock` in the folder for running
/// programs (`$XDG_RUNTIME_DIR`), if there is one; in that for temporary files `oarlock-USER`, by the number of the user, then
/// `oarlock-USER.1` to `oarlock-USER.9`, for where somebody else has that name: on purpose, or as a user of the same number in
/// another user namespace.
///
/// Nothing is looked at. Whoever takes one must see to it that it is this user's and that nobody else may write to it.
///
/// # Examples
/// ```
/// # use std::path::Path;
/// let runtime = Path::new("/run/user/1000");
/// let mut folders = oarlock_hostd::user_folders(Some(runtime), Path::new("/tmp"));
/// assert_eq!(folders.next().as_deref(), Some(Path::new("/run/user/1000/oarlock")));
/// assert_eq!(folders.count(), 10);
/// ```
pub fn user_folders(
    runtime: Option<&Path>,
    temporary: &Path,
) -> impl Iterator<Item = PathBuf> + use<> {
    let user = rustix::process::geteuid().as_raw();
    let temporary = temporary.to_owned();
    let of_temporary = std::iter::once(format!("oarlock-{user}"))
        .chain((1..10).map(move |number| format!("oarlock-{user}.{number}")))
        .map(move |name| temporary.join(name));
    runtime
        .map(|folder| folder.join("oarlock"))
        .into_iter()
        .chain(of_temporary)
}
