package bench;

import com.arjuna.ats.arjuna.common.CoordinatorEnvironmentBean;
import com.arjuna.ats.arjuna.common.CoreEnvironmentBean;
import com.arjuna.ats.arjuna.common.ObjectStoreEnvironmentBean;
import com.arjuna.ats.arjuna.common.RecoveryEnvironmentBean;
import com.arjuna.ats.arjuna.recovery.RecoveryManager;
import com.arjuna.ats.internal.arjuna.recovery.AtomicActionRecoveryModule;
import com.arjuna.ats.internal.jta.recovery.arjunacore.JTANodeNameXAResourceOrphanFilter;
import com.arjuna.ats.internal.jta.recovery.arjunacore.JTATransactionLogXAResourceOrphanFilter;
import com.arjuna.ats.internal.jta.recovery.arjunacore.XARecoveryModule;
import com.arjuna.ats.jta.common.JTAEnvironmentBean;
import com.arjuna.ats.jta.recovery.XAResourceRecoveryHelper;
import com.arjuna.common.internal.util.propertyservice.BeanPopulator;
import jakarta.transaction.Transaction;
import jakarta.transaction.TransactionManager;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import javax.sql.XAConnection;
import javax.transaction.xa.XAResource;

/** Its object store and recovery, with their defaults; each session has a connection to each site. */
final class Narayana implements Manager {
    private static TransactionManager manager;
    private final XAConnection left;
    private final XAConnection right;

    Narayana(Sites sites) throws SQLException {
        left = Sites.source(sites.left()).getXAConnection();
        right = Sites.source(sites.right()).getXAConnection();
    }

    static void start(String name, Sites sites, Path folder) throws Exception {
        String store = folder.resolve(name + ".narayana").toString();
        for (String kind : new String[] {null, "stateStore", "communicationStore"}) {
            BeanPopulator.getNamedInstance(ObjectStoreEnvironmentBean.class, kind).setObjectStoreDir(store);
        }
        BeanPopulator.getDefaultInstance(CoreEnvironmentBean.class).setNodeIdentifier(name);
        BeanPopulator.getDefaultInstance(CoordinatorEnvironmentBean.class).setDefaultTimeout(0);
        JTAEnvironmentBean jta = BeanPopulator.getDefaultInstance(JTAEnvironmentBean.class);
        jta.setXaRecoveryNodes(List.of(name));
        jta.setXaResourceOrphanFilterClassNames(List.of(
                JTATransactionLogXAResourceOrphanFilter.class.getName(),
                JTANodeNameXAResourceOrphanFilter.class.getName()));
        XARecoveryModule module = new XARecoveryModule();
        module.addXAResourceRecoveryHelper(new Reached(sites.left()));
        module.addXAResourceRecoveryHelper(new Reached(sites.right()));
        BeanPopulator.getDefaultInstance(RecoveryEnvironmentBean.class)
                .setRecoveryModules(List.of(new AtomicActionRecoveryModule(), module));
        RecoveryManager.manager(RecoveryManager.INDIRECT_MANAGEMENT).startRecoveryManagerThread();
        manager = com.arjuna.ats.jta.TransactionManager.transactionManager();
    }

    @Override
    public void run(Work work) throws Exception {
        manager.begin();
        boolean done = false;
        try {
            Transaction transaction = manager.getTransaction();
            transaction.enlistResource(left.getXAResource());
            transaction.enlistResource(right.getXAResource());
            try (Connection l = left.getConnection(); Connection r = right.getConnection()) {
                done = work.at(l, r);
                if (done) {
                    manager.commit();
                } else {
                    manager.rollback();
                }
                done = true;
            }
        } finally {
            if (!done) {
                manager.rollback();
            }
        }
    }

    @Override
    public void close() throws SQLException {
        left.close();
        right.close();
    }

    /** How recovery reaches a site. */
    private record Reached(String url) implements XAResourceRecoveryHelper {
        private static final Map<String, XAConnection> CONNECTIONS = new ConcurrentHashMap<>();

        @Override
        public boolean initialise(String parameter) {
            return true;
        }

        @Override
        public XAResource[] getXAResources() throws Exception {
            XAConnection connection = CONNECTIONS.get(url);
            if (connection == null) {
                connection = Sites.source(url).getXAConnection();
                CONNECTIONS.put(url, connection);
            }
            return new XAResource[] {connection.getXAResource()};
        }
    }
}
