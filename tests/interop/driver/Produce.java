import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * produce: namesrv topic mode=sync|async|oneway|batch count [start] [group] [prefix] [tags=A,B] [keys=k] [delay] [timed_ms] [size]
 * [queue] [queues] [property] [compress_over] [retries] [timeout_ms] [attempt_ms] [interval_ms] [flag] [deadline_ms] [trace]
 * [access_key secret_key].
 *
 * Message i has the body "prefix-i", padded with '.' to size; the key keys+i (and a second one, keys+"all"); tag i modulo their
 * number. queue fixes the queue, queues=n sends message i to queue i modulo n. count=0 goes on until stopped.
 * A line "sent" per answer, "failed" per exception. With trace=true it ends when stopped: a shutdown cuts off the traces that
 * are still on their way.
 */
final class Produce {
    private Produce() {
    }

    static void run(Order order) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(order.text("group", "driver-producers"), order.hook(), order.flag("trace"), null);
        order.configure(producer);
        producer.setSendMsgTimeout(order.number("timeout_ms", 15_000));
        limitAttempts(producer, order.number("attempt_ms", -1));
        producer.setRetryTimesWhenSendFailed(order.number("retries", 2));
        producer.setRetryTimesWhenSendAsyncFailed(order.number("retries", 2));
        producer.setCompressMsgBodyOverHowmuch(order.number("compress_over", 4096));
        producer.start();
        Traces.giveTime(producer.getTraceDispatcher());
        try {
            String mode = order.text("mode", "sync");
            if (mode.equals("batch")) {
                batch(order, producer);
            } else if (mode.equals("async")) {
                async(order, producer);
            } else {
                oneByOne(order, producer, mode.equals("oneway"));
            }
            if (order.flag("trace")) {
                order.awaitStop();
            }
        } finally {
            producer.shutdown();
        }
    }

    /** Of 5.x only. */
    private static void limitAttempts(DefaultMQProducer producer, int millis) throws ReflectiveOperationException {
        try {
            producer.getClass().getMethod("setSendMsgMaxTimeoutPerRequest", int.class).invoke(producer, millis);
        } catch (NoSuchMethodException none) {
            // 4.9: an attempt may take the whole timeout.
            return;
        }
    }

    private static void oneByOne(Order order, DefaultMQProducer producer, boolean oneway) throws Exception {
        int count = order.number("count", 0);
        long interval = order.big("interval_ms", 0);
        int start = order.number("start", 0);
        long end = System.currentTimeMillis() + order.big("deadline_ms", 600_000);
        for (int i = start; (count == 0 || i < start + count) && !order.isStopped(); i++) {
            if (System.currentTimeMillis() > end) {
                break;
            }
            Message message = message(order, i);
            try {
                if (oneway) {
                    MessageQueue queue = queue(order, producer, i);
                    if (queue == null) {
                        producer.sendOneway(message);
                    } else {
                        producer.sendOneway(message, queue);
                    }
                    order.emit("sent", "index", i, "status", "ONEWAY");
                } else {
                    MessageQueue queue = queue(order, producer, i);
                    report(order, i, queue == null ? producer.send(message) : producer.send(message, queue));
                }
            } catch (Exception error) {
                failed(order, i, error);
            }
            if (interval > 0) {
                order.pause(interval);
            }
        }
        if (oneway) {
            // A one-way send is only written to the socket by its own thread; a question on the same connection,
            // answered, says that the socket has been drained.
            for (MessageQueue queue : producer.fetchPublishMessageQueues(order.text("topic"))) {
                producer.maxOffset(queue);
            }
        }
    }

    private static void async(Order order, DefaultMQProducer producer) throws Exception {
        int count = order.number("count", 1);
        int start = order.number("start", 0);
        CountDownLatch answers = new CountDownLatch(count);
        for (int i = start; i < start + count; i++) {
            int index = i;
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    report(order, index, result);
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failed(order, index, error);
                    answers.countDown();
                }
            };
            MessageQueue queue = queue(order, producer, i);
            if (queue == null) {
                producer.send(message(order, i), callback);
            } else {
                producer.send(message(order, i), queue, callback);
            }
        }
        if (!answers.await(order.deadlineMs(), TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(answers.getCount() + " asynchronous sends without an answer");
        }
    }

    private static void batch(Order order, DefaultMQProducer producer) throws Exception {
        int start = order.number("start", 0);
        List<Message> messages = new ArrayList<>();
        for (int i = start; i < start + order.number("count", 1); i++) {
            messages.add(message(order, i));
        }
        MessageQueue queue = queue(order, producer, start);
        report(order, start, queue == null ? producer.send(messages) : producer.send(messages, queue));
    }

    private static MessageQueue queue(Order order, DefaultMQProducer producer, int index) throws Exception {
        int queues = order.number("queues", 0);
        int queueId = queues > 0 ? index % queues : order.number("queue", -1);
        if (queueId < 0) {
            return null;
        }
        for (MessageQueue queue : producer.fetchPublishMessageQueues(order.text("topic"))) {
            if (queue.getQueueId() == queueId && queue.getBrokerName().startsWith(order.text("broker", ""))) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + queueId);
    }

    private static Message message(Order order, int index) {
        StringBuilder body = new StringBuilder(order.text("prefix", "body")).append('-').append(index);
        while (body.length() < order.number("size", 0)) {
            body.append('.');
        }
        Message message = new Message(order.text("topic"), body.toString().getBytes(StandardCharsets.UTF_8));
        String[] tags = order.text("tags", "").split(",");
        if (!tags[index % tags.length].isEmpty()) {
            message.setTags(tags[index % tags.length]);
        }
        String keys = order.text("keys", "");
        if (!keys.isEmpty()) {
            message.setKeys(keys + index + " " + keys + "all");
        }
        if (order.number("delay", 0) > 0) {
            message.setDelayTimeLevel(order.number("delay", 0));
        }
        if (order.number("timed_ms", 0) > 0) {
            // What setDelayTimeMs of 5.x does; 4.9 has no method for it.
            MessageAccessor.putProperty(message, "TIMER_DELAY_MS", order.text("timed_ms"));
        }
        String property = order.text("property", "");
        if (!property.isEmpty()) {
            message.putUserProperty(property, property + index);
        }
        message.setFlag(order.number("flag", 0));
        message.setWaitStoreMsgOK(!order.flag("nowait"));
        return message;
    }

    private static void report(Order order, int index, SendResult result) {
        order.emit("sent", "index", index,
            "status", result.getSendStatus().name(),
            "msgId", result.getMsgId(),
            "offsetMsgId", result.getOffsetMsgId(),
            "broker", result.getMessageQueue().getBrokerName(),
            "queueId", result.getMessageQueue().getQueueId(),
            "queueOffset", result.getQueueOffset(),
            "recallHandle", recallHandle(result));
    }

    /** Of 5.3 only; null if there is none. */
    private static Object recallHandle(SendResult result) {
        try {
            return result.getClass().getMethod("getRecallHandle").invoke(result);
        } catch (ReflectiveOperationException none) {
            return null;
        }
    }

    /** recall: namesrv topic handles=A,B [group]. A line "recalled" with the id, or "failed", per handle; of 5.3 only. */
    static void recall(Order order) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(order.text("group", "driver-producers"));
        order.configure(producer);
        producer.start();
        try {
            String[] handles = order.text("handles").split(",");
            for (int i = 0; i < handles.length; i++) {
                try {
                    Object id = producer.getClass().getMethod("recallMessage", String.class, String.class)
                        .invoke(producer, order.text("topic"), handles[i]);
                    order.emit("recalled", "index", i, "msgId", id);
                } catch (InvocationTargetException error) {
                    failed(order, i, error.getCause());
                }
            }
        } finally {
            producer.shutdown();
        }
    }

    private static void failed(Order order, int index, Throwable error) {
        order.emit("failed", "index", index, "class", error.getClass().getSimpleName(), "code", Order.codeOf(error),
            "text", String.valueOf(error.getMessage()));
    }
}
