import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The three kinds of Java consumers; each prints a line "message" per delivery. */
final class Consume {
    private Consume() {
    }

    /**
     * push: namesrv group topic [tags|sql] [orderly] [count] [fail_first] [max_reconsume] [from=first|last] [deadline_ms] [linger_ms]
     * [threads] [cache] [consume_ms] [broadcast] [trace] [pop] [pop_invisible_ms] [access_key secret_key]. cache bounds the messages per queue that the client fetches ahead, consume_ms is the time that
     * one message takes.
     *
     * Ends after count deliveries (0: when stopped), plus linger_ms in which more would be seen, or at the deadline ("deadline" is
     * printed then). The first fail_first deliveries of a body are answered with "again later".
     */
    static void push(Order order) throws Exception {
        DefaultMQPushConsumer consumer = Traces.consumer(order);
        order.configure(consumer);
        consumer.setConsumeFromWhere(order.text("from", "first").equals("first")
            ? ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET : ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.setConsumeThreadMin(order.number("threads", 4));
        consumer.setConsumeThreadMax(order.number("threads", 4));
        consumer.setPullThresholdForQueue(order.number("cache", 1000));
        consumer.setPullBatchSize(Math.min(32, order.number("cache", 1000)));
        consumer.setMaxReconsumeTimes(order.number("max_reconsume", -1));
        consumer.setSuspendCurrentQueueTimeMillis(order.number("suspend_ms", 1000));
        // Otherwise a shutdown commits without a message that its thread takes in at that moment.
        consumer.setAwaitTerminationMillisWhenShutdown(3000);
        if (order.flag("pop")) {
            // By their names: clients of 4.9 do not pop.
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            consumer.getClass().getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, order.big("pop_invisible_ms", 60_000));
        }
        if (order.flag("broadcast")) {
            // By its name: the enum is in another package in each version.
            consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
        }
        if (order.text("sql", "").isEmpty()) {
            consumer.subscribe(order.text("topic"), order.text("tags", "*"));
        } else {
            consumer.subscribe(order.text("topic"), MessageSelector.bySql(order.text("sql")));
        }

        int count = order.number("count", 0);
        int failFirst = order.number("fail_first", 0);
        AtomicInteger deliveries = new AtomicInteger();
        Map<String, Integer> failures = new ConcurrentHashMap<>();
        if (order.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                deliver(order, messages, failures, failFirst, deliveries, count)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                deliver(order, messages, failures, failFirst, deliveries, count)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        Traces.giveTime(consumer.getTraceDispatcher());
        order.emit("started");
        try {
            if (!order.awaitStop()) {
                order.emit("deadline", "deliveries", deliveries.get());
            } else if (order.number("linger_ms", 0) > 0) {
                Thread.sleep(order.number("linger_ms", 0));
            }
            awaitDrained(consumer);
        } finally {
            consumer.shutdown();
        }
    }

    /** A listener's answer counts only once the client has taken it in; a shutdown before makes the message come again. */
    private static void awaitDrained(DefaultMQPushConsumer consumer) {
        long end = System.currentTimeMillis() + 3000;
        while (System.currentTimeMillis() < end && consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().values().stream().anyMatch(queue -> queue.getMsgCount().get() > 0)) {
            LockSupport.parkNanos(5_000_000L);
        }
    }

    private static boolean deliver(Order order, List<MessageExt> messages, Map<String, Integer> failures, int failFirst,
                                   AtomicInteger deliveries, int count) {
        boolean success = true;
        for (MessageExt message : messages) {
            order.emitMessage(message);
            LockSupport.parkNanos(order.big("consume_ms", 0) * 1_000_000L);
            success &= failures.merge(new String(message.getBody()), 1, Integer::sum) > failFirst;
            if (deliveries.incrementAndGet() == count) {
                order.stop();
            }
        }
        return success;
    }

    /**
     * pull: namesrv group topic [tags] [max] [resume] [commit] [limit]: every queue, in order, from offset 0 (or from the
     * committed offset with resume=true) until its end, or until limit messages of it were seen. With commit=true the group's
     * offsets are stored. A line "queue" per queue.
     */
    static void pull(Order order) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(order.text("group"));
        order.configure(consumer);
        consumer.start();
        // 6 s for routes and offsets otherwise, which no setting changes.
        consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().getMQAdminImpl().setTimeoutMillis(30_000);
        try {
            for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(order.text("topic")))) {
                pullQueue(order, consumer, queue);
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static void pullQueue(Order order, DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long offset = order.flag("resume") ? Math.max(0, consumer.fetchConsumeOffset(queue, true)) : 0;
        long from = offset;
        List<String> statuses = new ArrayList<>();
        long max = consumer.maxOffset(queue);
        long limit = order.big("limit", Long.MAX_VALUE);
        while (!order.isStopped() && offset - from < limit) {
            int most = (int) Math.min(order.number("max", 32), limit - (offset - from));
            PullResult result = consumer.pull(queue, order.text("tags", "*"), offset, most);
            statuses.add(result.getPullStatus().name());
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    order.emitMessage(message, queue.getBrokerName());
                }
            }
            boolean end = result.getPullStatus() == PullStatus.NO_NEW_MSG || result.getNextBeginOffset() >= max;
            offset = result.getNextBeginOffset();
            if (end) {
                break;
            }
        }
        if (order.flag("commit")) {
            // The remote store sends one-way; reading it back says that it arrived.
            consumer.updateConsumeOffset(queue, offset);
            consumer.getOffsetStore().persist(queue);
            consumer.fetchConsumeOffset(queue, true);
        }
        order.emit("queue", "broker", queue.getBrokerName(), "queueId", queue.getQueueId(), "from", from, "next", offset,
            "min", consumer.minOffset(queue), "max", max, "statuses", statuses);
    }

    /** lite: namesrv group topic [tags] count [assign] [deadline_ms]: subscribed, or with assign=true on all queues from their start. */
    static void lite(Order order) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(order.text("group"));
        order.configure(consumer);
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (!order.flag("assign")) {
            consumer.subscribe(order.text("topic"), order.text("tags", "*"));
        }
        consumer.start();
        try {
            if (order.flag("assign")) {
                // No seek: its new pull does not wait for the old one, and messages may come twice (client 5.3.3).
                consumer.assign(new ArrayList<>(consumer.fetchMessageQueues(order.text("topic"))));
            }
            int seen = 0;
            int count = order.number("count", 1);
            long end = System.currentTimeMillis() + order.deadlineMs();
            Map<MessageQueue, Long> offsets = new HashMap<>();
            while (seen < count && !order.isStopped()) {
                if (System.currentTimeMillis() > end) {
                    order.emit("deadline", "deliveries", seen);
                    break;
                }
                for (MessageExt message : consumer.poll(500)) {
                    order.emitMessage(message);
                    seen++;
                }
            }
            if (!order.flag("assign")) {
                consumer.commitSync();
            }
        } finally {
            consumer.shutdown();
        }
    }
}
