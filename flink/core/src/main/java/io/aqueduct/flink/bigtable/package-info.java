/** What the Bigtable connector needs alone. */
package io.aqueduct.flink.bigtable;
