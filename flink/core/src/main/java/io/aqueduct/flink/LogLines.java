package io.aqueduct.flink;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Lines of the library's log, passed on to SLF4J below {@code io.aqueduct}. */
final class LogLines {

    private static final String ROOT = "io.aqueduct";
    private static final String OWN = "aqueduct_";

    private LogLines() {}

    /** What the library need not format, because nobody would see it; read when it starts. */
    static int verbosity() {
        Logger logger = LoggerFactory.getLogger(ROOT);
        if (logger.isTraceEnabled()) {
            return 5;
        } else if (logger.isDebugEnabled()) {
            return 4;
        } else if (logger.isInfoEnabled()) {
            return 3;
        } else if (logger.isWarnEnabled()) {
            return 2;
        }
        return logger.isErrorEnabled() ? 1 : 0;
    }

    static void drain() {
        Wire.Reader lines = new Wire.Reader("the log", Native.drainLogs());
        for (int left = lines.count(9); left > 0; left--) {
            int level = lines.u8();
            Logger logger = LoggerFactory.getLogger(name(lines.text()));
            String text = lines.text();
            switch (level) {
                case 1:
                    logger.error(text);
                    break;
                case 2:
                    logger.warn(text);
                    break;
                case 3:
                    logger.info(text);
                    break;
                case 4:
                    logger.debug(text);
                    break;
                default:
                    logger.trace(text);
            }
        }
    }

    /** {@code aqueduct_pubsub::source} is {@code io.aqueduct.pubsub.source}. */
    static String name(String target) {
        String dotted = target.replace("::", ".");
        return dotted.startsWith(OWN)
                ? ROOT + "." + dotted.substring(OWN.length())
                : ROOT + ".library." + dotted;
    }
}
