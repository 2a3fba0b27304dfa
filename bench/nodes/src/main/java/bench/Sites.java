package bench;

import org.postgresql.xa.PGXADataSource;

/** The JDBC URLs of both. */
record Sites(String left, String right) {
    static PGXADataSource source(String url) {
        PGXADataSource source = new PGXADataSource();
        source.setUrl(url);
        return source;
    }
}
