import java.util.List;
import java.util.Map;
import java.util.Arrays;
import org.tarantool.Iterator;
import org.tarantool.TarantoolClient;
import org.tarantool.TarantoolClientConfig;
import org.tarantool.TarantoolClientImpl;
import org.tarantool.TarantoolClusterClient;
import org.tarantool.TarantoolClusterClientConfig;
import org.tarantool.TarantoolException;

/** The checks with org.tarantool:connector, its client for clusters in the last one. */
public final class Driver {
    private static final String[] ADDRESSES = System.getenv("CONNECTOR_ADDRESSES").split(",");
    private static final int KV = 512;
    private static final int ROW_LIMIT = 2;

    private interface Check {
        void run() throws Exception;
    }

    private static void report(String name, Check check) {
        String result = "ok";
        try {
            check.run();
        } catch (Exception | Error problem) {
            result = "failed: " + String.valueOf(problem).replace("\n", " ");
        }
        System.out.println(name + ": " + result);
    }

    private static void expect(Object got, Object wanted) {
        if (!String.valueOf(got).equals(String.valueOf(wanted))) {
            throw new IllegalStateException(got + " instead of " + wanted);
        }
    }

    private static <T extends TarantoolClientConfig> T account(T config, String password) {
        config.username = System.getenv("CONNECTOR_USER");
        config.password = password;
        config.initTimeoutMillis = 5000;
        return config;
    }

    private static TarantoolClient connect(String password) {
        return new TarantoolClientImpl(ADDRESSES[0], account(new TarantoolClientConfig(), password));
    }

    private static List<Object> row(Object... fields) {
        return Arrays.asList(fields);
    }

    public static void main(String[] arguments) {
        String password = System.getenv("CONNECTOR_PASSWORD");
        TarantoolClient client = connect(password);
        report("log in", () -> {
            client.syncOps().ping();
            try {
                connect("wrong").syncOps().ping();
            } catch (RuntimeException refused) {
                return;
            }
            throw new IllegalStateException("a wrong password is accepted");
        });
        report("types", () -> {
            Object[] values = {
                null, true, false, -5, 1L << 62, 3.5, "text", List.of("nested"), Map.of("key", "value"),
            };
            for (Object value : values) {
                List<?> found = client.syncOps().replace(KV, row(1, "types", value));
                expect(((List<?>) found.get(0)).get(2), value);
            }
        });
        report("requests", () -> {
            for (int number = 10; number < 15; number++) {
                expect(client.syncOps().insert(KV, row(number, "row", number)),
                    List.of(row(number, "row", number)));
            }
            expect(client.syncOps().update(KV, row(10), row("+", 2, 5)), "[[10, row, 15]]");
            client.syncOps().upsert(KV, row(11), row(11, "row", 0), row("+", 2, 5));
            expect(client.syncOps().delete(KV, row(12)), "[[12, row, 12]]");
            expect(client.syncOps().select(KV, 0, row(10), 1, ROW_LIMIT, Iterator.GE),
                "[[11, row, 16], [13, row, 13]]");
        });
        report("errors", () -> {
            try {
                client.syncOps().insert(KV, row(10, "row", 0));
            } catch (TarantoolException duplicate) {
                expect(duplicate.getCode(), 3);
                return;
            }
            throw new IllegalStateException("a duplicate key is accepted");
        });
        report("names", () -> {
            List<?> found = client.syncOps().select("kv", "name", row("types"), 0, 1, Iterator.EQ);
            expect(found.size(), 1);
        });
        report("console", () -> {
            expect(client.syncOps().eval("return true"), "[true]");
            expect(client.syncOps().call("box.info").size(), 1);
        });
        report("failover", () -> failover(password));
        System.exit(0);
    }

    private static void failover(String password) throws InterruptedException {
        TarantoolClusterClientConfig config = account(new TarantoolClusterClientConfig(), password);
        config.operationExpiryTimeMillis = 5000;
        TarantoolClient client = new TarantoolClusterClient(config, ADDRESSES);
        Exception last = null;
        int after = 0;
        long ready = Long.MAX_VALUE;
        long end = System.currentTimeMillis() + 40_000;
        for (int number = 1; after < 50 && System.currentTimeMillis() < end; number++) {
            try {
                client.syncOps().replace(KV, row(1000 + number, "failover", number));
                // The client may keep writes while it connects again: they succeed late.
                if (last != null || System.currentTimeMillis() - 3000 > ready) {
                    after++;
                }
            } catch (RuntimeException problem) {
                last = problem;
                after = 0;
                Thread.sleep(20);
            }
            if (number == 20) {
                System.out.println("failover: ready");
                ready = System.currentTimeMillis();
            } else {
                Thread.sleep(5);
            }
        }
        if (after < 50) {
            throw new IllegalStateException("no writes after the failover: " + last);
        }
    }
}
