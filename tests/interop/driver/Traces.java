import java.lang.reflect.Method;

import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.trace.AsyncTraceDispatcher;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceDispatcher;

/** Message traces: the client's own encoder, and consumers that make traces. */
final class Traces {
    private Traces() {
    }

    /** traces: text. A line "lines" with the text as this client reads and writes it again, and with how many records it read. */
    static void rewrite(Order order) {
        StringBuilder written = new StringBuilder();
        int count = 0;
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(order.text("text"))) {
            context.setAccessChannel(AccessChannel.LOCAL);
            written.append(TraceDataEncoder.encoderFromContextBean(context).getTransData());
            count++;
        }
        order.emit("lines", "text", written.toString(), "count", count);
    }

    /** A push consumer, with traces if the order asks for them: 5.x has a setter, 4.9 a constructor. */
    static DefaultMQPushConsumer consumer(Order order) throws Exception {
        String group = order.text("group");
        if (!order.flag("trace")) {
            return new DefaultMQPushConsumer(group, order.hook(), new AllocateMessageQueueAveragely());
        }
        try {
            Method enable = DefaultMQPushConsumer.class.getMethod("setEnableTrace", boolean.class);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            enable.invoke(consumer, true);
            return consumer;
        } catch (NoSuchMethodException old) {
            return DefaultMQPushConsumer.class.getConstructor(String.class, boolean.class).newInstance(group, true);
        }
    }

    /** Give a started client's traces, if it makes any, half a minute to be written instead of 5 s: a client does not repeat them. */
    static void giveTime(TraceDispatcher dispatcher) {
        if (dispatcher != null) {
            ((AsyncTraceDispatcher) dispatcher).getTraceProducer().setSendMsgTimeout(30_000);
        }
    }
}
