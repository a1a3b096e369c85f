package io.aqueduct.flink;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.Locale;
import java.util.Properties;
import java.util.stream.Collectors;

/**
 * The native library that holds the connectors, and the only place that loads it.
 *
 * <p>The library is a resource of the jar. It is copied to a file of its own in the temporary folder, loaded, and deleted
 * at once: the mapping stays. A file of its own because the JVM refuses to load one path twice, and each class loader
 * that holds our classes (one a job, unless the jar is in Flink's {@code lib/}) loads its own copy.
 *
 * <p>Planning needs it too: what a statement may be is the library's to say, and a plan made without it could send rows of one
 * key to two writers. A client without a library for its platform is told so, with the platforms that there are.
 */
public final class NativeLibrary {

    /** System property: the folder for the temporary copy. Default: {@code java.io.tmpdir}. */
    public static final String FOLDER_PROPERTY = "io.aqueduct.flink.native.folder";

    private static final String FOLDER = "native/";

    /** Null until it is loaded; guarded by the class. */
    private static String loaded;

    private NativeLibrary() {}

    /**
     * Loads the library unless this class loader has it already. After a failure the next call tries again.
     *
     * @throws NativeLibraryException if the jar has none for this platform, if the temporary folder does not take it, or
     *     if the system refuses to map it. The message says what to do.
     */
    public static synchronized void load() {
        if (loaded == null) {
            String version = ownVersion();
            load(Platform.current(), folder());
            String found = version();
            if (!found.equals(version)) {
                throw new NativeLibraryException(
                        "the classes of aqueduct are of version " + version + " and the native library is of version "
                                + found + ": the class path holds jars of both. Keep one version");
            }
            loaded = found;
        }
    }

    /** The version of the loaded library. */
    static native String version();

    private static Path folder() {
        String property = System.getProperty(FOLDER_PROPERTY);
        String from = property == null ? "java.io.tmpdir" : FOLDER_PROPERTY;
        String folder = property == null ? System.getProperty("java.io.tmpdir") : property;
        try {
            return Paths.get(folder);
        } catch (InvalidPathException error) {
            throw new NativeLibraryException("the system property " + from + " names no folder: " + folder, error);
        }
    }

    static void load(Platform platform, Path folder) {
        String resource = FOLDER + platform.name() + "/" + platform.libraryFile();
        Path file = null;
        try (InputStream library = NativeLibrary.class.getResourceAsStream(resource)) {
            if (library == null) {
                throw new NativeLibraryException(
                        "this jar of aqueduct has no native library for " + platform.name() + ", only for "
                                + platforms() + ". Run on one of these, or build a jar here with `cargo xtask jar`");
            }
            file = Files.createTempFile(folder, "aqueduct-", "-" + platform.libraryFile());
            Files.copy(library, file, StandardCopyOption.REPLACE_EXISTING);
            System.load(file.toAbsolutePath().toString());
        } catch (IOException error) {
            throw new NativeLibraryException(
                    "cannot copy the native library into " + folder + ": is the folder there, writable, and is there room? "
                            + "The system property " + FOLDER_PROPERTY + " names another one",
                    error);
        } catch (UnsatisfiedLinkError error) {
            throw new NativeLibraryException(
                    "the system does not load the native library for " + platform.name() + " from " + folder
                            + ". If that folder is mounted noexec, name another one in the system property "
                            + FOLDER_PROPERTY + "; if a version of GLIBC is not found, this system is older than what "
                            + "the jar was built for: build it here with `cargo xtask jar`",
                    error);
        } finally {
            delete(file);
        }
    }

    /** A copy that cannot be deleted takes room and does no harm: the library is loaded, or another error is on its way. */
    private static void delete(Path file) {
        if (file != null) {
            try {
                Files.deleteIfExists(file);
            } catch (IOException error) {
                file.toFile().deleteOnExit();
            }
        }
    }

    /** The platforms that this jar has a library for, as the build wrote them down. */
    static String platforms() {
        try (InputStream list = NativeLibrary.class.getResourceAsStream(FOLDER + "platforms")) {
            if (list == null) {
                return "none";
            }
            return new String(list.readAllBytes(), StandardCharsets.UTF_8)
                    .lines()
                    .filter(line -> !line.isBlank())
                    .collect(Collectors.joining(", "));
        } catch (IOException error) {
            throw new NativeLibraryException("cannot read the list of platforms in the jar of aqueduct", error);
        }
    }

    private static String ownVersion() {
        Properties properties = new Properties();
        try (InputStream text = NativeLibrary.class.getResourceAsStream("version.properties")) {
            if (text == null) {
                throw new NativeLibraryException("the jar of aqueduct is incomplete: it has no version.properties");
            }
            properties.load(text);
        } catch (IOException error) {
            throw new NativeLibraryException("cannot read version.properties in the jar of aqueduct", error);
        }
        return properties.getProperty("version");
    }

    /** A folder of the jar: an operating system and a processor. */
    static final class Platform {

        private final String system;
        private final String processor;

        private Platform(String system, String processor) {
            this.system = system;
            this.processor = processor;
        }

        static Platform current() {
            return of(System.getProperty("os.name"), System.getProperty("os.arch"));
        }

        /** As Java names them; for the same processor it has several names. */
        static Platform of(String osName, String osArch) {
            String os = osName.toLowerCase(Locale.ROOT);
            String arch = osArch.toLowerCase(Locale.ROOT);
            String system = os.startsWith("mac") ? "macos" : os.startsWith("windows") ? "windows" : os;
            switch (arch) {
                case "amd64":
                case "x86_64":
                    return new Platform(system, "x86_64");
                case "aarch64":
                case "arm64":
                    return new Platform(system, "aarch64");
                default:
                    return new Platform(system, arch);
            }
        }

        String name() {
            return system + "-" + processor;
        }

        String libraryFile() {
            switch (system) {
                case "macos":
                    return "libaqueduct_flink.dylib";
                case "windows":
                    return "aqueduct_flink.dll";
                default:
                    return "libaqueduct_flink.so";
            }
        }
    }
}
