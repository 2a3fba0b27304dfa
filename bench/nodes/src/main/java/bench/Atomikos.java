package bench;

import com.atomikos.icatch.jta.UserTransactionManager;
import com.atomikos.jdbc.AtomikosDataSourceBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;

/** Its log of decisions, recovery and pools, with their defaults but for the number of sessions. */
final class Atomikos implements Manager {
    private static UserTransactionManager manager;
    private static AtomikosDataSourceBean left;
    private static AtomikosDataSourceBean right;

    static void start(String name, Sites sites, int sessions, Path folder) throws Exception {
        Path log = Files.createDirectories(folder.resolve(name + ".atomikos"));
        System.setProperty("com.atomikos.icatch.log_base_dir", log.toString());
        System.setProperty("com.atomikos.icatch.tm_unique_name", name);
        System.setProperty("com.atomikos.icatch.max_actives", "200");
        left = source("left", sites.left(), sessions);
        right = source("right", sites.right(), sessions);
        manager = new UserTransactionManager();
        manager.init();
    }

    private static AtomikosDataSourceBean source(String name, String url, int sessions) throws Exception {
        AtomikosDataSourceBean source = new AtomikosDataSourceBean();
        source.setUniqueResourceName(name);
        source.setXaDataSource(Sites.source(url));
        source.setPoolSize(sessions);
        source.init();
        return source;
    }

    @Override
    public void run(Work work) throws Exception {
        manager.begin();
        boolean done = false;
        try (Connection l = left.getConnection(); Connection r = right.getConnection()) {
            done = work.at(l, r);
        } finally {
            if (done) {
                manager.commit();
            } else {
                manager.rollback();
            }
        }
    }

    @Override
    public void close() {}
}
