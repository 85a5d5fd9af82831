import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;

/** One order: its parameters and its end. */
final class Order {
    final String id;
    final String verb;
    private final Map<String, String> values = new HashMap<>();
    private final CountDownLatch stopped = new CountDownLatch(1);

    Order(String line) {
        String[] words = line.split(" ");
        id = words[0];
        verb = words[1];
        for (int i = 2; i < words.length; i++) {
            int equals = words[i].indexOf('=');
            values.put(words[i].substring(0, equals),
                URLDecoder.decode(words[i].substring(equals + 1), StandardCharsets.UTF_8));
        }
    }

    String text(String key) {
        return values.getOrDefault(key, "");
    }

    long number(String key, long missing) {
        return Long.parseLong(values.getOrDefault(key, Long.toString(missing)));
    }

    void emit(String event, Object... pairs) {
        Events.print(id, event, pairs);
    }

    /** Print an event with what a message has; further keys and values alternate. */
    void emit(String event, Map<String, Object> message, Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("event", event);
        line.put("at_ms", System.currentTimeMillis());
        for (int i = 0; i < pairs.length; i += 2) {
            line.put((String) pairs[i], pairs[i + 1]);
        }
        line.putAll(message);
        Events.print(line);
    }

    void stop() {
        stopped.countDown();
    }

    void awaitStop() throws InterruptedException {
        stopped.await();
    }

    /** Wait; whether the order was stopped. */
    boolean pause(long millis) throws InterruptedException {
        return stopped.await(millis, TimeUnit.MILLISECONDS);
    }

    ClientConfiguration configuration() {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(text("endpoints"))
            .enableSsl(Boolean.parseBoolean(text("tls")));
        if (!text("access_key").isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(text("access_key"), text("secret_key")));
        }
        return builder.build();
    }

    Map<String, FilterExpression> subscription() {
        String expression = text("expression").isEmpty() ? "*" : text("expression");
        FilterExpressionType type = Boolean.parseBoolean(text("sql")) ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Collections.singletonMap(text("topic"), new FilterExpression(expression, type));
    }

    Duration duration(String key, long missingMs) {
        return Duration.ofMillis(number(key, missingMs));
    }

    /** The body: as given, or letters of that size. */
    byte[] body() {
        int size = (int) number("size", 0);
        if (size == 0) {
            return text("body").getBytes(StandardCharsets.UTF_8);
        }
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) ('a' + i % 26);
        }
        return body;
    }

    Message message(byte[] body, String group) {
        MessageBuilder builder = ClientServiceProvider.loadService().newMessageBuilder().setTopic(text("topic")).setBody(body);
        if (!text("tag").isEmpty()) {
            builder.setTag(text("tag"));
        }
        if (!text("keys").isEmpty()) {
            builder.setKeys(text("keys").split(","));
        }
        if (!group.isEmpty()) {
            builder.setMessageGroup(group);
        }
        if (number("deliver_ms", 0) > 0) {
            builder.setDeliveryTimestamp(number("deliver_ms", 0));
        }
        values.forEach((key, value) -> {
            if (key.startsWith("property.")) {
                builder.addProperty(key.substring("property.".length()), value);
            }
        });
        return builder.build();
    }
}
