// Driver of RocketMQ's Node.js gRPC client, unmodified, for the interop tests. Orders and events are described in
// tests/interop/grpc_clients.py.

'use strict';

const crypto = require('node:crypto');
const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const { FilterType, TransactionResolution } = require(
  'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js',
);

const BODY_MAX = 2000;
const orders = new Map();
const clients = new Map();
const received = new Map();
const logger = Object.fromEntries(['debug', 'info', 'warn', 'error'].map((level) => [level, () => {}]));
logger.error = (...values) => console.error(...values);

class Order {
  constructor(line) {
    const [id, verb, ...words] = line.split(' ');
    this.id = id;
    this.verb = verb;
    this.values = new Map();
    for (const word of words) {
      const equals = word.indexOf('=');
      this.values.set(word.slice(0, equals), decodeURIComponent(word.slice(equals + 1)));
    }
    this.isStopped = false;
    this.stopped = new Promise((resolve) => {
      this.stop = () => {
        this.isStopped = true;
        resolve();
      };
    });
  }

  text(key) {
    return this.values.get(key) ?? '';
  }

  number(key, missing = 0) {
    return Number(this.values.get(key) ?? missing);
  }

  emit(event, values = {}) {
    const line = { id: this.id, event, at_ms: Date.now(), ...values };
    process.stdout.write(JSON.stringify(line) + '\n');
  }

  base() {
    const keys = { accessKey: this.text('access_key'), accessSecret: this.text('secret_key') };
    return {
      endpoints: this.text('endpoints'),
      namespace: '',
      sslEnabled: this.text('tls') === 'true',
      logger,
      ...(keys.accessKey ? { sessionCredentials: keys } : {}),
    };
  }

  subscriptions() {
    const type = this.text('sql') === 'true' ? FilterType.SQL : FilterType.TAG;
    return new Map([[this.text('topic'), new FilterExpression(this.text('expression') || '*', type)]]);
  }

  body() {
    const size = this.number('size');
    if (!size) {
      return Buffer.from(this.text('body'));
    }
    return Buffer.alloc(size, 'abcdefghijklmnopqrstuvwxyz');
  }

  message(body, group) {
    const properties = new Map();
    for (const [key, value] of this.values) {
      if (key.startsWith('property.')) {
        properties.set(key.slice('property.'.length), value);
      }
    }
    return {
      topic: this.text('topic'),
      body,
      tag: this.text('tag') || undefined,
      keys: this.text('keys') ? this.text('keys').split(',') : [],
      properties,
      messageGroup: group || undefined,
      deliveryTimestamp: this.number('deliver_ms') ? new Date(this.number('deliver_ms')) : undefined,
    };
  }
}

function described(message) {
  const body = Buffer.from(message.body);
  return {
    messageId: message.messageId,
    topic: message.topic,
    tag: message.tag ?? null,
    keys: [...message.keys].sort(),
    properties: Object.fromEntries(message.properties),
    messageGroup: message.messageGroup ?? null,
    deliveryMs: message.deliveryTimestamp?.getTime() ?? null,
    attempt: message.deliveryAttempt,
    bornHost: message.bornHost,
    size: body.length,
    digest: crypto.createHash('sha256').update(body).digest('hex'),
    body: body.length <= BODY_MAX ? body.toString() : null,
  };
}

function problem(error) {
  return {
    class: error?.constructor?.name ?? typeof error,
    code: typeof error?.code === 'number' ? error.code : null,
    text: String(error?.message ?? error),
  };
}

// Does what can be refused, and reports the result.
async function attempt(order, event, action, values = {}) {
  let found;
  try {
    found = await action();
  } catch (error) {
    order.emit('refused', { ...values, ...problem(error) });
    return;
  }
  order.emit(event, { ...values, ...found });
}

function receipt(found) {
  return { messageId: found.messageId, transactionId: found.transactionId, recallHandle: found.recallHandle };
}

async function stay(order, client) {
  await client.startup();
  clients.set(order.text('client'), client);
  order.emit('open', { clientId: client.clientId });
  await order.stopped;
  clients.delete(order.text('client'));
  await client.shutdown();
}

const verbs = {
  async producer(order) {
    const resolution = order.text('check');
    const checker = {
      async check(message) {
        order.emit('check', { resolution, ...described(message) });
        const known = { commit: TransactionResolution.COMMIT, rollback: TransactionResolution.ROLLBACK };
        return known[resolution] ?? TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
      },
    };
    const topic = order.text('topics') ? order.text('topics').split(',') : undefined;
    await stay(order, new Producer({ ...order.base(), topic, ...(resolution ? { checker } : {}) }));
  },

  async simple(order) {
    await stay(
      order,
      new SimpleConsumer({
        ...order.base(),
        consumerGroup: order.text('group'),
        subscriptions: order.subscriptions(),
        awaitDuration: order.number('await_ms', 10_000),
      }),
    );
  },

  async push(order) {
    const attempts = new Map();
    const messageListener = {
      consume(message) {
        const number = (attempts.get(message.messageId) ?? 0) + 1;
        attempts.set(message.messageId, number);
        const failed = number <= order.number('fail_first');
        order.emit('message', { failed, ...described(message) });
        return failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    await stay(
      order,
      new PushConsumer({
        ...order.base(),
        consumerGroup: order.text('group'),
        subscriptions: order.subscriptions(),
        messageListener,
      }),
    );
  },

  async send(order) {
    const message = order.message(order.body(), order.text('message_group'));
    await attempt(order, 'sent', async () => receipt(await clients.get(order.text('client')).send(message)));
  },

  async burst(order) {
    const count = order.number('count', Number.MAX_SAFE_INTEGER);
    const groups = order.number('groups');
    for (let number = 0; number < count && !order.isStopped; number++) {
      const body = `${order.text('prefix')}-${number}`;
      const message = order.message(Buffer.from(body), groups ? `g${number % groups}` : '');
      const send = async () => receipt(await clients.get(order.text('client')).send(message));
      await attempt(order, 'sent', send, { body });
      const pause = new Promise((resolve) => setTimeout(resolve, order.number('every_ms')));
      await Promise.race([pause, order.stopped]);
    }
  },

  async transact(order) {
    const producer = clients.get(order.text('client'));
    const transaction = producer.beginTransaction();
    const message = order.message(order.body(), '');
    await attempt(order, 'sent', async () => receipt(await producer.send(message, transaction)));
    if (order.text('end')) {
      const end = () => (order.text('end') === 'commit' ? transaction.commit() : transaction.rollback());
      await attempt(order, 'ended', async () => {
        await end();
        return {};
      });
    }
  },

  async recall(order) {
    await attempt(order, 'recalled', async () => {
      const producer = clients.get(order.text('client'));
      const found = await producer.recallMessage(order.text('topic'), order.text('handle'));
      return { messageId: found.messageId };
    });
  },

  async receive(order) {
    await attempt(order, 'received', async () => {
      const consumer = clients.get(order.text('client'));
      for (const message of await consumer.receive(order.number('max', 16), order.number('invisible_ms', 15_000))) {
        const key = `m${received.size}`;
        received.set(key, message);
        order.emit('message', { key, ...described(message) });
      }
      return {};
    });
  },

  async ack(order) {
    await attempt(order, 'acked', async () => {
      await clients.get(order.text('client')).ack(received.get(order.text('message')));
      return {};
    });
  },

  async change(order) {
    await attempt(order, 'changed', async () => {
      const consumer = clients.get(order.text('client'));
      await consumer.changeInvisibleDuration(received.get(order.text('message')), order.number('invisible_ms'));
      return {};
    });
  },
};

async function run(order) {
  try {
    await verbs[order.verb](order);
    order.emit('done');
  } catch (error) {
    order.emit('error', { ...problem(error), text: error?.stack ?? String(error) });
  }
  orders.delete(order.id);
}

process.on('unhandledRejection', (error) => console.error('unhandled', error));
process.on('uncaughtException', (error) => console.error('uncaught', error));

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', (line) => {
  const order = new Order(line);
  if (order.verb === 'stop') {
    orders.get(order.id)?.stop();
    return;
  }
  orders.set(order.id, order);
  run(order);
});
lines.on('close', () => process.exit(0));
process.stdout.write(JSON.stringify({ event: 'ready' }) + '\n');
