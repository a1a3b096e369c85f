package io.aqueduct.flink;

import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.flink.table.api.TableException;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.catalog.ObjectIdentifier;
import org.apache.flink.table.catalog.ResolvedSchema;
import org.apache.flink.table.catalog.UniqueConstraint;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.types.RowKind;

/** A table as its statement declares it, and the bytes in which the library gets it with a plan. */
final class TableDescription {

    /** Version of the bytes: they travel from a client to a cluster, which may have another version of the jar. */
    private static final int VERSION = 1;

    private final String connector;
    private final String name;
    private final List<Column> columns;
    private final List<String> primaryKey;
    private final Map<String, String> options;

    /** Answers by the plans they are for; the copies of a table share them. */
    private final Map<ByteBuffer, byte[]> answers = new HashMap<>();

    TableDescription(String connector, ObjectIdentifier name, ResolvedSchema schema, Map<String, String> options) {
        this.connector = connector;
        this.name = name.asSummaryString();
        this.columns = schema.getColumns().stream().filter(Column::isPhysical).collect(Collectors.toList());
        this.primaryKey = schema.getPrimaryKey().map(UniqueConstraint::getColumns).orElse(List.of());
        this.options = new TreeMap<>(options);
    }

    /** With catalog and database. */
    String name() {
        return name;
    }

    /** For messages: the table and its connector. */
    String summary() {
        return connector + " table " + name;
    }

    byte[] sink(Collection<RowKind> kinds, List<String> metadata, Integer parallelism) {
        Wire.Writer body = table().u8(1).u32(kinds.size());
        kinds.forEach(kind -> body.u8(kind.toByteValue()));
        texts(body, metadata);
        return versioned(body.u32(parallelism == null ? 0 : parallelism));
    }

    byte[] scan(int[][] fields, List<String> metadata, List<byte[]> filters, Long limit) {
        Wire.Writer body = table().u8(2);
        optionalPaths(body, fields);
        texts(body, metadata);
        filters(body, filters);
        body.u8(limit == null ? 0 : 1);
        if (limit != null) {
            body.i64(limit);
        }
        return versioned(body);
    }

    byte[] filters(List<byte[]> filters) {
        Wire.Writer body = table().u8(3);
        filters(body, filters);
        return versioned(body);
    }

    byte[] lookup(int[][] keys, int[][] fields) {
        Wire.Writer body = table().u8(4);
        paths(body, keys);
        optionalPaths(body, fields);
        return versioned(body);
    }

    private Wire.Writer table() {
        Wire.Writer body = new Wire.Writer().text(connector).text(name).u32(columns.size());
        for (Column column : columns) {
            body.text(column.getName()).text(type(column.getDataType().getLogicalType()));
        }
        texts(body, primaryKey);
        body.u32(options.size());
        options.forEach((key, value) -> body.text(key).text(value));
        return body;
    }

    /** The SQL text of a type. One without such a text is none that a table of ours can have; the library says so. */
    static String type(LogicalType type) {
        try {
            return type.asSerializableString();
        } catch (TableException error) {
            return type.asSummaryString();
        }
    }

    private static byte[] versioned(Wire.Writer body) {
        return new Wire.Writer().u32(VERSION).bytes(body.finish()).finish();
    }

    private static void texts(Wire.Writer writer, List<String> texts) {
        writer.u32(texts.size());
        texts.forEach(writer::text);
    }

    private static void filters(Wire.Writer writer, List<byte[]> filters) {
        writer.u32(filters.size());
        filters.forEach(writer::raw);
    }

    private static void optionalPaths(Wire.Writer writer, int[][] paths) {
        writer.u8(paths == null ? 0 : 1);
        if (paths != null) {
            paths(writer, paths);
        }
    }

    private static void paths(Wire.Writer writer, int[][] paths) {
        writer.u32(paths.length);
        for (int[] path : paths) {
            path(writer, path);
        }
    }

    static void path(Wire.Writer writer, int[] path) {
        writer.u32(path.length);
        for (int at : path) {
            writer.u32(at);
        }
    }

    int columnIndex(String column) {
        for (int at = 0; at < columns.size(); at++) {
            if (columns.get(at).getName().equals(column)) {
                return at;
            }
        }
        return -1;
    }

    LogicalType columnType(int at) {
        return columns.get(at).getDataType().getLogicalType();
    }

    /**
     * Asks the library about a plan of this table. A refusal becomes an error of planning, in the library's words. The planner
     * asks the same many times; the library, and what it warns of, once.
     */
    synchronized Wire.Reader plan(byte[] plan) {
        byte[] answer = answers.computeIfAbsent(ByteBuffer.wrap(plan), asked -> Planning.plan(asked.array()));
        return new Wire.Reader("an answer of the planner", answer);
    }
}
