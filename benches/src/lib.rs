//! Programs that measure the connectors beside a raw loop.
