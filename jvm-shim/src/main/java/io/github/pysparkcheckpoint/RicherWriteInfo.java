package io.github.pysparkcheckpoint;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Spark's write info with more options. */
final class RicherWriteInfo implements LogicalWriteInfo {
    private final LogicalWriteInfo info;
    private final CaseInsensitiveStringMap options;

    RicherWriteInfo(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
        this.info = info;
        this.options = options;
    }

    @Override
    public CaseInsensitiveStringMap options() {
        return options;
    }

    @Override
    public String queryId() {
        return info.queryId();
    }

    @Override
    public StructType schema() {
        return info.schema();
    }
}
