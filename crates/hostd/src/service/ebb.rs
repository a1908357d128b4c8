//! When a crowd has gone, the memory that it needed goes back to the system.

/// Notices that most identifiers there were have gone.
#[derive(Debug, Default)]
pub(super) struct Ebb {
    /// The most there were since memory was given back last.
    peak: usize,
}

impl Ebb {
    /// Whether a crowd has gone since this was last true: three quarters of the identifiers, and enough to matter.
    pub(super) fn has_come(&mut self, identifiers: usize) -> bool {
        self.peak = self.peak.max(identifiers);
        if identifiers > self.peak / 4 || self.peak - identifiers < CROWD {
            return false;
        }
        self.peak = identifiers;
        true
    }
}

/// With less than this there is little to give back: an identifier takes about 1 KiB.
const CROWD: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ebb_comes_once_after_each_crowd() {
        let mut ebb = Ebb::default();
        for identifiers in [0, 511, 0, 600, 200] {
            assert!(!ebb.has_come(identifiers), "{identifiers}");
        }
        assert!(ebb.has_come(60));
        assert!(!ebb.has_come(0));
        assert!(!ebb.has_come(4000));
        assert!(ebb.has_come(1000));
        assert!(!ebb.has_come(1000));
    }
}
