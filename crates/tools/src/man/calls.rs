//! The manual pages of section 3: the calls of the C libraries whose behaviour is defined by this project.

/// A page as it is written: roff, each statement after the name of the rule that shows it.
#[derive(Debug)]
pub(super) struct Page {
    /// The page's own name, such as `rdma_connect`.
    pub(super) name: &'static str,
    pub(super) source: &'static str,
}

impl Page {
    /// The calls that the page is about: those before the dash of its NAME section.
    pub(super) fn calls(&self) -> impl Iterator<Item = &'static str> {
        let name = self
            .source
            .split_once(".SH NAME\n")
            .and_then(|(_, rest)| rest.split_once(r" \-"))
            .map_or("", |(calls, _)| calls);
        name.split(',').map(str::trim)
    }
}

/// The page of a call.
pub(super) fn find(call: &str) -> Option<&'static Page> {
    PAGES.iter().find(|page| page.calls().any(|of| of == call))
}

macro_rules! pages {
    ($($name:literal)*) => {
        &[$(Page { name: $name, source: include_str!(concat!("../../man3/", $name, ".3")) }),*]
    };
}

/// Every page, by name.
pub(super) const PAGES: &[Page] = pages! {
    "oarlock_create_memory_channel"
    "oarlock_read_memory_events"
    "oarlock_reg_mr_notify"
    "rdma_accept"
    "rdma_connect"
    "rdma_create_event_channel"
    "rdma_create_id"
    "rdma_get_cm_event"
    "rdma_join_multicast"
    "rdma_migrate_id"
    "rdma_set_option"
};
