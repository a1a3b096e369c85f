package io.aqueduct.flink.pubsub;

import io.aqueduct.flink.AqueductTableFactory;

/** Tables with {@code 'connector' = 'pubsub'}. */
public final class PubSubTableFactory extends AqueductTableFactory {}
