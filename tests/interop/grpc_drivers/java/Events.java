import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.client.apis.message.MessageView;

/** What the driver prints: one JSON object per line. */
final class Events {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final int BODY_MAX = 2000;

    private Events() {
    }

    /** Print one line; keys and values alternate, and maps are taken as they are. */
    static void print(String order, String event, Object... values) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", order);
        line.put("event", event);
        line.put("at_ms", System.currentTimeMillis());
        for (int i = 0; i < values.length; i += 2) {
            line.put((String) values[i], values[i + 1]);
        }
        print(line);
    }

    static void print(Map<String, Object> line) {
        String text = Json.write(line);
        synchronized (OUT) {
            OUT.println(text);
        }
    }

    /** What a message has. */
    static Map<String, Object> described(MessageView message) {
        ByteBuffer buffer = message.getBody();
        byte[] body = new byte[buffer.remaining()];
        buffer.get(body);
        List<String> keys = new ArrayList<>(message.getKeys());
        Collections.sort(keys);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("messageId", message.getMessageId().toString());
        found.put("topic", message.getTopic());
        found.put("tag", message.getTag().orElse(null));
        found.put("keys", keys);
        found.put("properties", message.getProperties());
        found.put("messageGroup", message.getMessageGroup().orElse(null));
        found.put("deliveryMs", message.getDeliveryTimestamp().orElse(null));
        found.put("attempt", message.getDeliveryAttempt());
        found.put("bornHost", message.getBornHost());
        found.put("size", body.length);
        found.put("digest", digest(body));
        found.put("body", body.length <= BODY_MAX ? new String(body, StandardCharsets.UTF_8) : null);
        return found;
    }

    private static String digest(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte one : MessageDigest.getInstance("SHA-256").digest(body)) {
                text.append(String.format("%02x", one));
            }
            return text.toString();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
