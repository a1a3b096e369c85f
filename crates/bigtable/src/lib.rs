//! Bigtable: the bulk sink and its data plane.
