import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;

import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Questions: by key, by unique key, by message id, offsets of a topic, and mqadmin commands inside this JVM. */
final class Query {
    private static final Object ADMIN = new Object();

    private Query() {
    }

    private interface Question {
        void ask(DefaultMQProducer client) throws Exception;
    }

    private static void with(Order order, Question question) throws Exception {
        DefaultMQProducer client = new DefaultMQProducer("driver-queries");
        order.configure(client);
        client.start();
        try {
            question.ask(client);
        } finally {
            client.shutdown();
        }
    }

    /** key: namesrv topic key [max] [begin_ms] [end_ms]. */
    static void byKey(Order order) throws Exception {
        with(order, client -> {
            QueryResult result = client.queryMessage(order.text("topic"), order.text("key"), order.number("max", 32),
                order.big("begin_ms", 0), order.big("end_ms", Long.MAX_VALUE));
            for (MessageExt message : result.getMessageList()) {
                order.emitMessage(message);
            }
        });
    }

    /** unique: namesrv topic unique. */
    static void byUniqueKey(Order order) throws Exception {
        with(order, client -> order.emitMessage(
            client.getDefaultMQProducerImpl().queryMessageByUniqKey(order.text("topic"), order.text("unique"))));
    }

    /** view: namesrv topic offset_id. */
    static void byOffsetId(Order order) throws Exception {
        with(order, client -> order.emitMessage(client.viewMessage(order.text("topic"), order.text("offset_id"))));
    }

    /** offsets: namesrv topic group [timestamp]: per queue the stored offset of the group (-1: none), smallest, largest, by time. */
    static void offsets(Order order) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(order.text("group"));
        order.configure(consumer);
        consumer.start();
        try {
            for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(order.text("topic")))) {
                long timestamp = order.big("timestamp", -1);
                order.emit("queue", "broker", queue.getBrokerName(), "queueId", queue.getQueueId(),
                    "stored", consumer.fetchConsumeOffset(queue, true),
                    "min", consumer.minOffset(queue), "max", consumer.maxOffset(queue),
                    "earliest", consumer.earliestMsgStoreTime(queue),
                    "at_timestamp", timestamp < 0 ? null : consumer.searchOffset(queue, timestamp));
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** admin: arguments (joined by '&', each percent-encoded): the text that mqadmin prints. One at a time: it prints to the JVM's output. */
    static void admin(Order order) throws Exception {
        String[] arguments = order.text("arguments").split("&");
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = URLDecoder.decode(arguments[i], StandardCharsets.UTF_8);
        }
        synchronized (ADMIN) {
            PrintStream out = System.out;
            PrintStream err = System.err;
            ByteArrayOutputStream caught = new ByteArrayOutputStream();
            PrintStream printed = new PrintStream(caught, true, StandardCharsets.UTF_8);
            System.setOut(printed);
            System.setErr(printed);
            try {
                MQAdminStartup.main0(arguments, null);
            } finally {
                System.setOut(out);
                System.setErr(err);
            }
            order.emit("printed", "text", caught.toString(StandardCharsets.UTF_8));
        }
    }
}
