package io.aqueduct.flink;

/** The native library cannot be used here. The message says why, and what to do. */
public final class NativeLibraryException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    public NativeLibraryException(String message) {
        super(message);
    }

    public NativeLibraryException(String message, Throwable cause) {
        super(message, cause);
    }
}
