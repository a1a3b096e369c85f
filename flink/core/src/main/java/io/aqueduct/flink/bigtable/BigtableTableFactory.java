package io.aqueduct.flink.bigtable;

import io.aqueduct.flink.AqueductTableFactory;

/** Tables with {@code 'connector' = 'bigtable'}. */
public final class BigtableTableFactory extends AqueductTableFactory {}
