package io.aqueduct.flink;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;
import org.apache.flink.table.types.utils.TypeConversions;

/**
 * What the tables of a connector take: options and metadata columns, from the file that the library's declarations were
 * written to. Java declares none of them and reads no value.
 */
final class TableResource {

    private static final String FILE = "table.tsv";

    private final String connector;
    private final boolean formatted;
    private final boolean lookups;
    private final Set<ConfigOption<?>> required = new LinkedHashSet<>();
    private final Set<ConfigOption<?>> optional = new LinkedHashSet<>();
    private final List<Metadata> metadata = new ArrayList<>();

    private TableResource(String[] first) {
        connector = first[1];
        formatted = first[2].equals("formatted");
        lookups = first[3].equals("lookups");
    }

    /** Reads the file beside {@code factory}'s class. */
    static TableResource of(Class<?> factory) {
        try (InputStream file = factory.getResourceAsStream(FILE)) {
            if (file == null) {
                throw new IllegalStateException("the jar of aqueduct is incomplete: " + factory.getPackageName()
                        + " has no " + FILE);
            }
            return read(new String(file.readAllBytes(), StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException("cannot read " + FILE + " in the jar of aqueduct", error);
        }
    }

    static TableResource read(String text) {
        TableResource resource = null;
        for (String line : text.split("\n")) {
            String[] parts = line.split("\t", -1);
            switch (parts[0]) {
                case "connector":
                    resource = new TableResource(parts);
                    break;
                case "option":
                    resource.option(parts);
                    break;
                case "metadata":
                    resource.metadata.add(new Metadata(parts));
                    break;
                default:
                    throw new IllegalStateException("an unknown line in " + FILE + ": " + parts[0]);
            }
        }
        return resource;
    }

    /** Every option is a text here: the library reads it. */
    private void option(String[] parts) {
        ConfigOption<String> option = ConfigOptions.key(parts[1])
                .stringType()
                .noDefaultValue()
                .withDescription(parts[6] + " (" + parts[2] + "; default: " + parts[3] + ")");
        if (!parts[5].isEmpty()) {
            option = option.withDeprecatedKeys(parts[5].split(" "));
        }
        (parts[3].equals("required") ? required : optional).add(option);
    }

    String connector() {
        return connector;
    }

    boolean formatted() {
        return formatted;
    }

    boolean lookups() {
        return lookups;
    }

    Set<ConfigOption<?>> required() {
        return required;
    }

    Set<ConfigOption<?>> optional() {
        return optional;
    }

    Map<String, DataType> readable() {
        return types(true);
    }

    Map<String, DataType> writable() {
        return types(false);
    }

    private Map<String, DataType> types(boolean reading) {
        Map<String, DataType> types = new LinkedHashMap<>();
        for (Metadata column : metadata) {
            if (reading ? column.readable : column.writable) {
                types.put(column.key, TypeConversions.fromLogicalToDataType(
                        LogicalTypeParser.parse(column.type, TableResource.class.getClassLoader())));
            }
        }
        return types;
    }

    private static final class Metadata {

        private final String key;
        private final String type;
        private final boolean readable;
        private final boolean writable;

        Metadata(String[] parts) {
            key = parts[1];
            type = parts[2];
            readable = parts[3].contains("r");
            writable = parts[3].contains("w");
        }
    }
}
