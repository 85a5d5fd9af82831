import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Drives an unmodified RocketMQ client for the interop tests.
 *
 * Standard input takes one order per line, {@code id verb key=value ...}, values percent-encoded; every order runs in a
 * thread of its own. Standard output gives one JSON object per line, each with the id of its order and an event; the last
 * event of an order is "done" or "error". {@code id stop} asks a running order to come to its end, {@code id rest} to send nothing
 * more until then.
 */
public final class Driver {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final Map<String, Order> RUNNING = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        // What client code and mqadmin print must not mix with our lines.
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        emit("{\"event\":\"ready\"}");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Order order = Order.parse(line);
            if (order.verb.equals("stop")) {
                Order running = RUNNING.get(order.id);
                if (running != null) {
                    running.stop();
                }
                continue;
            }
            if (order.verb.equals("rest")) {
                Order running = RUNNING.get(order.id);
                if (running != null) {
                    running.rest();
                }
                continue;
            }
            RUNNING.put(order.id, order);
            Thread thread = new Thread(() -> run(order), "order-" + order.id);
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(Order order) {
        try {
            switch (order.verb) {
                case "produce": Produce.run(order); break;
                case "recall": Produce.recall(order); break;
                case "push": Consume.push(order); break;
                case "pull": Consume.pull(order); break;
                case "lite": Consume.lite(order); break;
                case "request": Ask.request(order); break;
                case "transact": Transact.run(order); break;
                case "respond": Ask.respond(order); break;
                case "key": Query.byKey(order); break;
                case "unique": Query.byUniqueKey(order); break;
                case "view": Query.byOffsetId(order); break;
                case "offsets": Query.offsets(order); break;
                case "admin": Query.admin(order); break;
                case "traces": Traces.rewrite(order); break;
                default: throw new IllegalArgumentException("unknown verb " + order.verb);
            }
            order.emit("done");
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            order.emit("error", "class", error.getClass().getSimpleName(), "code", Order.codeOf(error), "text", trace.toString());
        } finally {
            RUNNING.remove(order.id);
        }
    }

    static void emit(String line) {
        synchronized (OUT) {
            OUT.println(line);
        }
    }
}
