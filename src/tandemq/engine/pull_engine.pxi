# Pulls: from frames to responses with messages.

cdef enum:
    COMMIT_OFFSET = 1
    SUSPEND = 2
    OWN_SUBSCRIPTION = 4
    ORDINARY_FLAGS = 23  # with that of a lite pull
    PULLS_AT_ONCE = 32
    PULLED_BYTES_AT_ONCE = 1 << 20
    PULL_KEY_BYTES_MAX = 1024
    PULL_TARGET_BYTES = 600  # of one, without its key and the codes
    PULL_CODE_BYTES = 100
    WANTED_MAX = 4096

cdef struct PullText:
    Text group
    Text topic
    Text subscription  # `data` NULL: absent
    Text kind
    int64_t queue_id
    int64_t queue_offset
    int64_t most
    int64_t sys_flag
    int64_t commit_offset
    int64_t suspend_ms
    int64_t sub_version
    bint is_bulk


cdef bint read_pull(int form, Bytes data, Py_ssize_t size, Header *header, PullText *pull) noexcept:
    """Read the header of an ordinary pull; False if it is something else."""
    cdef Listed *listed = header.listed
    cdef NamedText *field
    cdef Text name
    cdef int at
    cdef unsigned int seen = 0
    header.code = -1
    header.flag = header.opaque = 0
    header.ends_seen = header.fields[0].seen = header.fields[1].seen = 0
    listed.count = 0
    if form == 0:
        if not read_json(data, size, header, PULL_MESSAGE):
            return False
    elif form != 1 or not read_binary(data, size, header, PULL_MESSAGE):
        return False
    if header.flag:
        return False
    pull.subscription.data = pull.kind.data = NULL
    pull.subscription.size = pull.kind.size = 0
    pull.sys_flag = pull.commit_offset = pull.suspend_ms = pull.sub_version = 0
    pull.is_bulk = False
    for at in range(listed.count):
        field = &listed.fields[at]
        name = field.name
        if field.has_escapes:
            return False
        if is_named(name.data, name.size, b"consumerGroup", 13):
            pull.group = field.value
            seen |= 1
        elif is_named(name.data, name.size, b"topic", 5):
            pull.topic = field.value
            seen |= 2
        elif is_named(name.data, name.size, b"queueId", 7):
            if not read_number(field.value, INT32_MAX_VALUE, &pull.queue_id):
                return False
            seen |= 4
        elif is_named(name.data, name.size, b"queueOffset", 11):
            if not read_number(field.value, <int64_t>1 << 58, &pull.queue_offset):
                return False
            seen |= 8
        elif is_named(name.data, name.size, b"maxMsgNums", 10):
            if not read_number(field.value, INT32_MAX_VALUE, &pull.most):
                return False
            seen |= 16
        elif is_named(name.data, name.size, b"sysFlag", 7):
            if not read_number(field.value, INT32_MAX_VALUE, &pull.sys_flag):
                return False
        elif is_named(name.data, name.size, b"commitOffset", 12):
            if not read_number(field.value, <int64_t>1 << 58, &pull.commit_offset):
                return False
        elif is_named(name.data, name.size, b"suspendTimeoutMillis", 20):
            if not read_number(field.value, <int64_t>1 << 58, &pull.suspend_ms):
                return False
        elif is_named(name.data, name.size, b"subVersion", 10):
            if not read_number(field.value, <int64_t>1 << 58, &pull.sub_version):
                return False
        elif is_named(name.data, name.size, b"subscription", 12):
            pull.subscription = field.value
        elif is_named(name.data, name.size, b"expressionType", 14):
            pull.kind = field.value
        elif is_named(name.data, name.size, b"bulk", 4):
            pull.is_bulk = is_named(field.value.data, field.value.size, b"true", 4)
    return seen == 31 and not pull.sys_flag & ~<int64_t>ORDINARY_FLAGS


cdef int put_pull_key(Buffer *key, const PullText *pull) except -1:
    """Put together what decides which messages a pull wants, without its offset."""
    cdef bint has_own = (pull.sys_flag & OWN_SUBSCRIPTION) != 0
    cdef unsigned char *at
    key.size = 0
    reserve(key, 24 + pull.group.size + pull.topic.size + pull.subscription.size + pull.kind.size)
    at = key.data
    put_32(at, <uint32_t>pull.queue_id)
    put_32(at + 4, <uint32_t>pull.group.size)
    put_32(at + 8, <uint32_t>pull.topic.size)
    put_32(at + 12, <uint32_t>(pull.subscription.size if has_own and pull.subscription.data != NULL else -1))
    put_32(at + 16, <uint32_t>(pull.kind.size if has_own and pull.kind.data != NULL else -1))
    put_32(at + 20, has_own)
    key.size = 24
    append(key, pull.group.data, pull.group.size)
    append(key, pull.topic.data, pull.topic.size)
    if has_own:
        append(key, pull.subscription.data, pull.subscription.size)
        append(key, pull.kind.data, pull.kind.size)
    return 0


cdef int append_text_field(Buffer *to, const char *name, int size, int64_t value) except -1:
    """Append a field of a binary header, with a number as its value."""
    cdef Py_ssize_t start
    reserve(to, 6 + size)
    put_16(to.data + to.size, <uint16_t>size)
    memcpy(to.data + to.size + 2, name, size)
    to.size += 6 + size
    start = to.size
    append_number(to, value)
    put_32(to.data + start - 4, <uint32_t>(to.size - start))
    return 0


cdef int append_pull_head(
    Buffer *to, int form, int64_t code, const char *remark, int64_t opaque, int64_t next_offset, int64_t min_offset,
    int64_t end, Py_ssize_t body_bytes,
) except -1:
    """Append a response up to its messages. See `broker.features.pulls.response`."""
    cdef Py_ssize_t start = to.size, fields, remark_bytes = strlen(remark)
    reserve(to, 400)
    to.size += 8
    if form == 1:
        to.size += 17
        put_16(to.data + start + 8, <uint16_t>code)
        to.data[start + 10] = LANGUAGE
        put_16(to.data + start + 11, <uint16_t>VERSION)
        put_32(to.data + start + 13, <uint32_t>opaque)
        put_32(to.data + start + 17, 1)
        put_32(to.data + start + 21, <uint32_t>remark_bytes)
        append(to, remark, remark_bytes)
        fields = to.size
        to.size += 4
        append_text_field(to, b"suggestWhichBrokerId", 20, 0)
        append_text_field(to, b"nextBeginOffset", 15, next_offset)
        append_text_field(to, b"minOffset", 9, min_offset)
        append_text_field(to, b"maxOffset", 9, end)
        put_32(to.data + fields, <uint32_t>(to.size - fields - 4))
    else:
        append(to, b'{"code":', 8)
        append_number(to, code)
        append(to, b',"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"', 60)
        append_number(to, next_offset)
        append(to, b'","minOffset":"', 15)
        append_number(to, min_offset)
        append(to, b'","maxOffset":"', 15)
        append_number(to, end)
        append(to, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
        append_number(to, opaque)
        append(to, b',"remark":"', 11)
        append(to, remark, remark_bytes)
        append(to, b'","serializeTypeCurrentRPC":"JSON","version":', 45)
        append_number(to, VERSION)
        append(to, b"}", 1)
    put_32(to.data + start, <uint32_t>(to.size - start - 4 + body_bytes))
    put_32(to.data + start + 4, <uint32_t>(to.size - start - 8) | <uint32_t>(form << 24))
    return 0


cdef class PullCounts:
    cdef public int64_t messages, bytes, answers
    cdef public dict next_offsets

    def __init__(self):
        self.messages = self.bytes = self.answers = 0
        self.next_offsets = {}


cdef class PullTarget:
    cdef str group_name, topic_name
    cdef readonly tuple place
    cdef tuple counted
    cdef readonly object group, selector
    cdef object queue_id, online, subscription, codes
    cdef dict subscriptions
    cdef TopicTarget topic
    cdef readonly QueueTail queue
    cdef bytes encoded_topic
    cdef int32_t queue_number
    cdef int64_t sub_version

    def __init__(self, tuple place, TopicTarget topic, QueueTail queue, group, selector, subscribed=None):
        self.place = place
        self.topic_name, self.group_name, self.queue_id = place
        self.counted = place[:2]
        self.topic, self.queue, self.group, self.selector = topic, queue, group, selector
        self.codes = selector.codes
        self.encoded_topic, self.queue_number = self.topic_name.encode(), self.queue_id
        if subscribed is not None:
            self.online, self.subscriptions, self.subscription, self.sub_version = subscribed


cdef class PullEngine:
    cdef dict topics, groups, consumers, forbidden, static_topics, resets, counts, ahead, targets
    cdef Py_ssize_t messages_max, bytes_max, bulk_messages_max, bulk_bytes_max
    cdef uint64_t frame_bytes_max
    cdef Buffer key, head, signed
    cdef Wanted *wanted
    cdef readonly Py_ssize_t messages, bytes, finds, misses
    cdef public Py_ssize_t kept_bytes, kept_bytes_max
    cdef readonly list commits, answers, waiting
    # Of the calls since `begin`.
    cdef int64_t visible_end, written_end, recent_start
    cdef bytearray recent
    cdef LogSources sources
    cdef bint commits_pulled

    def __cinit__(self):
        cdef Buffer empty
        empty.data = NULL
        empty.size = empty.room = 0
        self.key = self.head = self.signed = empty
        self.wanted = <Wanted *>PyMem_Malloc(WANTED_MAX * sizeof(Wanted))
        if self.wanted == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.key.data)
        PyMem_Free(self.head.data)
        PyMem_Free(self.signed.data)
        PyMem_Free(self.wanted)

    def __init__(
        self, *, dict topics, dict groups, dict consumers, dict forbidden, dict static_topics, dict resets, dict counts,
        dict ahead,
    ):
        self.topics, self.groups, self.consumers = topics, groups, consumers
        self.forbidden, self.static_topics, self.resets = forbidden, static_topics, resets
        self.counts, self.ahead = counts, ahead
        self.targets = {}
        self.messages_max = self.bytes_max = self.bulk_messages_max = self.bulk_bytes_max = 0
        self.frame_bytes_max = 0
        self.kept_bytes, self.kept_bytes_max = 0, PULL_TARGETS_BYTES
        self.commits, self.answers, self.waiting = [], [], []
        self.begin(0, 0, 0, None, None)

    def configure(self, *, messages_max, bytes_max, bulk_messages_max, bulk_bytes_max, frame_bytes_max):
        self.forget()
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self.bulk_messages_max, self.bulk_bytes_max = bulk_messages_max, bulk_bytes_max
        self.frame_bytes_max = frame_bytes_max

    def add(self, PullTarget target, str subscription, str kind, *, bint has_own):
        cdef PullText pull
        cdef Py_ssize_t size
        cdef bytes group = target.group_name.encode()
        cdef bytes own = b"" if subscription is None else subscription.encode("utf-8", "surrogatepass")
        cdef bytes own_kind = b"" if kind is None else kind.encode("utf-8", "surrogatepass")
        pull.group.data, pull.group.size = <Bytes>PyBytes_AS_STRING(group), PyBytes_GET_SIZE(group)
        pull.topic.data = <Bytes>PyBytes_AS_STRING(target.encoded_topic)
        pull.topic.size = PyBytes_GET_SIZE(target.encoded_topic)
        pull.subscription.data = NULL if subscription is None else <Bytes>PyBytes_AS_STRING(own)
        pull.subscription.size = PyBytes_GET_SIZE(own)
        pull.kind.data = NULL if kind is None else <Bytes>PyBytes_AS_STRING(own_kind)
        pull.kind.size = PyBytes_GET_SIZE(own_kind)
        pull.queue_id = target.queue_number
        pull.sys_flag = OWN_SUBSCRIPTION if has_own else 0
        put_pull_key(&self.key, &pull)
        if self.key.size > PULL_KEY_BYTES_MAX:
            return
        size = PULL_TARGET_BYTES + self.key.size + PULL_CODE_BYTES * len(target.codes or ())
        if self.kept_bytes + size > self.kept_bytes_max:
            self.forget()
        key = taken(&self.key, 0)
        if key not in self.targets:
            self.kept_bytes += size
        self.targets[key] = target

    cdef void forget(self):
        self.targets.clear()
        self.kept_bytes = 0

    def begin(
        self, int64_t visible_end, int64_t written_end, int64_t recent_start, bytearray recent, LogSources sources, *,
        bint commits_pulled=True,
    ):
        self.visible_end, self.written_end = visible_end, written_end
        self.recent_start, self.recent, self.sources = recent_start, recent, sources
        self.commits_pulled = commits_pulled
        self.messages = self.bytes = self.finds = self.misses = 0
        self.commits, self.answers, self.waiting = [], [], []

    def take(self, bytes data, Py_ssize_t at, Py_ssize_t room, SigningUser sender=None):
        cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef uint64_t length, header_bytes
        cdef uint32_t word
        cdef Header header
        cdef Listed listed
        cdef PullText pull
        cdef int left = PULLS_AT_ONCE
        header.listed = &listed
        header.stored = NULL
        room = min(room, PULLED_BYTES_AT_ONCE)
        while left and size - at >= 8 and self.bytes < room:
            length = big_32(raw + at)
            word = big_32(raw + at + 4)
            header_bytes = word & 0xFFFFFF
            if header_bytes + 4 != length or length + 4 > <uint64_t>(size - at) or length + 4 > self.frame_bytes_max:
                break
            if header_bytes > HEADER_BYTES_MAX:
                break
            if not read_pull(<int>(word >> 24), raw + at + 8, header_bytes, &header, &pull):
                break
            if sender is not None and not has_signed(sender, &listed, NULL, 0, &self.signed):
                break
            if not self.answer(<int>(word >> 24), header.opaque, &pull, sender):
                break
            at += 4 + length
            left -= 1
        return at

    def respond(
        self, PullTarget target, int64_t opaque, int64_t offset, int64_t scan_offset, int64_t most, bint is_bulk,
        bint is_binary,
    ):
        cdef Choice choice
        cdef int64_t end = self.shown_end(target.queue)
        if not target.queue.min_offset <= offset < end:
            return None
        return self.found(target, 1 if is_binary else 0, opaque, max(offset, scan_offset), end, most, is_bulk, True, &choice)

    cdef PullTarget find(self, const PullText *pull):
        """Return what a pull reads; None if it is not known, or if anything changed by which it was allowed."""
        cdef PyObject *found
        cdef PullTarget target
        put_pull_key(&self.key, pull)
        if self.key.size > PULL_KEY_BYTES_MAX:
            return None
        found = PyDict_GetItem(self.targets, taken(&self.key, 0))
        if found == NULL:
            return None
        target = <PullTarget><object>found
        if (
            PyDict_GetItem(self.topics, target.topic_name) == <PyObject *>target.topic
            and PyDict_GetItem(target.topic.queues, target.queue_id) == <PyObject *>target.queue
            and PyDict_GetItem(self.groups, target.group_name) == <PyObject *>target.group
            and PyDict_GetItem(self.forbidden, target.group_name) == NULL
            and PyDict_GetItem(self.static_topics, target.topic_name) == NULL
            and (not len(self.resets) or PyDict_GetItem(self.resets, target.place) == NULL)
            and (
                target.online is None
                or (
                    PyDict_GetItem(self.consumers, target.group_name) == <PyObject *>target.online
                    and PyDict_GetItem(target.subscriptions, target.topic_name) == <PyObject *>target.subscription
                    and pull.sub_version <= target.sub_version
                )
            )
        ):
            return target
        return None

    cdef int answer(self, int form, int64_t opaque, const PullText *pull, SigningUser sender) except -1:
        """Answer a pull, or have it wait; return 0, with nothing changed, if that is not possible."""
        cdef PullTarget target = self.find(pull)
        cdef Choice choice
        cdef int64_t end, offset = pull.queue_offset, scan_offset = pull.queue_offset
        cdef bytes response
        if target is None:
            return 0
        if sender is not None and sender.pulls is not None:
            if (target.group_name, target.topic_name) not in <set?>sender.pulls:
                return 0
        end = self.shown_end(target.queue)
        if offset == end and pull.sys_flag & SUSPEND:
            response = None
        elif target.queue.min_offset <= offset < end:
            response = self.found(
                target, form, opaque, offset, end, pull.most, pull.is_bulk, (pull.sys_flag & SUSPEND) != 0, &choice
            )
            if response is None:
                if choice.count:
                    return 0
                scan_offset = choice.next_offset
        else:
            return 0
        if response is not None:
            self.answers.append(response)
        else:
            self.waiting.append(
                (target, opaque, offset, scan_offset, pull.most, pull.sys_flag, pull.suspend_ms, pull.is_bulk, form == 1)
            )
        if pull.sys_flag & COMMIT_OFFSET and self.commits_pulled:
            self.commits.append((target.place, pull.commit_offset))
        return 1

    cdef int64_t shown_end(self, QueueTail queue) noexcept:
        """Return the queue offset behind the last message that may be shown; -1 if memory does not show it."""
        cdef Bytes entries = queue.entries.data
        cdef int64_t low = 0, high = queue.max_offset - queue.tail_start, middle
        if self.visible_end >= self.written_end or queue.last_log_end <= self.visible_end:
            return queue.max_offset
        if not 0 < high <= queue.entries.size // ENTRY_BYTES or <int64_t>big_64(entries) >= self.visible_end:
            return -1
        while low < high:
            middle = (low + high) // 2
            if <int64_t>big_64(entries + middle * ENTRY_BYTES) < self.visible_end:
                low = middle + 1
            else:
                high = middle
        return queue.tail_start + low

    cdef bytes found(
        self, PullTarget target, int form, int64_t opaque, int64_t offset, int64_t end, int64_t most, bint is_bulk,
        bint may_wait, Choice *choice,
    ):
        """Return the response to a pull; None if it waits for messages, or is left to the handler.

        It waits if `choice.count` is 0: no message up to `end` matches, the end of those that may be shown.
        """
        cdef QueueTail queue = target.queue
        cdef PyObject *counts
        cdef Text topic
        cdef Py_ssize_t head
        cdef bytes response
        choice.count = 1
        most = max(1, min(most, self.bulk_messages_max if is_bulk else self.messages_max))
        if most > WANTED_MAX:
            return None
        choice.most = most
        choice.bytes_max = self.bulk_bytes_max if is_bulk else self.bytes_max
        choice.limit = self.visible_end
        choice.written_end = self.written_end
        choice.wanted = self.wanted
        topic.data = <Bytes>PyBytes_AS_STRING(target.encoded_topic)
        topic.size = PyBytes_GET_SIZE(target.encoded_topic)
        try:
            if not self.choose(target, offset, most, choice):
                choice.count = 1
                return None
            self.head.size = 0
            if not choice.count:
                if choice.next_offset >= end and may_wait:
                    return None
                append_pull_head(
                    &self.head, form, RETRY_IMMEDIATELY, b"NO_MATCHED_MESSAGE", opaque, choice.next_offset,
                    queue.min_offset, end, 0,
                )
                self.misses += 1
                return taken(&self.head, 0)
            counts = PyDict_GetItem(self.counts, target.counted)
            if counts == NULL:
                return None
            if PyDict_GetItem((<PullCounts?><object>counts).next_offsets, target.queue_id) == NULL:
                return None
            append_pull_head(
                &self.head, form, 0, b"FOUND", opaque, choice.next_offset, queue.min_offset, end, choice.size
            )
            head = self.head.size
            response = PyBytes_FromStringAndSize(NULL, head + choice.size)
            memcpy(PyBytes_AS_STRING(response), self.head.data, head)
            if not copy_records(
                <unsigned char *>PyBytes_AS_STRING(response) + head, choice, target.queue_number, topic,
                self.recent_start, self.recent, self.sources,
            ):
                return None
            self.note(target, <PullCounts>counts, choice)
            return response
        except (NotCached, StoreError):
            choice.count = 1
            return None

    cdef bint choose(self, PullTarget target, int64_t offset, Py_ssize_t most, Choice *choice) except -1:
        """Choose the records of a response; False if that is not possible."""
        cdef QueueTail queue = target.queue
        cdef Py_ssize_t wanted = most if target.codes is None else EXAMINED_ENTRIES
        cdef int64_t end = min(offset + wanted, queue.max_offset), ahead_start
        cdef Bytes entry
        cdef PyObject *found
        cdef bytes packed
        if offset >= queue.tail_start:
            entry = queue.entries.data + (offset - queue.tail_start) * ENTRY_BYTES
            if (end - queue.tail_start) * ENTRY_BYTES > queue.entries.size:
                return False
            return choose_records(entry, entry + (end - offset) * ENTRY_BYTES, offset, target.codes, choice)
        found = PyDict_GetItem(self.ahead, queue)
        if found != NULL:
            packed = <bytes?>(<tuple><object>found)[1]  # `EntriesAhead`
            ahead_start = (<tuple><object>found)[0]
            if ahead_start <= offset and end <= ahead_start + PyBytes_GET_SIZE(packed) // ENTRY_BYTES:
                entry = <Bytes>PyBytes_AS_STRING(packed) + (offset - ahead_start) * ENTRY_BYTES
                return choose_records(entry, entry + (end - offset) * ENTRY_BYTES, offset, target.codes, choice)
        packed = <bytes?>queue.read(offset, wanted, may_wait=False)
        entry = <Bytes>PyBytes_AS_STRING(packed)
        if PyBytes_GET_SIZE(packed) > WANTED_MAX * ENTRY_BYTES:
            return False
        return choose_records(entry, entry + PyBytes_GET_SIZE(packed), offset, target.codes, choice)

    cdef int note(self, PullTarget target, PullCounts counts, const Choice *choice) except -1:
        """Count a response with messages."""
        counts.messages += choice.count
        counts.bytes += choice.size
        counts.answers += 1
        counts.next_offsets[target.queue_id] = choice.next_offset
        self.messages += choice.count
        self.bytes += choice.size
        self.finds += 1
        return 0
