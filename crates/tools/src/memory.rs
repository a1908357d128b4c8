//! How much memory a process holds.

use crate::failure::{Failure, system};

/// Resident memory of a process in bytes, from `/proc/PID/status`.
pub(crate) fn resident(pid: u32) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(system("the memory of a process"))?;
    Ok(parse(&text).unwrap_or(0))
}

fn parse(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn resident_memory_is_read_from_the_status() {
        assert_eq!(
            super::parse("Name:\tx\nVmRSS:\t    1234 kB\n"),
            Some(1_263_616)
        );
        assert_eq!(super::parse("Name:\tkthreadd\n"), None);
        assert!(super::resident(std::process::id()).unwrap() > 0);
    }
}
