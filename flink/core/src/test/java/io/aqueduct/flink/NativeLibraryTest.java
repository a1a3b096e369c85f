package io.aqueduct.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.aqueduct.flink.NativeLibrary.Platform;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Loads the library that the build provided, as a job does. */
class NativeLibraryTest {

    @TempDir Path folder;

    @Test
    void theLibraryLoadsAndIsOfTheVersionOfTheClasses() {
        NativeLibrary.load();
        NativeLibrary.load();
        assertTrue(NativeLibrary.version().matches("[0-9]+\\.[0-9]+\\.[0-9]+.*"));
    }

    @Test
    void noCopyIsLeftBehind() throws IOException {
        NativeLibrary.load(Platform.current(), folder);
        try (Stream<Path> left = Files.list(folder)) {
            assertEquals(0, left.count());
        }
    }

    @Test
    void eachClassLoaderHasALibraryOfItsOwn() throws Exception {
        NativeLibrary.load();
        Class<?> other = new Isolated().loadClass(NativeLibrary.class.getName());
        other.getMethod("load").invoke(null);
        assertTrue(other != NativeLibrary.class);
    }

    @Test
    void aPlatformWithoutALibraryIsToldWhichThereAre() {
        Platform platform = Platform.of("Plan 9", "mips");
        var error = assertThrows(NativeLibraryException.class, () -> NativeLibrary.load(platform, folder));
        assertTrue(error.getMessage().contains("plan 9-mips"), error.getMessage());
        assertTrue(error.getMessage().contains("only for " + Platform.current().name()), error.getMessage());
    }

    @Test
    void aFolderThatIsNotThereIsNamedWithTheWayOut() {
        Path missing = folder.resolve("missing");
        var error = assertThrows(
                NativeLibraryException.class, () -> NativeLibrary.load(Platform.current(), missing));
        assertTrue(error.getMessage().contains(missing.toString()), error.getMessage());
        assertTrue(error.getMessage().contains(NativeLibrary.FOLDER_PROPERTY), error.getMessage());
    }

    @Test
    void javasNamesOfOneProcessorAreOne() {
        for (String arch : Arrays.asList("amd64", "x86_64")) {
            assertEquals("linux-x86_64", Platform.of("Linux", arch).name());
        }
        for (String arch : Arrays.asList("aarch64", "arm64")) {
            assertEquals("macos-aarch64", Platform.of("Mac OS X", arch).name());
        }
        assertEquals("libaqueduct_flink.dylib", Platform.of("Mac OS X", "aarch64").libraryFile());
    }

    /** Defines our classes anew, as Flink's class loader of a job does. */
    private static final class Isolated extends ClassLoader {

        Isolated() {
            super(NativeLibraryTest.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("io.aqueduct.flink.")) {
                return super.loadClass(name, resolve);
            }
            Class<?> known = findLoadedClass(name);
            if (known != null) {
                return known;
            }
            try (InputStream file = getParent().getResourceAsStream(name.replace('.', '/') + ".class")) {
                byte[] bytes = file.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException error) {
                throw new ClassNotFoundException(name, error);
            }
        }
    }
}
