/** What the Pub/Sub connector needs alone. */
package io.aqueduct.flink.pubsub;
