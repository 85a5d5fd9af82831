"""Request and response codes of the remoting protocol, as used by RocketMQ 4.9 and 5.3, and TandemQ's own.

Source: docs/reference/requests.md; RocketMQ RequestCode, ResponseCode.
"""

from enum import IntEnum


class RequestCode(IntEnum):
    """Codes of requests; below each who answers it, and its purpose, for the page docs/reference/codes.md."""

    SEND_MESSAGE = 10
    """broker: stores a message."""
    PULL_MESSAGE = 11
    """broker: reads from a queue (docs/reference/requests.md, "PULL_MESSAGE")."""
    QUERY_MESSAGE = 12
    """broker: messages by key or unique key, and time."""
    QUERY_CONSUMER_OFFSET = 14
    """broker: a group's offset in a queue; without one 0 while the queue is young (nothing of it was deleted, and
    at most `accessMessageInMemoryMaxRatio` percent of the memory were written since its first message), unless
    `setZeroIfNotFound` is false; else 22."""
    UPDATE_CONSUMER_OFFSET = 15
    """broker: sets a group's offset in a queue."""
    UPDATE_AND_CREATE_TOPIC = 17
    """broker: creates or changes a topic."""
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    """broker: creates or changes several topics, all or none."""
    GET_ALL_TOPIC_CONFIG = 21
    """broker: all topics, for slaves and tools."""
    UPDATE_BROKER_CONFIG = 25
    """broker: changes settings while running."""
    GET_BROKER_CONFIG = 26
    """broker: the settings of the broker."""
    GET_BROKER_RUNTIME_INFO = 28
    """broker: figures of the running broker (docs/reference/requests.md, "Runtime figures")."""
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    """broker: the offset for a time."""
    GET_MAX_OFFSET = 30
    """broker: the offset after the last message."""
    GET_MIN_OFFSET = 31
    """broker: the offset of the first message."""
    GET_EARLIEST_MSG_STORETIME = 32
    """broker: when the first message of a queue was stored."""
    VIEW_MESSAGE_BY_ID = 33
    """broker: the message at a log offset."""
    HEART_BEAT = 34
    """broker: heartbeat of a client (docs/reference/requests.md, "Heartbeat")."""
    UNREGISTER_CLIENT = 35
    """broker: a client leaves."""
    CONSUMER_SEND_MSG_BACK = 36
    """broker: sends a message back for a later delivery (docs/reference/requests.md, "Retry")."""
    END_TRANSACTION = 37
    """broker: ends a transaction (docs/reference/transactions.md, "Ends")."""
    GET_CONSUMER_LIST_BY_GROUP = 38
    """broker: the members of a group."""
    CHECK_TRANSACTION_STATE = 39
    """client: asked by a broker for the outcome of a transaction (docs/reference/transactions.md, "Checks")."""
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    """client: the members of its group have changed."""
    LOCK_BATCH_MQ = 41
    """broker: locks queues for orderly consumption."""
    UNLOCK_BATCH_MQ = 42
    """broker: unlocks queues."""
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    """broker: creates or changes an account of RocketMQ 4.9 (docs/reference/access.md)."""
    DELETE_ACL_CONFIG = 51
    """broker: deletes an account."""
    GET_BROKER_CLUSTER_ACL_INFO = 52
    """broker: versions of the accounts made by requests, and of those in files."""
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    """broker: replaces the addresses from which requests need no signature."""
    GET_ALL_CONSUMER_OFFSET = 43
    """broker: all consumer offsets, for slaves."""
    GET_ALL_DELAY_OFFSET = 45
    """broker: delay progress, for slaves."""
    CHECK_CLIENT_CONFIG = 46
    """broker: whether a subscription is valid."""
    GET_TIMER_CHECK_POINT = 60
    """broker: progress of timed messages (docs/reference/timers.md, "Files for Java brokers"), for Java slaves."""
    GET_TIMER_METRICS = 61
    """broker: numbers of waiting timed messages by topic."""
    PUT_KV_CONFIG = 100
    """name server: sets a key-value pair."""
    GET_KV_CONFIG = 101
    """name server: reads a key-value pair."""
    DELETE_KV_CONFIG = 102
    """name server: deletes a key-value pair."""
    REGISTER_BROKER = 103
    """name server: registers a broker (docs/reference/requests.md, "REGISTER_BROKER")."""
    UNREGISTER_BROKER = 104
    """name server: unregisters a broker."""
    GET_ROUTEINFO_BY_TOPIC = 105
    """name server: the route of a topic."""
    GET_BROKER_CLUSTER_INFO = 106
    """name server: all brokers of all clusters."""
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    """broker: creates or changes a group."""
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    """broker: all groups, for slaves and tools."""
    GET_TOPIC_STATS_INFO = 202
    """broker: bounds and last change of a topic's queues."""
    GET_CONSUMER_CONNECTION_LIST = 203
    """broker: a group's consumers and subscriptions."""
    GET_PRODUCER_CONNECTION_LIST = 204
    """broker: a group's producers."""
    WIPE_WRITE_PERM_OF_BROKER = 205
    """name server: removes write permission from a broker's topics."""
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    """name server: all topics."""
    DELETE_SUBSCRIPTIONGROUP = 207
    """broker: deletes a group."""
    GET_CONSUME_STATS = 208
    """broker: a group's progress in each queue."""
    DELETE_TOPIC_IN_BROKER = 215
    """broker: deletes a topic."""
    DELETE_TOPIC_IN_NAMESRV = 216
    """name server: deletes a topic from the routes."""
    REGISTER_TOPIC_IN_NAMESRV = 217
    """name server: adds one topic."""
    GET_KVLIST_BY_NAMESPACE = 219
    """name server: all key-value pairs of a namespace."""
    RESET_CONSUMER_CLIENT_OFFSET = 220
    """client: new offsets, by a broker."""
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    """client: report your offsets, to a broker."""
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    """broker: sets a group's offsets by time or to an offset (docs/reference/requests.md, "Resetting offsets")."""
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    """broker: the offsets that a group's clients report."""
    GET_TOPICS_BY_CLUSTER = 224
    """name server: a cluster's topics."""
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    """broker: creates or changes several groups, all or none."""
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    """broker: the groups that consume a topic."""
    QUERY_CONSUME_TIME_SPAN = 303
    """broker: the time span of the messages that a group has not consumed."""
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    """name server: system topics: clusters and brokers."""
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    """broker: system topics of a broker."""
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    """broker: deletes queues whose messages are gone."""
    GET_CONSUMER_RUNNING_INFO = 307
    """broker, client: relayed to a client: its internal state."""
    QUERY_CORRECTION_OFFSET = 308
    """broker: offsets corrected among groups."""
    CONSUME_MESSAGE_DIRECTLY = 309
    """broker, client: relayed to a client: consume this."""
    SEND_MESSAGE_V2 = 310
    """broker: stores a message, with one-letter field names."""
    GET_UNIT_TOPIC_LIST = 311
    """name server: unit topics."""
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    """name server: topics with unit subscriptions."""
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    """name server: other topics with unit subscriptions."""
    CLONE_GROUP_OFFSET = 314
    """broker: copies a group's offsets."""
    VIEW_BROKER_STATS_DATA = 315
    """broker: a figure by name and key."""
    CLEAN_UNUSED_TOPIC = 316
    """broker: deletes queues of deleted topics."""
    GET_BROKER_CONSUME_STATS = 317
    """broker: the progress of all groups; a large response is built between other requests, at most 8 at once,
    above that SYSTEM_BUSY."""
    UPDATE_NAMESRV_CONFIG = 318
    """name server: changes a name server's settings."""
    GET_NAMESRV_CONFIG = 319
    """name server: reads a name server's settings."""
    SEND_BATCH_MESSAGE = 320
    """broker: stores a batch."""
    QUERY_CONSUME_QUEUE = 321
    """broker: entries of a queue."""
    QUERY_DATA_VERSION = 322
    """name server: whether a broker's topics changed since its registration."""
    RESUME_CHECK_HALF_MESSAGE = 323
    """broker: checks a transaction again that was given up (docs/reference/transactions.md, "Checks")."""
    SEND_REPLY_MESSAGE = 324
    """broker: reply to a request (docs/reference/requests.md, "Request-reply")."""
    SEND_REPLY_MESSAGE_V2 = 325
    """broker: reply to a request, with one-letter field names."""
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    """client: a reply for it."""
    ADD_WRITE_PERM_OF_BROKER = 327
    """name server: restores write permission."""
    GET_ALL_PRODUCER_INFO = 328
    """broker: all producers."""
    DELETE_EXPIRED_COMMITLOG = 329
    """broker: deletes expired log files now."""
    QUERY_TOPICS_BY_CONSUMER = 343
    """broker: topics a group consumes."""
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    """broker: a group's subscription to a topic."""
    GET_TOPIC_CONFIG = 351
    """broker: one topic's configuration."""
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    """broker: one group's configuration."""
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    """broker: forbids a group to read a topic, allows it, or asks (docs/reference/requests.md, "Queues and
    groups")."""
    LITE_PULL_MESSAGE = 361
    """broker: reads from a queue, for a lite pull consumer of 5.x."""
    RECALL_MESSAGE = 370
    """broker: recalls a timed message (docs/reference/timers.md, "Recall")."""
    QUERY_ASSIGNMENT = 400
    """broker: the queues of a member of a group (docs/reference/pop.md)."""
    SET_MESSAGE_REQUEST_MODE = 401
    """broker: sets whether a group pulls or pops a topic."""
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    """broker: request modes (5.x slaves ask)."""
    BATCH_ACK_MESSAGE = 200_151
    """broker: acknowledges messages of several pops (docs/reference/pop.md)."""
    POP_MESSAGE = 200_050
    """broker: takes messages of any queue for a time (docs/reference/pop.md)."""
    ACK_MESSAGE = 200_051
    """broker: acknowledges a popped message."""
    PEEK_MESSAGE = 200_052
    """broker: reads messages that a pop would take."""
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    """broker: sets when a popped message comes back."""
    NOTIFICATION = 200_054
    """broker: asks whether there are messages to pop, and waits for some."""
    POLLING_INFO = 200_055
    """broker: the number of pops that wait."""
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    """broker: creates or changes a static topic (docs/reference/requests.md, "Static topics")."""
    GET_BROKER_MEMBER_GROUP = 901
    """name server: a group's members."""
    BROKER_HEARTBEAT = 904
    """name server: a broker lives (5.x)."""
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    """none: sent by the name server, one-way, if `notifyMinBrokerIdChanged`: `minBrokerId`, `brokerName`,
    `minBrokerAddr`, and `offlineBrokerAddr` of a broker that left (all members are notified) or `haBrokerAddr` of a
    broker that joined (the others are notified)."""
    GET_BROKER_HA_STATUS = 907
    """broker: state of replication."""
    GET_BROKER_EPOCH_CACHE = 1_007
    """broker: generations of the log, each with its first log offset."""
    TANDEM_PEER_INFO = 7_301
    """broker: is this a TandemQ broker, and which? Its role, log offsets, and why it refuses messages (`refusing`,
    empty if it does not). Java answers 3."""
    TANDEM_LOG_DIGEST = 7_302
    """broker: checksum of a range of the commit log, to compare replicas."""
    TANDEM_LOG_RECORDS = 7_303
    """broker: whole, verified records of a range of the commit log, for a replica that repairs its own
    (docs/internals/ha.md, "Repair")."""
    TANDEM_LOG_SUSPECT = 7_304
    """broker: a slave reports to its master that it received the record at `offset` damaged three times
    (`brokerId`, `reason`); the master verifies it."""
    TANDEM_SCRUB = 7_305
    """broker: state of the commit log (JSON: passes, damaged ranges, repairs); `begin` true begins a pass,
    `bytesPerSecond` for this pass only."""
    TANDEM_CHALLENGE = 7_306
    """broker: a member requests a nonce (`proofChallenge`) for the proof in its next request on this connection
    (docs/internals/ha.md, "Requests of members")."""
    TANDEM_REPLICA_PULL = 7_307
    """broker: for pipelines: fields and response of PULL_MESSAGE, answered by every member, active or not; for no
    consumer group (the name is only used for statistics), never held, without commits; in mode `elect` nothing
    behind the confirm offset. The response to an offset behind the end has `minOffset` and `maxOffset`."""
    TANDEM_POP_ORDERS = 7_308
    """broker: batches of ordered pops that are not acknowledged (slaves ask)."""
    TANDEM_ACCESS = 7_309
    """broker: users and their policies, with passwords (slaves ask)."""
    TANDEM_QUOTAS = 7_330
    """broker: the limits of users, topics and groups, and how often each was exceeded (slaves ask, too)."""
    TANDEM_SET_QUOTAS = 7_331
    """broker: sets limits of users, topics and groups; one without values is deleted."""
    TANDEM_PROXIED_CONSUMERS = 7_332
    """broker: a proxy reports gRPC clients that joined a group or left it, for operators (docs/reference/grpc.md)."""
    TANDEM_QUEUE_BOUNDS = 7_333
    """broker: first offsets and ends of the queues of many topics, as GET_MIN_OFFSET and GET_MAX_OFFSET return them one
    by one: body `{"topics": […]}`, answered by `{"starts": [[…], null, …], "ends": [[…], null, …]}`, those of a topic's
    queues from 0 on, null for a topic that it lacks, that is static, or that has more than 2,000 queues. A member that
    serves no consumers returns `"ends": null`. A request is answered for its first topics, up to 2,000 queues in all:
    ask again for the others."""
    TANDEM_ROUTES_VERSION = 7_334
    """name server: the `version` of the routes, another one after each change."""
    TANDEM_QUEUE_ENTRIES = 7_335
    """broker: entries of a queue without its messages: `topic`, `queueId`, `index` (queue offset), `count`; answered by
    at most 16,384 of 20 bytes (log offset, size, hash of the tag), with `minOffset` and `maxOffset`. Code 21 outside of
    them, 3 for static topics."""
    TANDEM_QUEUE_HEADS = 7_336
    """broker: messages of a queue without their bodies: the fields of 7335, answered by at most 512 records with empty
    bodies, or whole if they are corrupt, and `nextBeginOffset`. Codes 20 and 2: pull them instead."""
    AUTH_CREATE_USER = 3_001
    """broker: creates a user (docs/reference/access.md)."""
    AUTH_UPDATE_USER = 3_002
    """broker: changes a user."""
    AUTH_DELETE_USER = 3_003
    """broker: deletes a user and its policies."""
    AUTH_GET_USER = 3_004
    """broker: a user; its password for super users only."""
    AUTH_LIST_USER = 3_005
    """broker: the users whose names contain `filter`."""
    AUTH_CREATE_ACL = 3_006
    """broker: adds entries to the policies of a user, and replaces those of the same resources."""
    AUTH_UPDATE_ACL = 3_007
    """broker: the same."""
    AUTH_DELETE_ACL = 3_008
    """broker: deletes the policies of a user, or the entry of one resource."""
    AUTH_GET_ACL = 3_009
    """broker: the policies of a user."""
    AUTH_LIST_ACL = 3_010
    """broker: the policies of all users whose names contain `subjectFilter`."""
    TANDEM_FAILOVER_STATUS = 7_320
    """broker: the state of a broker in its group, and its history."""
    TANDEM_SWITCH = 7_321
    """broker: make another member the master."""
    TANDEM_FORCE_MASTER = 7_322
    """broker: make this broker active although messages may be lost or delivered again."""
    TANDEM_HAND_OFFSETS = 7_323
    """broker: a member hands over offsets and delay progress."""
    TANDEM_REGISTRY_CONNECT = 7_310
    """registry: opens a session at the registry, or continues one."""
    TANDEM_REGISTRY_OPERATE = 7_311
    """registry: reads, creates, writes or deletes a node of the registry."""
    TANDEM_REGISTRY_EVENTS = 7_312
    """registry: answered when a watch fires."""
    TANDEM_REGISTRY_PING = 7_313
    """registry: keeps a session alive."""
    TANDEM_REGISTRY_CLOSE = 7_314
    """registry: ends a session."""
    TANDEM_REGISTRY_CHALLENGE = 7_315
    """registry: requests a nonce for the proof in the next CONNECT on this connection."""


class ResponseCode(IntEnum):
    """Codes of responses."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209  # as in RocketMQ
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
