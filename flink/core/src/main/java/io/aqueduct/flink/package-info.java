/**
 * Aqueduct's connectors inside Apache Flink.
 *
 * <p>These classes adapt Flink's interfaces, copy bytes and translate errors. Whatever has a meaning (options, retries,
 * state, bounds) is decided in the native library, in Rust. What one connector needs alone is in a package of its own,
 * {@code io.aqueduct.flink.pubsub} or {@code io.aqueduct.flink.bigtable}: each connector's jar leaves out the others'.
 */
package io.aqueduct.flink;
