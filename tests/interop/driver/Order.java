import java.lang.reflect.Method;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** One order: its parameters, its end, and the lines it prints. */
final class Order {
    private static final AtomicLong INSTANCES = new AtomicLong();

    final String id;
    final String verb;
    private final Map<String, String> values;
    private final CountDownLatch stopped = new CountDownLatch(1);
    private volatile boolean resting;

    private Order(String id, String verb, Map<String, String> values) {
        this.id = id;
        this.verb = verb;
        this.values = values;
    }

    static Order parse(String line) {
        String[] words = line.split(" ");
        Map<String, String> values = new HashMap<>();
        for (int i = 2; i < words.length; i++) {
            int equals = words[i].indexOf('=');
            values.put(words[i].substring(0, equals),
                URLDecoder.decode(words[i].substring(equals + 1), StandardCharsets.UTF_8));
        }
        return new Order(words[0], words[1], values);
    }

    String text(String key) {
        String value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException(verb + " needs " + key);
        }
        return value;
    }

    String text(String key, String missing) {
        return values.getOrDefault(key, missing);
    }

    int number(String key, int missing) {
        return Integer.parseInt(values.getOrDefault(key, Integer.toString(missing)));
    }

    long big(String key, long missing) {
        return Long.parseLong(values.getOrDefault(key, Long.toString(missing)));
    }

    boolean flag(String key) {
        return Boolean.parseBoolean(values.getOrDefault(key, "false"));
    }

    /** What signs requests for the user access_key with secret_key; null without. */
    RPCHook hook() {
        String user = text("access_key", "");
        return user.isEmpty() ? null : new AclClientRPCHook(new SessionCredentials(user, text("secret_key")));
    }

    /** A client of its own per order: the Java client shares connections among equal instance names. */
    void configure(ClientConfig config) {
        config.setNamesrvAddr(text("namesrv"));
        config.setClientIP("127.0.0.1");
        config.setInstanceName(text("instance", "driver-" + ProcessHandle.current().pid() + "-" + INSTANCES.incrementAndGet()));
        config.setVipChannelEnabled(flag("vip"));
        config.setPollNameServerInterval(number("poll_ms", 30000));
        config.setMqClientApiTimeout(number("api_timeout_ms", 15_000));
        // A rebalance that meets a heartbeat under way is announced by the next one; until then pulls are refused with
        // SUBSCRIPTION_NOT_LATEST. The default of 30 s is a test's whole time.
        config.setHeartbeatBrokerInterval(number("heartbeat_ms", 2000));
        config.setPullTimeDelayMillsWhenException(number("pull_error_ms", 3000));
    }

    void stop() {
        stopped.countDown();
    }

    /** Have it send nothing more, and stay. */
    void rest() {
        resting = true;
    }

    boolean isResting() {
        return resting;
    }

    boolean isStopped() {
        return stopped.getCount() == 0;
    }

    /** deadline_ms, or 30 s, for a machine that is four times as slow as the one that the tests were written on. */
    long deadlineMs() {
        return 4 * big("deadline_ms", 30_000);
    }

    /** Wait for {@link #stop}, at most until the deadline; whether it was called. */
    boolean awaitStop() throws InterruptedException {
        return stopped.await(deadlineMs(), TimeUnit.MILLISECONDS);
    }

    boolean pause(long millis) throws InterruptedException {
        return stopped.await(millis, TimeUnit.MILLISECONDS);
    }

    /** Print one line; keys and values alternate. */
    void emit(String event, Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("event", event);
        line.put("at_ms", System.currentTimeMillis());
        for (int i = 0; i < pairs.length; i += 2) {
            line.put((String) pairs[i], pairs[i + 1]);
        }
        Driver.emit(Json.write(line));
    }

    void emitMessage(MessageExt message) {
        emitMessage(message, null);
    }

    void emitMessage(MessageExt message, String broker) {
        emit("message",
            "topic", message.getTopic(),
            "broker", message.getBrokerName() != null ? message.getBrokerName() : broker,
            "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(),
            "commitLogOffset", message.getCommitLogOffset(),
            "msgId", message.getMsgId(),
            "tags", message.getTags(),
            "keys", message.getKeys(),
            "body", new String(message.getBody(), StandardCharsets.UTF_8),
            "bodyCRC", message.getBodyCRC(),
            "flag", message.getFlag(),
            "sysFlag", message.getSysFlag(),
            "storeSize", message.getStoreSize(),
            "reconsumeTimes", message.getReconsumeTimes(),
            "bornTimestamp", message.getBornTimestamp(),
            "storeTimestamp", message.getStoreTimestamp(),
            "bornHost", message.getBornHostString(),
            "storeHost", String.valueOf(message.getStoreHost()),
            "properties", new LinkedHashMap<>(message.getProperties()));
    }

    /** The response code inside a client exception, -1 if there is none. */
    static int codeOf(Throwable error) {
        for (Throwable at = error; at != null; at = at.getCause()) {
            try {
                Method method = at.getClass().getMethod("getResponseCode");
                return (Integer) method.invoke(at);
            } catch (ReflectiveOperationException none) {
                // Not one of the two exceptions that carry a code: look at its cause.
                continue;
            }
        }
        return -1;
    }
}
