import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Drives an unmodified RocketMQ client of the gRPC protocol for the interop tests. Orders and events are described in
 * tests/interop/grpc_clients.py.
 */
public final class Driver {
    private static final Map<String, Order> ORDERS = new ConcurrentHashMap<>();
    private static final Map<String, Object> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, MessageView> RECEIVED = new ConcurrentHashMap<>();
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    private static final AtomicInteger KEYS = new AtomicInteger();

    private interface Attempt {
        Map<String, Object> run() throws Exception;
    }

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Events.print(Collections.singletonMap("event", "ready"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Order order = new Order(line);
            if (order.verb.equals("stop")) {
                Order running = ORDERS.get(order.id);
                if (running != null) {
                    running.stop();
                }
                continue;
            }
            ORDERS.put(order.id, order);
            Thread thread = new Thread(() -> run(order), "order-" + order.id);
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(Order order) {
        try {
            switch (order.verb) {
                case "producer": producer(order); break;
                case "simple": simple(order); break;
                case "push": push(order); break;
                case "send": send(order); break;
                case "burst": burst(order); break;
                case "transact": transact(order); break;
                case "recall": recall(order); break;
                case "receive": receive(order); break;
                case "ack": ack(order); break;
                case "change": change(order); break;
                default: throw new IllegalArgumentException("unknown verb " + order.verb);
            }
            order.emit("done");
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            order.emit("error", "class", error.getClass().getSimpleName(), "code", codeOf(error), "text", trace.toString());
        } finally {
            ORDERS.remove(order.id);
        }
    }

    private static void producer(Order order) throws Exception {
        ProducerBuilder builder = ClientServiceProvider.loadService().newProducerBuilder()
            .setClientConfiguration(order.configuration());
        if (!order.text("topics").isEmpty()) {
            builder.setTopics(order.text("topics").split(","));
        }
        String resolution = order.text("check");
        if (!resolution.isEmpty()) {
            builder.setTransactionChecker(message -> {
                order.emit("check", Events.described(message), "resolution", resolution);
                switch (resolution) {
                    case "commit": return TransactionResolution.COMMIT;
                    case "rollback": return TransactionResolution.ROLLBACK;
                    default: return TransactionResolution.UNKNOWN;
                }
            });
        }
        try (Producer producer = builder.build()) {
            stay(order, producer);
        }
    }

    private static void simple(Order order) throws Exception {
        try (SimpleConsumer consumer = ClientServiceProvider.loadService().newSimpleConsumerBuilder()
            .setClientConfiguration(order.configuration())
            .setConsumerGroup(order.text("group"))
            .setAwaitDuration(order.duration("await_ms", 10_000))
            .setSubscriptionExpressions(order.subscription())
            .build()) {
            stay(order, consumer);
        }
    }

    private static void push(Order order) throws Exception {
        long fails = order.number("fail_first", 0);
        Map<String, AtomicInteger> attempts = new ConcurrentHashMap<>();
        try (PushConsumer consumer = ClientServiceProvider.loadService().newPushConsumerBuilder()
            .setClientConfiguration(order.configuration())
            .setConsumerGroup(order.text("group"))
            .setSubscriptionExpressions(order.subscription())
            .setConsumptionThreadCount((int) order.number("threads", 4))
            .setMessageListener(message -> {
                String messageId = message.getMessageId().toString();
                int attempt = attempts.computeIfAbsent(messageId, key -> new AtomicInteger()).incrementAndGet();
                order.emit("message", Events.described(message), "failed", attempt <= fails);
                return attempt <= fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build()) {
            stay(order, consumer);
        }
    }

    private static void stay(Order order, Object client) throws InterruptedException {
        CLIENTS.put(order.text("client"), client);
        order.emit("open");
        order.awaitStop();
        CLIENTS.remove(order.text("client"));
    }

    private static void send(Order order) {
        Message message = order.message(order.body(), order.text("message_group"));
        attempt(order, "sent", () -> receipt(producerOf(order).send(message)));
    }

    private static void burst(Order order) throws Exception {
        long count = order.number("count", Integer.MAX_VALUE);
        long groups = order.number("groups", 0);
        for (long number = 0; number < count; number++) {
            String body = order.text("prefix") + "-" + number;
            Message message = order.message(body.getBytes(StandardCharsets.UTF_8), groups > 0 ? "g" + number % groups : "");
            attempt(order, "sent", () -> receipt(producerOf(order).send(message)), "body", body);
            if (order.pause(order.number("every_ms", 0))) {
                break;
            }
        }
    }

    private static void transact(Order order) throws Exception {
        Transaction transaction = producerOf(order).beginTransaction();
        Message message = order.message(order.body(), "");
        attempt(order, "sent", () -> receipt(producerOf(order).send(message, transaction)));
        if (order.text("end").equals("commit")) {
            attempt(order, "ended", () -> {
                transaction.commit();
                return Collections.emptyMap();
            });
        } else if (order.text("end").equals("rollback")) {
            attempt(order, "ended", () -> {
                transaction.rollback();
                return Collections.emptyMap();
            });
        }
    }

    /** Client 5.0.7, against which these sources are compiled too, cannot recall. */
    private static void recall(Order order) {
        attempt(order, "recalled", () -> {
            Producer producer = producerOf(order);
            Object found = Producer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, order.text("topic"), order.text("handle"));
            Class<?> type = Class.forName("org.apache.rocketmq.client.apis.producer.RecallReceipt");
            return Collections.singletonMap("messageId", type.getMethod("getMessageId").invoke(found).toString());
        });
    }

    private static void receive(Order order) {
        attempt(order, "received", () -> {
            SimpleConsumer consumer = (SimpleConsumer) CLIENTS.get(order.text("client"));
            for (MessageView message : consumer.receive((int) order.number("max", 16), order.duration("invisible_ms", 15_000))) {
                String key = "m" + KEYS.incrementAndGet();
                RECEIVED.put(key, message);
                order.emit("message", Events.described(message), "key", key);
            }
            return Collections.emptyMap();
        });
    }

    private static void ack(Order order) {
        attempt(order, "acked", () -> {
            ((SimpleConsumer) CLIENTS.get(order.text("client"))).ack(RECEIVED.get(order.text("message")));
            return Collections.emptyMap();
        });
    }

    private static void change(Order order) {
        attempt(order, "changed", () -> {
            ((SimpleConsumer) CLIENTS.get(order.text("client")))
                .changeInvisibleDuration(RECEIVED.get(order.text("message")), order.duration("invisible_ms", 0));
            return Collections.emptyMap();
        });
    }

    private static Producer producerOf(Order order) {
        return (Producer) CLIENTS.get(order.text("client"));
    }

    private static Map<String, Object> receipt(SendReceipt found) throws ReflectiveOperationException {
        Map<String, Object> values = new LinkedHashMap<>();
        values.put("messageId", found.getMessageId().toString());
        try {
            values.put("recallHandle", SendReceipt.class.getMethod("getRecallHandle").invoke(found));
        } catch (NoSuchMethodException older) {
            values.put("recallHandle", null);
        }
        return values;
    }

    /** Do what can be refused, and report the result. */
    private static void attempt(Order order, String event, Attempt attempt, Object... pairs) {
        try {
            order.emit(event, attempt.run(), pairs);
        } catch (Exception error) {
            Throwable cause = cause(error);
            Map<String, Object> values = new LinkedHashMap<>();
            values.put("class", cause.getClass().getSimpleName());
            values.put("code", codeOf(cause));
            values.put("text", String.valueOf(cause.getMessage()));
            order.emit("refused", values, pairs);
        }
    }

    private static Throwable cause(Throwable error) {
        boolean isWrapper = error instanceof InvocationTargetException || error instanceof ExecutionException
            || error instanceof CompletionException;
        return isWrapper && error.getCause() != null ? cause(error.getCause()) : error;
    }

    /** The status code inside a client exception, null if there is none; it is only in the text. */
    private static Integer codeOf(Throwable error) {
        Matcher found = CODE.matcher(String.valueOf(error.getMessage()));
        return found.find() ? Integer.valueOf(found.group(1)) : null;
    }
}
