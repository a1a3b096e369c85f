package io.aqueduct.flink.probe;

import io.aqueduct.flink.AqueductTableFactory;

/** Tables with {@code 'connector' = 'aqueduct-probe'}: rows kept in the library, for tests of the way there and back. */
public final class ProbeTableFactory extends AqueductTableFactory {}
