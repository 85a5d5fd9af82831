import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests and replies: producers that ask, and consumers whose producer replies. */
final class Ask {
    private Ask() {
    }

    /**
     * request: namesrv topic [count] [group] [prefix] [size] [timeout_ms] [sync]. Sends requests with the bodies prefix-0, prefix-1, …
     * at once, by callback, or one after the other by the blocking call. A line "reply" per reply, "unanswered" per error.
     * A client of 5.3 calls back with null first, when the request is sent, and with the reply later.
     */
    static void request(Order order) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(order.text("group", "driver-askers"));
        order.configure(producer);
        producer.start();
        try {
            int count = order.number("count", 1);
            CountDownLatch open = new CountDownLatch(count);
            for (int i = 0; i < count; i++) {
                Message message = message(order, i);
                int index = i;
                long timeout = order.big("timeout_ms", 10000);
                if (order.flag("sync")) {
                    try {
                        replied(order, index, producer.request(message, timeout));
                    } catch (Exception error) {
                        unanswered(order, index, error);
                    }
                    open.countDown();
                    continue;
                }
                producer.request(message, new RequestCallback() {
                    @Override
                    public void onSuccess(Message reply) {
                        if (reply != null) {
                            replied(order, index, reply);
                            open.countDown();
                        }
                    }

                    @Override
                    public void onException(Throwable error) {
                        unanswered(order, index, error);
                        open.countDown();
                    }
                }, timeout);
            }
            if (!open.await(order.deadlineMs(), TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException(open.getCount() + " requests without an end");
            }
            // The broker's push of the last reply is answered after the callback; without an answer the responder is told of a failure.
            order.pause(500);
        } finally {
            producer.shutdown();
        }
    }

    private static Message message(Order order, int i) {
        StringBuilder body = new StringBuilder(order.text("prefix", "ask") + "-" + i);
        while (body.length() < order.number("size", 0)) {
            body.append('.');
        }
        return new Message(order.text("topic"), "asked", body.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static void replied(Order order, int index, Message reply) {
        order.emit("reply", "index", index, "body", new String(reply.getBody(), StandardCharsets.UTF_8),
            "properties", reply.getProperties());
    }

    private static void unanswered(Order order, int index, Throwable error) {
        order.emit("unanswered", "index", index, "class", error.getClass().getSimpleName(), "text", String.valueOf(error.getMessage()));
    }

    /** respond: namesrv group topic [size]: replies "re:" and the body of each request, until stopped. A line "replied" per reply. */
    static void respond(Order order) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("driver-responders-" + order.id);
        order.configure(producer);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(order.text("group"));
        order.configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(order.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                StringBuilder body = new StringBuilder("re:" + new String(message.getBody(), StandardCharsets.UTF_8));
                while (body.length() < order.number("size", 0)) {
                    body.append('.');
                }
                try {
                    Message reply = MessageUtil.createReplyMessage(message, body.toString().getBytes(StandardCharsets.UTF_8));
                    SendResult sent = producer.send(reply, 5000);
                    order.emit("replied", "status", sent.getSendStatus().name(), "offsetMsgId", sent.getOffsetMsgId());
                } catch (Exception error) {
                    order.emit("failed", "class", error.getClass().getSimpleName(), "code", Order.codeOf(error),
                        "text", String.valueOf(error.getMessage()));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        order.emit("started");
        try {
            order.awaitStop();
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }
}
