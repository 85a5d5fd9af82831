// Program gopeer runs one task of RocketMQ's Go client for tests/interop/test_go_client.py and chaos/other_clients.py, and
// prints its events as JSON, one a line. Usage: gopeer VERB key=value …
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type order map[string]string

func (o order) number(key string, otherwise int) int {
	if text, ok := o[key]; ok {
		number, err := strconv.Atoi(text)
		fail(err)
		return number
	}
	return otherwise
}

func (o order) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{o["namesrv"]})
}

var output sync.Mutex

func emit(event map[string]any) {
	output.Lock()
	defer output.Unlock()
	text, err := json.Marshal(event)
	fail(err)
	fmt.Println(string(text))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	rlog.SetLogLevel("error")
	given := order{}
	for _, word := range os.Args[2:] {
		key, value, _ := strings.Cut(word, "=")
		given[key] = value
	}
	verbs := map[string]func(order){
		"send": send, "produce": produce, "consume": consume, "transact": transact, "request": request, "pull": pull,
	}
	verb, ok := verbs[os.Args[1]]
	if !ok {
		fail(fmt.Errorf("unknown verb %s", os.Args[1]))
	}
	verb(given)
	emit(map[string]any{"event": "done"})
}

func newProducer(o order) rocketmq.Producer {
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(o.resolver()),
		producer.WithGroupName("go-producer"),
		producer.WithInstanceName(o["instance"]),
		producer.WithRetry(2),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	fail(err)
	fail(made.Start())
	return made
}

func made(o order, number int) *primitive.Message {
	body := fmt.Sprintf("go-%d", number) + strings.Repeat(".", o.number("size", 0))
	message := primitive.NewMessage(o["topic"], []byte(body))
	message.WithTag("Tag" + strconv.Itoa(number%2)).WithKeys([]string{"key" + strconv.Itoa(number)})
	message.WithProperty("number", strconv.Itoa(number))
	message.WithShardingKey(strconv.Itoa(number % 2))
	if level := o.number("delay", 0); level > 0 {
		message.WithDelayTimeLevel(level)
	}
	return message
}

func emitResult(result *primitive.SendResult) {
	emit(map[string]any{
		"event": "sent", "status": int(result.Status), "id": result.MsgID, "offset_id": result.OffsetMsgID,
		"queue": result.MessageQueue.QueueId, "offset": result.QueueOffset,
	})
}

// send: count messages, way=sync|async|oneway|batch.
func send(o order) {
	sender := newProducer(o)
	defer sender.Shutdown()
	ctx, count := context.Background(), o.number("count", 1)
	var waiting sync.WaitGroup
	batch := []*primitive.Message{}
	for number := 0; number < count; number++ {
		switch message := made(o, number); o["way"] {
		case "async":
			waiting.Add(1)
			fail(sender.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				fail(err)
				emitResult(result)
				waiting.Done()
			}, message))
		case "oneway":
			if number < count-1 {
				fail(sender.SendOneWay(ctx, message))
				break
			}
			// Its answer shows that the others have arrived: a connection that is closed at once may lose them.
			result, err := sender.SendSync(ctx, message)
			fail(err)
			emitResult(result)
		case "batch":
			batch = append(batch, message)
		default:
			result, err := sender.SendSync(ctx, message)
			fail(err)
			emitResult(result)
		}
	}
	if len(batch) > 0 {
		result, err := sender.SendSync(ctx, batch...)
		fail(err)
		emitResult(result)
	}
	waiting.Wait()
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK: "SEND_OK", primitive.SendFlushDiskTimeout: "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT", primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

// orders tells what comes on standard input: a byte says that nothing more is to be sent, its end that all is over.
func orders() (rest <-chan bool, end <-chan bool) {
	resting, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		one := make([]byte, 1)
		if count, err := os.Stdin.Read(one); count == 0 || err != nil {
			close(resting)
			return
		}
		close(resting)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return resting, ended
}

// goOn calls one for each number until the first order, with a pause between.
func (o order) goOn(rest <-chan bool, one func(number int)) {
	pause := time.Duration(o.number("interval_ms", 1)) * time.Millisecond
	for number := 0; ; number++ {
		one(number)
		select {
		case <-rest:
			return
		case <-time.After(pause):
		}
	}
}

func emitAttempt(body string, result *primitive.SendResult, err error) {
	event := map[string]any{"event": "sent", "body": body, "at_ms": time.Now().UnixMilli()}
	if err != nil {
		event["event"], event["text"] = "failed", err.Error()
	} else {
		event["status"] = statuses[result.Status]
		event["queueId"], event["queueOffset"] = result.MessageQueue.QueueId, result.QueueOffset
	}
	emit(event)
}

// produce: PREFIX-0, PREFIX-1, … until standard input ends; with queues=N message i goes to the queue of its sharding key i
// modulo N.
func produce(o order) {
	sender := newProducer(o)
	rest, end := orders()
	o.goOn(rest, func(number int) {
		body := fmt.Sprintf("%s-%d", o["prefix"], number)
		message := primitive.NewMessage(o["topic"], []byte(body))
		if queues := o.number("queues", 0); queues > 0 {
			message.WithShardingKey(strconv.Itoa(number % queues))
		}
		result, err := sender.SendSync(context.Background(), message)
		emitAttempt(body, result, err)
	})
	<-end
	_ = sender.Shutdown()
}

func emitMessage(message *primitive.MessageExt) {
	emit(map[string]any{
		"event": "message", "topic": message.Topic, "at_ms": time.Now().UnixMilli(), "body": strings.TrimRight(string(message.Body), "."), "size": len(message.Body),
		"queue": message.Queue.QueueId, "offset": message.QueueOffset, "times": message.ReconsumeTimes,
		"tags": message.GetTags(), "keys": message.GetKeys(), "born_ms": message.BornTimestamp, "got_ms": time.Now().UnixMilli(),
	})
}

// consume: until count messages were delivered, model=cluster|broadcast|orderly, sql or tags; the first fail deliveries are
// answered with "later". count=0: until standard input ends.
func consume(o order) {
	options := []consumer.Option{
		consumer.WithNsResolver(o.resolver()),
		consumer.WithGroupName(o["group"]),
		consumer.WithInstance(o["instance"]),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	switch o["model"] {
	case "broadcast":
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	case "orderly":
		options = append(options, consumer.WithConsumerOrder(true))
	}
	reader, err := rocketmq.NewPushConsumer(options...)
	fail(err)
	selector := consumer.MessageSelector{}
	if expression, ok := o["sql"]; ok {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
	} else if expression, ok := o["tags"]; ok {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	}
	var seen, failed atomic.Int64
	count, fails := int64(o.number("count", 1)), int64(o.number("fail", 0))
	done := make(chan bool)
	fail(reader.Subscribe(o["topic"], selector, func(
		_ context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			emitMessage(message)
		}
		if failed.Add(1) <= fails {
			if o["model"] == "orderly" {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			return consumer.ConsumeRetryLater, nil
		}
		if seen.Add(int64(len(messages))) == count {
			close(done)
		}
		return consumer.ConsumeSuccess, nil
	}))
	fail(reader.Start())
	emit(map[string]any{"event": "started"})
	over := (<-chan bool)(done)
	if count == 0 {
		_, over = orders()
	}
	<-over
	fail(reader.Shutdown())
}

type listener struct{}

// ExecuteLocalTransaction commits, rolls back or leaves open in turn.
func (listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch number, _ := strconv.Atoi(message.GetProperty("number")); number % 3 {
	case 0:
		return primitive.CommitMessageState
	case 1:
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

// CheckLocalTransaction commits.
func (listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	emit(map[string]any{"event": "checked", "body": string(message.Body), "id": message.TransactionId})
	return primitive.CommitMessageState
}

// deciding decides by the number in the body: of ten five are committed, two rolled back, three left open until a check.
type deciding struct{}

func turn(body []byte) int {
	number, _ := strconv.Atoi(string(body[strings.LastIndexByte(string(body), '-')+1:]))
	return number % 10
}

func decided(body []byte, isCheck bool) primitive.LocalTransactionState {
	state, outcome := primitive.CommitMessageState, "commit"
	if at := turn(body); at == 5 || at == 6 {
		state, outcome = primitive.RollbackMessageState, "rollback"
	}
	emit(map[string]any{
		"event": "decided", "body": string(body), "outcome": outcome, "check": isCheck, "at_ms": time.Now().UnixMilli(),
	})
	return state
}

func (deciding) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	if turn(message.Body) > 6 {
		return primitive.UnknowState
	}
	return decided(message.Body, false)
}

func (deciding) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	return decided(message.Body, true)
}

// goOnTransacting sends NAME-0, NAME-1, … until a byte comes on standard input, and answers checks until its end.
func goOnTransacting(o order) {
	sender, err := rocketmq.NewTransactionProducer(
		deciding{},
		producer.WithNsResolver(o.resolver()),
		producer.WithGroupName(o["group"]),
		producer.WithInstanceName(o["instance"]),
		producer.WithRetry(1),
	)
	fail(err)
	fail(sender.Start())
	rest, end := orders()
	o.goOn(rest, func(number int) {
		body := fmt.Sprintf("%s-%d", o["name"], number)
		message := primitive.NewMessage(o["topic"], []byte(body))
		result, err := sender.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			emitAttempt(body, nil, err)
			return
		}
		emitAttempt(body, result.SendResult, nil)
	})
	<-end
	_ = sender.Shutdown()
}

// transact: count messages; ends when standard input ends. With interval_ms as goOnTransacting does.
func transact(o order) {
	if o.number("interval_ms", 0) > 0 {
		goOnTransacting(o)
		return
	}
	sender, err := rocketmq.NewTransactionProducer(
		listener{},
		producer.WithNsResolver(o.resolver()),
		producer.WithGroupName("go-transactions"),
		producer.WithInstanceName(o["instance"]),
		producer.WithRetry(1),
	)
	fail(err)
	fail(sender.Start())
	for number := 0; number < o.number("count", 3); number++ {
		result, err := sender.SendMessageInTransaction(context.Background(), made(o, number))
		fail(err)
		emitResult(result.SendResult)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	fail(sender.Shutdown())
}

// request: count requests, one after the other.
func request(o order) {
	sender := newProducer(o)
	defer sender.Shutdown()
	for number := 0; number < o.number("count", 1); number++ {
		reply, err := sender.Request(context.Background(), 20*time.Second, made(o, number))
		fail(err)
		emit(map[string]any{"event": "reply", "body": string(reply.Body)})
	}
}

// pull: by polling, until count messages came.
func pull(o order) {
	reader, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(o.resolver()),
		consumer.WithGroupName(o["group"]),
		consumer.WithInstance(o["instance"]),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	fail(err)
	fail(reader.Subscribe(o["topic"], consumer.MessageSelector{}))
	fail(reader.Start())
	for seen := 0; seen < o.number("count", 1); {
		found, err := reader.Poll(context.Background(), 5*time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		fail(err)
		for _, message := range found.GetMsgList() {
			emitMessage(message)
			seen++
		}
		reader.ACK(context.Background(), found, consumer.ConsumeSuccess)
	}
	fail(reader.Shutdown())
}
