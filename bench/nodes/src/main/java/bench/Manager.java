package bench;

import java.sql.Connection;

/** A transaction manager over the two sites, as one session uses it. */
interface Manager extends AutoCloseable {
    /** What a transaction does at the sites; false to have it rolled back. */
    interface Work {
        boolean at(Connection left, Connection right) throws Exception;
    }

    /** One transaction; what fails is rolled back, as far as can be told. */
    void run(Work work) throws Exception;
}
