import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions whose outcome stands in the body. */
final class Transact {
    private Transact() {
    }

    /**
     * transact: namesrv topic group [count] [name] [late] [trace] [timeout_ms]. Sends count messages of each kind, with the
     * bodies kind-0, kind-1, … (kind-name0, … with a name): commit, rollback; late (unknown first, committed by the second
     * check, or by check number late; never with late=0), never (unknown always). A line "sent" per message, "checked" per
     * check; it ends when stopped.
     *
     * With interval_ms it sends name-0, name-1, … until it is to rest: of ten messages five are committed, two rolled back, three left
     * open until a check, which commits them. Then a line "decided" per decision and "failed" per exception; all have the body.
     */
    static void run(Order order) throws Exception {
        if (order.number("interval_ms", 0) > 0) {
            goOn(order);
            return;
        }
        String name = order.text("name", "");
        int late = order.number("late", 2);
        Map<String, Integer> checks = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer(null, order.text("group"), null, order.flag("trace"), null);
        order.configure(producer);
        producer.setSendMsgTimeout(order.number("timeout_ms", 15_000));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                String body = text(message);
                return body.startsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : body.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = text(message);
                int count = checks.merge(body, 1, Integer::sum);
                order.emit("checked", "body", body, "topic", message.getTopic(), "count", count,
                    "transactionId", message.getTransactionId(), "properties", message.getProperties());
                return body.startsWith("commit") || body.startsWith("late") && count == late ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        Traces.giveTime(producer.getTraceDispatcher());
        try {
            for (String kind : new String[] {"commit", "rollback", "late", "never"}) {
                for (int i = 0; i < order.number("count", 1); i++) {
                    byte[] body = (kind + "-" + name + i).getBytes(StandardCharsets.UTF_8);
                    TransactionSendResult sent = producer.sendMessageInTransaction(new Message(order.text("topic"), "tag", "key", body), null);
                    order.emit("sent", "status", sent.getSendStatus().name(), "transactionId", sent.getTransactionId());
                }
            }
            order.awaitStop();
        } finally {
            producer.shutdown();
        }
    }

    private static void goOn(Order order) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(null, order.text("group"), null, false, null);
        order.configure(producer);
        producer.setSendMsgTimeout(order.number("timeout_ms", 15_000));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return turn(message) > 6 ? LocalTransactionState.UNKNOW : decided(order, message, false);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return decided(order, message, true);
            }
        });
        producer.start();
        try {
            for (int i = 0; !order.isResting() && !order.isStopped(); i++) {
                String body = order.text("name") + "-" + i;
                try {
                    TransactionSendResult sent = producer.sendMessageInTransaction(
                        new Message(order.text("topic"), "tag", "key", body.getBytes(StandardCharsets.UTF_8)), null);
                    order.emit("sent", "body", body, "status", sent.getSendStatus().name());
                } catch (Exception error) {
                    order.emit("failed", "body", body, "class", error.getClass().getSimpleName(), "text",
                        String.valueOf(error.getMessage()));
                }
                order.pause(order.number("interval_ms", 0));
            }
            order.awaitStop();
        } finally {
            producer.shutdown();
        }
    }

    private static int turn(Message message) {
        String body = text(message);
        return Integer.parseInt(body.substring(body.lastIndexOf('-') + 1)) % 10;
    }

    private static LocalTransactionState decided(Order order, Message message, boolean isCheck) {
        boolean isRollback = turn(message) == 5 || turn(message) == 6;
        order.emit("decided", "body", text(message), "outcome", isRollback ? "rollback" : "commit", "check", isCheck);
        return isRollback ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
