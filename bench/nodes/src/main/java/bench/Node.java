package bench;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;

/** An app server of the bench; the same as node.py, which says what its arguments and its journal are. */
public final class Node {
    private static final String KEY = "INSERT INTO idempotency (key) VALUES (?) ON CONFLICT DO NOTHING";
    private static final String MOVE = "UPDATE account SET balance = balance + ? WHERE a_id = ?";
    private static final long PAUSE_MS = 50;

    private record Request(String key, int from, int to) {}

    private static volatile boolean over;
    private static FileChannel journal;

    public static void main(String[] args) {
        try {
            serve(args);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the managers have threads of their own
        }
    }

    private static void serve(String[] args) throws Exception {
        String contender = args[0];
        Sites sites = new Sites(args[2], args[3]);
        int sessions = Integer.parseInt(args[4]);
        int accounts = Integer.parseInt(args[5]);
        Path folder = Path.of(args[6]);
        journal = FileChannel.open(Path.of(args[7]), StandardOpenOption.CREATE, StandardOpenOption.APPEND);

        if (contender.equals("narayana")) {
            Narayana.start(args[1], sites, folder);
        } else {
            Atomikos.start(args[1], sites, sessions, folder);
        }
        List<Manager> managers = new ArrayList<>();
        for (int i = 0; i < sessions; i++) {
            managers.add(contender.equals("narayana") ? new Narayana(sites) : new Atomikos());
        }
        System.out.println("ready");
        if (System.in.read() < 0) {
            return;
        }

        List<Thread> threads = new ArrayList<>();
        if (args.length > 8) {
            int i = 0;
            for (String line : Files.readAllLines(Path.of(args[8]))) {
                String[] words = line.split(" ");
                Request request = new Request(words[0], Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                Manager manager = managers.get(i++);
                threads.add(new Thread(() -> answer(manager, request)));
            }
        } else {
            for (Manager manager : managers) {
                threads.add(new Thread(() -> loop(manager, accounts)));
            }
        }
        threads.forEach(Thread::start);
        while (System.in.read() >= 0) {
            // until the end
        }
        over = true;
        for (Thread thread : threads) {
            thread.join(2000);
        }
    }

    private static void loop(Manager manager, int accounts) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        while (!over) {
            answer(manager, new Request(
                    UUID.randomUUID().toString(), random.nextInt(accounts) + 1, random.nextInt(accounts) + 1));
        }
    }

    /** Until it is answered. */
    private static void answer(Manager manager, Request request) {
        note("b " + request.key + " " + request.from + " " + request.to);
        long began = System.nanoTime();
        while (!over) {
            try {
                manager.run((left, right) -> transfer(left, right, request));
                note("e " + request.key + " " + began + " " + System.nanoTime());
                return;
            } catch (Exception error) {
                note("x " + request.key + " " + String.valueOf(error.getMessage()).replace('\n', ' '));
                pause();
            }
        }
    }

    /** False if it has been carried out before. */
    private static boolean transfer(Connection left, Connection right, Request request) throws SQLException {
        try (PreparedStatement key = left.prepareStatement(KEY)) {
            key.setString(1, request.key);
            if (key.executeUpdate() == 0) {
                return false;
            }
        }
        move(left, -1, request.from);
        move(right, 1, request.to);
        return true;
    }

    private static void move(Connection site, int amount, int account) throws SQLException {
        try (PreparedStatement move = site.prepareStatement(MOVE)) {
            move.setInt(1, amount);
            move.setInt(2, account);
            move.executeUpdate();
        }
    }

    private static void note(String line) {
        try {
            journal.write(ByteBuffer.wrap((line + "\n").getBytes(StandardCharsets.UTF_8)));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
