//! Driver of RocketMQ's Rust gRPC client, unmodified, for the interop tests. Orders and events are described in
//! tests/interop/grpc_clients.py. The client has producers and simple consumers; it cannot recall messages or change
//! their invisible duration.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType, SendReceipt};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Map, Value};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Notify;

const BODY_MAX: usize = 2_000;

struct Order {
    id: String,
    verb: String,
    values: HashMap<String, String>,
    stopped: Notify,
}

struct Consumer {
    client: SimpleConsumer,
    topic: String,
    expression: String,
    is_sql: bool,
}

#[derive(Default)]
struct State {
    orders: Mutex<HashMap<String, Arc<Order>>>,
    producers: Mutex<HashMap<String, Arc<Producer>>>,
    consumers: Mutex<HashMap<String, Arc<Consumer>>>,
    received: Mutex<Vec<Arc<MessageView>>>,
}

fn state() -> &'static State {
    static STATE: OnceLock<State> = OnceLock::new();
    STATE.get_or_init(State::default)
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).unwrap()
}

impl Order {
    fn parse(line: &str) -> Order {
        let mut words = line.split(' ');
        let id = words.next().unwrap().to_string();
        let verb = words.next().unwrap().to_string();
        let values = words
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_string(), decoded(value)))
            .collect();
        Order { id, verb, values, stopped: Notify::new() }
    }

    fn text(&self, key: &str) -> &str {
        self.values.get(key).map_or("", String::as_str)
    }

    fn number(&self, key: &str, missing: u64) -> u64 {
        self.values.get(key).map_or(missing, |text| text.parse().unwrap())
    }

    fn emit(&self, event: &str, values: Value) {
        let mut line = Map::new();
        line.insert("id".into(), json!(self.id));
        line.insert("event".into(), json!(event));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        line.insert("at_ms".into(), json!(now.as_millis() as u64));
        if let Value::Object(more) = values {
            line.extend(more);
        }
        println!("{}", Value::Object(line));
    }

    fn options(&self) -> ClientOption {
        let mut options = ClientOption::default();
        options.set_access_url(self.text("endpoints"));
        options.set_enable_tls(self.text("tls") == "true");
        options.set_long_polling_timeout(Duration::from_millis(self.number("await_ms", 10_000)));
        if !self.text("access_key").is_empty() {
            options.set_access_key(self.text("access_key"));
            options.set_secret_key(self.text("secret_key"));
        }
        options
    }

    fn body(&self) -> Vec<u8> {
        match self.number("size", 0) {
            0 => self.text("body").as_bytes().to_vec(),
            size => (0..size).map(|at| b'a' + (at % 26) as u8).collect(),
        }
    }

    fn message(&self, body: Vec<u8>, group: &str) -> Result<impl Message, ClientError> {
        let mut builder = if self.verb == "transact" {
            MessageBuilder::transaction_message_builder(self.text("topic"), body)
        } else {
            MessageBuilder::builder().set_topic(self.text("topic")).set_body(body)
        };
        if !self.text("tag").is_empty() {
            builder = builder.set_tag(self.text("tag"));
        }
        if !self.text("keys").is_empty() {
            builder = builder.set_keys(self.text("keys").split(',').map(str::to_string).collect());
        }
        if !group.is_empty() {
            builder = builder.set_message_group(group);
        }
        if self.number("deliver_ms", 0) > 0 {
            builder = builder.set_delivery_timestamp((self.number("deliver_ms", 0) / 1000) as i64);
        }
        let properties: HashMap<String, String> = self
            .values
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix("property.")?.to_string(), value.clone())))
            .collect();
        builder.set_properties(properties).build()
    }

    fn producer(&self) -> Arc<Producer> {
        state().producers.lock().unwrap()[self.text("client")].clone()
    }

    fn consumer(&self) -> Arc<Consumer> {
        state().consumers.lock().unwrap()[self.text("client")].clone()
    }

    /// Report the result of what can be refused.
    fn report(&self, event: &str, result: Result<Value, ClientError>, body: Option<&str>) {
        let (name, mut values) = match result {
            Ok(values) => (event, values),
            Err(error) => ("refused", problem(&error)),
        };
        if let Some(text) = body {
            values["body"] = json!(text);
        }
        self.emit(name, values);
    }
}

fn problem(error: &ClientError) -> Value {
    json!({"class": format!("{:?}", error.kind()), "code": null, "text": format!("{error}")})
}

fn described(message: &MessageView) -> Value {
    let body = message.body();
    let mut keys = message.keys().to_vec();
    keys.sort();
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "messageId": message.message_id(),
        "topic": message.topic(),
        "tag": message.tag(),
        "keys": keys,
        "properties": message.properties(),
        "messageGroup": message.message_group(),
        "attempt": message.delivery_attempt(),
        "bornHost": message.born_host(),
        "size": body.len(),
        "digest": digest,
        "body": (body.len() <= BODY_MAX).then(|| String::from_utf8_lossy(body)),
    })
}

fn receipt(found: &SendReceipt) -> Value {
    json!({"messageId": found.message_id(), "transactionId": found.transaction_id(), "recallHandle": null})
}

async fn producer(order: &Arc<Order>) -> Result<(), ClientError> {
    let mut options = ProducerOption::default();
    let topics: Vec<&str> = order.text("topics").split(',').filter(|topic| !topic.is_empty()).collect();
    options.set_topics(topics);
    let mut client = if order.text("check").is_empty() {
        Producer::new(options, order.options())?
    } else {
        let checked = order.clone();
        let checker = move |_: String, message: MessageView| {
            let mut values = described(&message);
            values["resolution"] = json!(checked.text("check"));
            checked.emit("check", values);
            match checked.text("check") {
                "commit" => TransactionResolution::COMMIT,
                "rollback" => TransactionResolution::ROLLBACK,
                _ => TransactionResolution::UNKNOWN,
            }
        };
        Producer::new_transaction_producer(options, order.options(), Box::new(checker))?
    };
    client.start().await?;
    let name = order.text("client").to_string();
    state().producers.lock().unwrap().insert(name.clone(), Arc::new(client));
    order.emit("open", json!({}));
    order.stopped.notified().await;
    let last = state().producers.lock().unwrap().remove(&name);
    match last.and_then(Arc::into_inner) {
        Some(client) => client.shutdown().await,
        None => Ok(()),
    }
}

async fn simple(order: &Arc<Order>) -> Result<(), ClientError> {
    let mut options = SimpleConsumerOption::default();
    options.set_consumer_group(order.text("group"));
    options.set_topics(vec![order.text("topic")]);
    let mut client = SimpleConsumer::new(options, order.options())?;
    client.start().await?;
    let name = order.text("client").to_string();
    let expression = if order.text("expression").is_empty() { "*" } else { order.text("expression") };
    let consumer = Consumer {
        client,
        topic: order.text("topic").to_string(),
        expression: expression.to_string(),
        is_sql: order.text("sql") == "true",
    };
    state().consumers.lock().unwrap().insert(name.clone(), Arc::new(consumer));
    order.emit("open", json!({}));
    order.stopped.notified().await;
    let last = state().consumers.lock().unwrap().remove(&name);
    match last.and_then(Arc::into_inner) {
        Some(consumer) => consumer.client.shutdown().await,
        None => Ok(()),
    }
}

async fn sent(order: &Order, body: Vec<u8>, group: &str) -> Result<Value, ClientError> {
    let message = order.message(body, group)?;
    let found = order.producer().send(message).await?;
    Ok(receipt(&found))
}

async fn burst(order: &Order) {
    let groups = order.number("groups", 0);
    for number in 0..order.number("count", u64::MAX) {
        let body = format!("{}-{number}", order.text("prefix"));
        let group = if groups > 0 { format!("g{}", number % groups) } else { String::new() };
        let result = sent(order, body.clone().into_bytes(), &group).await;
        order.report("sent", result, Some(&body));
        let pause = Duration::from_millis(order.number("every_ms", 0));
        if tokio::time::timeout(pause, order.stopped.notified()).await.is_ok() {
            break;
        }
    }
}

async fn transact(order: &Order) -> Result<(), ClientError> {
    let message = order.message(order.body(), "")?;
    let producer = order.producer();
    let transaction = match producer.send_transaction_message(message).await {
        Ok(transaction) => transaction,
        Err(error) => {
            order.emit("refused", problem(&error));
            return Ok(());
        }
    };
    order.emit(
        "sent",
        json!({"messageId": transaction.message_id(), "transactionId": transaction.transaction_id()}),
    );
    let result = match order.text("end") {
        "commit" => transaction.commit().await,
        "rollback" => transaction.rollback().await,
        _ => return Ok(()),
    };
    order.report("ended", result.map(|()| json!({})), None);
    Ok(())
}

async fn received(order: &Order) -> Result<Value, ClientError> {
    let consumer = order.consumer();
    let kind = if consumer.is_sql { FilterType::Sql } else { FilterType::Tag };
    let expression = FilterExpression::new(kind, consumer.expression.clone());
    let count = order.number("max", 16) as i32;
    let invisible = Duration::from_millis(order.number("invisible_ms", 15_000));
    for message in consumer.client.receive_with(&consumer.topic, &expression, count, invisible).await? {
        let mut values = described(&message);
        let key = {
            let mut kept = state().received.lock().unwrap();
            kept.push(Arc::new(message));
            kept.len() - 1
        };
        values["key"] = json!(format!("m{key}"));
        order.emit("message", values);
    }
    Ok(json!({}))
}

async fn acked(order: &Order) -> Result<Value, ClientError> {
    let at: usize = order.text("message")[1..].parse().unwrap();
    let message = state().received.lock().unwrap()[at].clone();
    order.consumer().client.ack(&*message).await?;
    Ok(json!({}))
}

async fn run(order: Arc<Order>) {
    let result = match order.verb.as_str() {
        "producer" => producer(&order).await,
        "simple" => simple(&order).await,
        "transact" => transact(&order).await,
        "burst" => {
            burst(&order).await;
            Ok(())
        }
        "send" => {
            let result = sent(&order, order.body(), order.text("message_group")).await;
            order.report("sent", result, None);
            Ok(())
        }
        "receive" => {
            order.report("received", received(&order).await, None);
            Ok(())
        }
        "ack" => {
            order.report("acked", acked(&order).await, None);
            Ok(())
        }
        other => {
            order.emit("error", json!({"class": "Driver", "code": null, "text": format!("no verb {other}")}));
            return;
        }
    };
    match result {
        Ok(()) => order.emit("done", json!({})),
        Err(error) => order.emit("error", problem(&error)),
    }
}

#[tokio::main]
async fn main() {
    println!("{}", json!({"event": "ready"}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let order = Arc::new(Order::parse(&line));
        if order.verb == "stop" {
            if let Some(running) = state().orders.lock().unwrap().get(&order.id) {
                running.stopped.notify_one();
            }
            continue;
        }
        state().orders.lock().unwrap().insert(order.id.clone(), order.clone());
        tokio::spawn(async move {
            // A panic of the client is a result too.
            let (id, task) = (order.id.clone(), tokio::spawn(run(order.clone())));
            if let Err(error) = task.await {
                order.emit("error", json!({"class": "panic", "code": null, "text": format!("{id}: {error}")}));
            }
        });
    }
    std::process::exit(0);
}
