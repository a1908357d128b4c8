//! Events: fetched, turned into what C reads, acknowledged.
