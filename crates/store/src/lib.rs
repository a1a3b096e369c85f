//! Files and objects by URL: the one door to object storage.
