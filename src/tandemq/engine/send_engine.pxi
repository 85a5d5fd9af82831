# Sends: from a frame to the record, the queue entry, the index keys and the response.

cdef struct Send:
    Header header
    Fields *fields
    int form
    int64_t queue_id
    int64_t sys_flag
    int64_t born_ms
    int64_t flag
    int64_t reconsume
    bint is_batch


cdef bint read_send(int form, Bytes data, Py_ssize_t size, Send *send) noexcept:
    """Read the header of an ordinary send, or of the end of a transaction; False if it is something else."""
    cdef int64_t number = 0
    cdef Fields *fields
    cdef Text batch
    send.header.code = -1
    send.header.flag = send.header.opaque = 0
    send.header.ends_seen = 0
    send.header.fields[0].seen = send.header.fields[1].seen = 0
    send.header.fields[0].has_escapes = send.header.fields[1].has_escapes = False
    send.form = form
    if form == 0:
        if not read_json(data, size, &send.header):
            return False
    elif form != 1 or not read_binary(data, size, &send.header):
        return False
    if send.header.flag & ~<int64_t>2:
        return False
    send.fields = &send.header.fields[1]
    if send.header.code == END_TRANSACTION:
        return True
    fields = send.fields = &send.header.fields[1 if send.header.code == 10 else 0]
    if fields.seen & REQUIRED != REQUIRED or send.header.fields[0 if send.header.code == 10 else 1].has_escapes:
        return False
    send.reconsume = 0
    send.is_batch = False
    if fields.seen >> <int>RECONSUME & 1:
        if not read_number(fields.text[<int>RECONSUME], INT32_MAX_VALUE, &send.reconsume):
            return False
    if fields.seen >> <int>MAX_RECONSUME & 1:
        if not read_number(fields.text[<int>MAX_RECONSUME], INT32_MAX_VALUE, &number):
            return False
    if fields.seen >> <int>BATCH & 1:
        batch = fields.text[<int>BATCH]
        send.is_batch = is_named(batch.data, batch.size, b"true", 4)
        if not send.is_batch and not is_named(batch.data, batch.size, b"false", 5):
            return False
    if not fields.seen >> <int>PROPERTIES & 1:
        fields.text[<int>PROPERTIES].data = b""
        fields.text[<int>PROPERTIES].size = 0
        fields.has_escapes = False
    return (
        read_number(fields.text[<int>DEFAULT_NUMS], INT32_MAX_VALUE, &number)
        and read_number(fields.text[<int>QUEUE_ID], INT32_MAX_VALUE, &send.queue_id)
        and read_number(fields.text[<int>SYS_FLAG], INT32_MAX_VALUE, &send.sys_flag)
        and read_number(fields.text[<int>BORN], <int64_t>1 << 60, &send.born_ms)
        and read_number(fields.text[<int>FLAG], INT32_MAX_VALUE, &send.flag)
        and not send.sys_flag & UNUSUAL_FLAGS
    )


cdef bint choose_queue(Send *send, TopicTarget topic, const Properties *found) noexcept:
    """Choose the queue by the priority of a message; False if it is unusual."""
    cdef int64_t priority
    if found.is_half or found.delay.size or found.timer_kind or found.has_sharding_key:
        return False
    if not read_number(found.priority, INT32_MAX_VALUE, &priority):
        return False
    send.queue_id = min(priority, <int64_t>topic.write_queue_nums - 1)
    return True


cdef int append_plain_answer(Buffer *to, int64_t opaque) except -1:
    """Append a response with a JSON header and no fields that says SUCCESS."""
    cdef Py_ssize_t start = to.size
    reserve(to, 200)
    to.size += 8
    append(to, b'{"code":0,"flag":1,"language":"PYTHON","opaque":', 48)
    append_number(to, opaque)
    append(to, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
    append_number(to, VERSION)
    append(to, b"}", 1)
    put_32(to.data + start, <uint32_t>(to.size - start - 4))
    put_32(to.data + start + 4, <uint32_t>(to.size - start - 8))
    return 0


cdef class SendEngine:
    cdef dict topics
    cdef bytes store_host, store_host_hex, region, region_json, trace_on, common_pairs, broker_name
    cdef uint64_t frame_bytes_max
    cdef Py_ssize_t body_bytes_max
    cdef list delays_ms
    cdef int64_t timer_precision_ms, timer_delay_max_ms, timers_room
    cdef readonly Py_ssize_t count
    cdef int64_t log_end, store_ms, now_ms
    cdef Py_ssize_t room
    cdef readonly Py_ssize_t body_bytes
    cdef Buffer records, keys, answers, kept, plain, part, ids, handle, signed
    cdef list queues, acks, timed
    # Large bodies are not copied: for each, its place in `records`, and the parts in which it was received. `log_bytes`
    # counts them too. A frame is taken from one object, or from several parts.
    cdef list outside
    cdef Py_ssize_t log_bytes
    cdef bytes source
    cdef list parts
    # Transactions: half messages taken, ends taken, and what the owner knows of open ones (None: leave them to it).
    cdef bint takes_halves, takes_ends
    cdef list halves, ends
    cdef dict open_halves, ended
    cdef object read_log
    cdef readonly Py_ssize_t messages
    # The acknowledgement that the next message joins, if it is of the same connection and waits alike.
    cdef int64_t ack_link, ack_end, ack_count
    cdef bint ack_waits
    cdef Py_ssize_t ack_start

    def __cinit__(self):
        cdef Buffer empty
        empty.data = NULL
        empty.size = empty.room = 0
        self.records = self.keys = self.answers = self.kept = self.plain = self.part = self.ids = empty
        self.handle = self.signed = empty

    def __dealloc__(self):
        PyMem_Free(self.records.data)
        PyMem_Free(self.keys.data)
        PyMem_Free(self.answers.data)
        PyMem_Free(self.kept.data)
        PyMem_Free(self.plain.data)
        PyMem_Free(self.part.data)
        PyMem_Free(self.ids.data)
        PyMem_Free(self.handle.data)
        PyMem_Free(self.signed.data)

    def __init__(self, dict topics):
        self.topics = topics
        self.store_host = self.store_host_hex = self.region = self.region_json = self.common_pairs = b""
        self.broker_name = b""
        self.trace_on = b"true"
        self.delays_ms = []
        self.timer_precision_ms = self.timer_delay_max_ms = 0
        self.open_halves = self.ended = None
        self.read_log = None
        self.begin(0, 0, 0, 0)

    def configure(
        self, *, bytes store_host, str region, str trace_on, bytes common_pairs, frame_bytes_max, body_bytes_max,
        delays_ms, str broker_name, int64_t timer_precision_ms, int64_t timer_delay_max_ms,
    ):
        from msgspec.json import encode

        self.store_host = store_host
        self.store_host_hex = store_host.hex().upper().encode()
        self.region = region.encode()
        self.region_json = encode(region)
        self.trace_on = trace_on.encode()
        self.common_pairs = common_pairs
        self.frame_bytes_max = frame_bytes_max
        self.body_bytes_max = body_bytes_max
        self.delays_ms = list(delays_ms)
        self.broker_name = broker_name.encode()
        self.timer_precision_ms = timer_precision_ms
        self.timer_delay_max_ms = timer_delay_max_ms

    def know_transactions(self, dict open_halves, dict ended, read_log):
        self.open_halves = open_halves
        self.ended = ended
        self.read_log = read_log

    def begin(
        self, int64_t log_end, Py_ssize_t room, int64_t store_ms, int64_t timers_room, int64_t now_ms=0, *,
        bint takes_halves=False, bint takes_ends=False,
    ):
        self.now_ms = now_ms
        self.takes_halves = takes_halves
        self.takes_ends = takes_ends and self.open_halves is not None
        self.log_end = log_end
        self.room = room
        self.store_ms = store_ms
        self.timers_room = timers_room
        self.count = self.messages = self.body_bytes = 0
        keep_small(&self.records)
        keep_small(&self.signed)
        self.records.size = self.keys.size = self.answers.size = self.log_bytes = 0
        self.outside = []
        self.queues = []
        self.acks = []
        self.timed = []
        self.halves = []
        self.ends = []
        self.ack_count = self.ack_start = 0

    def take(
        self, int64_t link, bytes born_host, bytes data, Py_ssize_t at, SigningUser sender=None, Budget budget=None
    ):
        cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef uint64_t length, header_bytes
        cdef uint32_t word
        cdef Bytes header
        cdef Py_ssize_t before, bytes_before
        if PyBytes_GET_SIZE(born_host) not in (8, 20) or PyBytes_GET_SIZE(self.store_host) not in (8, 20):
            return at
        self.source = data
        while size - at >= 8:
            length = big_32(raw + at)
            word = big_32(raw + at + 4)
            header_bytes = word & 0xFFFFFF
            if length + 4 > self.frame_bytes_max or header_bytes + 4 > length or length + 4 > <uint64_t>(size - at):
                break
            if header_bytes > HEADER_BYTES_MAX:
                break
            if budget is not None and budget.wait_ms(self.now_ms):
                break
            before, bytes_before = self.messages, self.body_bytes
            header = raw + at + 8
            if not self.take_frame(
                link, born_host, sender, <int>(word >> 24), header, header_bytes, length - 4 - header_bytes
            ):
                break
            if budget is not None:
                budget.use(self.messages - before, self.body_bytes - bytes_before)
            at += 4 + length
        self.source = None
        return at

    def take_large(self, int64_t link, bytes born_host, list parts, Budget budget=None):
        cdef const unsigned char[::1] first
        cdef Bytes raw
        cdef Py_ssize_t size, total = 0
        cdef uint64_t length, header_bytes
        cdef uint32_t word
        cdef int taken
        if PyBytes_GET_SIZE(born_host) not in (8, 20) or PyBytes_GET_SIZE(self.store_host) not in (8, 20):
            return False
        for part in parts:
            total += len(part)
        if not parts or len(parts[0]) < 8:
            return False
        first = parts[0]
        raw = &first[0]
        size = first.shape[0]
        length = big_32(raw)
        word = big_32(raw + 4)
        header_bytes = word & 0xFFFFFF
        if length + 4 != <uint64_t>total or length + 4 > self.frame_bytes_max or header_bytes > HEADER_BYTES_MAX:
            return False
        if header_bytes + 8 > <uint64_t>size or header_bytes + 4 + <uint64_t>LARGE_BODY > length:
            return False
        if budget is not None and budget.wait_ms(self.now_ms):
            return False
        self.parts = [memoryview(parts[0])[8 + header_bytes:], *parts[1:]]
        try:
            taken = self.take_frame(
                link, born_host, None, <int>(word >> 24), raw + 8, header_bytes, length - 4 - header_bytes
            )
        finally:
            self.parts = None
        if taken and budget is not None:
            budget.use(1, length - 4 - header_bytes)
        return taken != 0

    cdef int take_frame(
        self, int64_t link, bytes born_host, SigningUser sender, int form, Bytes header, Py_ssize_t header_bytes,
        Py_ssize_t body_bytes,
    ) except -1:
        """Take one send; return 0, with nothing changed, if it is something else, unusual, or not allowed."""
        cdef Send send
        cdef Listed listed
        cdef TopicTarget topic
        cdef Text name_text, raw
        cdef PyObject *found
        cdef object name
        cdef int taken
        cdef int64_t before = self.messages
        if not body_bytes and not self.takes_ends:
            return 0
        listed.count = 0
        send.header.listed = NULL if sender is None else &listed
        send.header.stored = NULL
        if body_bytes > self.body_bytes_max or not read_send(form, header, header_bytes, &send):
            return 0
        if sender is not None and not has_signed(sender, &listed, header + header_bytes, body_bytes, &self.signed):
            return 0
        if send.header.code == END_TRANSACTION:
            return self.take_end(link, sender, &send) if not body_bytes else 0
        if not body_bytes:
            return 0
        name_text = send.fields.text[<int>TOPIC]
        name = PyUnicode_DecodeUTF8(<char *>name_text.data, name_text.size, "strict")
        found = PyDict_GetItem(self.topics, name)
        if found == NULL:
            return 0
        if not may_send(sender, name):
            return 0
        topic = <TopicTarget?><object>found
        if not topic.takes_plain or send.queue_id >= topic.write_queue_nums:
            return 0
        if topic.budget is not None and topic.budget.wait_ms(self.now_ms):
            return 0
        raw = send.fields.text[<int>PROPERTIES]
        if send.fields.has_escapes:
            self.plain.size = 0
            if not unescape(raw, &self.plain):
                return 0
            raw.data = self.plain.data
            raw.size = self.plain.size
        if send.is_batch:
            if send.sys_flag & TRANSACTION_BITS or self.parts is not None:
                return 0
            taken = self.take_batch(link, born_host, &send, topic, raw, header + header_bytes, body_bytes)
        else:
            taken = self.take_single(link, born_host, &send, topic, name, raw, header + header_bytes, body_bytes)
        if taken and topic.budget is not None:
            topic.budget.use(self.messages - before, body_bytes)
        return taken

    cdef int take_single(
        self, int64_t link, bytes born_host, Send *send, TopicTarget topic, str name, Text raw, Bytes body,
        Py_ssize_t body_bytes,
    ) except -1:
        cdef Properties found
        cdef TopicTarget stored_in = topic
        cdef QueueTail queue
        cdef PyObject *there
        cdef int64_t queue_id, level = 0, code, log_offset, queue_offset, out_ms = AT_ONCE
        cdef Py_ssize_t size
        self.kept.size = self.handle.size = 0
        if not keep_properties(raw, False, &self.kept, &found):
            return 0
        if found.priority.size and not choose_queue(send, topic, &found):
            return 0
        queue_id = send.queue_id
        if found.named.unique.size and send.form == 0 and not is_plain_json(found.named.unique):
            return 0
        if found.is_half:
            if not self.takes_halves or not found.has_group or found.delay.size or found.timer_kind:
                return 0
            there = PyDict_GetItem(self.topics, HALF_NAME)
            if there == NULL:
                return 0
            stored_in = <TopicTarget?><object>there
            queue_id = 0
            self.append_target(topic, send.queue_id)
            if found.named.unique.size:
                append(&self.kept, b"__transactionId__\x01", 18)
                append(&self.kept, found.named.unique.data, found.named.unique.size)
                append(&self.kept, b"\x02", 1)
        elif send.sys_flag & TRANSACTION_BITS:
            return 0
        elif found.delay.size:
            if not read_number(found.delay, len(self.delays_ms), &level) or not level:
                return 0
            there = PyDict_GetItem(self.topics, SCHEDULE_NAME)
            if there == NULL:
                return 0
            stored_in = <TopicTarget?><object>there
            queue_id = level - 1
            self.append_target(topic, send.queue_id)
        if found.timer_kind:
            out_ms = self.unit_of(&found)
            if out_ms == UNUSUAL_TIME or found.delay.size:
                return 0
        if out_ms != AT_ONCE:
            there = PyDict_GetItem(self.topics, TIMER_NAME)
            if there == NULL:
                return 0
            stored_in = <TopicTarget?><object>there
            queue_id = 0
            append(&self.kept, b"TIMER_OUT_MS\x01", 13)
            append_number(&self.kept, out_ms)
            append(&self.kept, b"\x02", 1)
            self.append_target(topic, send.queue_id)
            if self.kept.size + CRC_PROPERTY_BYTES + TIMED_BYTES > PROPERTIES_BYTES_MAX:
                return 0
        there = PyDict_GetItem(stored_in.queues, queue_id)
        if there == NULL:
            return 0
        queue = <QueueTail?><object>there
        append(&self.kept, PyBytes_AS_STRING(self.common_pairs), PyBytes_GET_SIZE(self.common_pairs))
        size = self.record_bytes(born_host, stored_in, body_bytes, self.kept.size)
        if self.kept.size + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX or self.log_bytes + size > self.room:
            return 0
        if found.is_half and self.kept.size + CRC_PROPERTY_BYTES + CHECKED_BYTES > PROPERTIES_BYTES_MAX:
            return 0
        code = self.store_ms + <int64_t>self.delays_ms[level - 1] if level else tags_code(found.named.tags)
        log_offset = self.log_end + self.log_bytes
        queue_offset = queue.next_offset
        if found.is_half:
            self.halves.append((queue_offset, log_offset, name, size))
        self.store(
            born_host, send, stored_in, queue, queue_id, <int32_t>send.flag, body, body_bytes, self.kept.data,
            self.kept.size, code,
        )
        append_keys(&self.keys, stored_in.key_prefix, found.named.unique, found.named.keys, log_offset, self.store_ms)
        self.ids.size = 0
        self.append_id(log_offset)
        if out_ms != AT_ONCE:
            self.timers_room -= 1
            self.timed.append((queue_offset, out_ms, name, False))
            if found.named.unique.size:
                self.make_handle(topic, out_ms, found.named.unique)
        self.acknowledge(link, send, queue_offset, found.named.unique, found.waits, 1)
        return 1

    cdef int append_target(self, TopicTarget topic, int64_t queue_id) except -1:
        """Append the properties that name the topic and queue a message is delivered to later."""
        append(&self.kept, b"REAL_TOPIC\x01", 11)
        append(&self.kept, PyBytes_AS_STRING(topic.encoded) + 1, PyBytes_GET_SIZE(topic.encoded) - 1)
        append(&self.kept, b"\x02REAL_QID\x01", 10)
        append_number(&self.kept, queue_id)
        append(&self.kept, b"\x02", 1)
        return 0

    cdef int64_t unit_of(self, Properties *found) noexcept:
        """Return the unit of time in which a timed message is due, AT_ONCE if its time has come."""
        cdef int64_t due_ms = 0
        if not self.timer_precision_ms or not read_number(found.timer, <int64_t>1 << 48, &due_ms):
            return UNUSUAL_TIME
        if found.timer_kind == DELAY_SECONDS:
            due_ms *= 1000
        if found.timer_kind != DELIVER_AT_MS:
            due_ms += self.store_ms
        if due_ms <= self.store_ms:
            return AT_ONCE
        if due_ms - self.store_ms > self.timer_delay_max_ms or self.timers_room <= 0:
            return UNUSUAL_TIME
        due_ms -= 1
        return due_ms - due_ms % self.timer_precision_ms

    cdef int make_handle(self, TopicTarget topic, int64_t out_ms, Text unique) except -1:
        """Make the handle with which a timed message can be recalled."""
        self.part.size = 0
        append(&self.part, b"v1 ", 3)
        append(&self.part, PyBytes_AS_STRING(topic.encoded) + 1, PyBytes_GET_SIZE(topic.encoded) - 1)
        append(&self.part, b" ", 1)
        append(&self.part, PyBytes_AS_STRING(self.broker_name), PyBytes_GET_SIZE(self.broker_name))
        append(&self.part, b" ", 1)
        append_number(&self.part, out_ms + 1)
        append(&self.part, b" ", 1)
        append(&self.part, unique.data, unique.size)
        append_base64(&self.handle, self.part.data, self.part.size)
        return 0

    cdef int take_batch(
        self, int64_t link, bytes born_host, Send *send, TopicTarget topic, Text raw, Bytes body, Py_ssize_t body_bytes
    ) except -1:
        cdef Properties found
        cdef Named named
        cdef QueueTail queue
        cdef PyObject *there
        cdef Bytes part = body, properties
        cdef Bytes end = body + body_bytes
        cdef Py_ssize_t length, properties_bytes, shared, longest = 0, parts = 0, number
        cdef int64_t first, log_offset
        self.kept.size = self.handle.size = 0
        if not keep_properties(raw, True, &self.kept, &found) or found.delay.size or found.is_half:
            return 0
        if found.named.unique.size and send.form == 0 and not is_plain_json(found.named.unique):
            return 0
        append(&self.kept, PyBytes_AS_STRING(self.common_pairs), PyBytes_GET_SIZE(self.common_pairs))
        shared = self.kept.size
        there = PyDict_GetItem(topic.queues, send.queue_id)
        if there == NULL:
            return 0
        queue = <QueueTail?><object>there
        while part < end:  # look at all messages before the first one is stored
            if end - part < 22 or parts == PARTS_MAX:
                return 0
            length = <int32_t>big_32(part + 16)
            if length < 0 or length > end - part - 22:
                return 0
            properties = part + 20 + length + 2
            properties_bytes = big_16(properties - 2)
            if properties_bytes > end - properties or properties + properties_bytes - part != <int32_t>big_32(part):
                return 0
            if may_ask(properties, properties_bytes):
                return 0
            longest = max(longest, properties_bytes)
            part = properties + properties_bytes
            parts += 1
        if longest + 1 + shared + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX:
            return 0
        length = body_bytes + parts * (113 + shared + PyBytes_GET_SIZE(topic.encoded))
        if self.log_bytes + length > self.room:
            return 0
        self.ids.size = 0
        first = queue.next_offset
        part = body
        for number in range(parts):
            length = <int32_t>big_32(part + 16)
            properties = part + 20 + length + 2
            properties_bytes = big_16(properties - 2)
            self.part.size = 0
            append(&self.part, properties, properties_bytes)
            if properties_bytes and properties[properties_bytes - 1] != 2:
                append(&self.part, b"\x02", 1)
            append(&self.part, self.kept.data, shared)
            named = find_named(self.part.data, self.part.size)
            log_offset = self.log_end + self.log_bytes
            self.store(
                born_host, send, topic, queue, send.queue_id, <int32_t>big_32(part + 12), part + 20, length,
                self.part.data, self.part.size, tags_code(named.tags),
            )
            append_keys(&self.keys, topic.key_prefix, named.unique, named.keys, log_offset, self.store_ms)
            if number:
                append(&self.ids, b",", 1)
            self.append_id(log_offset)
            part = properties + properties_bytes
        self.acknowledge(link, send, first, found.named.unique, found.waits, parts)
        return 1

    cdef inline Py_ssize_t record_bytes(
        self, bytes born_host, TopicTarget topic, Py_ssize_t body_bytes, Py_ssize_t properties_bytes
    ):
        return (
            74 + PyBytes_GET_SIZE(born_host) + PyBytes_GET_SIZE(self.store_host) + body_bytes
            + PyBytes_GET_SIZE(topic.encoded) + properties_bytes + CRC_PROPERTY_BYTES
        )

    cdef int store(
        self, bytes born_host, Send *send, TopicTarget topic, QueueTail queue, int64_t queue_id, int32_t flag,
        Bytes body, Py_ssize_t body_bytes, Bytes properties, Py_ssize_t properties_bytes, int64_t code,
    ) except -1:
        """Append a record and stage its queue entry."""
        cdef Py_ssize_t size = self.record_bytes(born_host, topic, body_bytes, properties_bytes)
        cdef Py_ssize_t born_bytes = PyBytes_GET_SIZE(born_host), store_bytes = PyBytes_GET_SIZE(self.store_host)
        cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(topic.encoded)
        cdef int64_t log_offset = self.log_end + self.log_bytes
        cdef int64_t sys_flag = (
            send.sys_flag & ~<int64_t>TRANSACTION_BITS | (BORN_V6 if born_bytes == 20 else 0) | (STORE_V6 if store_bytes == 20 else 0)
        )
        cdef unsigned char *start
        cdef unsigned char *at
        cdef unsigned char *behind
        cdef bint is_large = body_bytes >= LARGE_BODY
        cdef Py_ssize_t copied = size - body_bytes if is_large else size
        cdef list parts = self.large_body(body, body_bytes) if is_large else None
        cdef uint32_t crc, body_crc = crc_of_parts(parts) if is_large else crc32_of(body, body_bytes)
        reserve(&self.records, copied)
        if queue.next_offset == queue.max_offset:
            self.queues.append(queue)
        start = at = self.records.data + self.records.size
        put_32(at, <uint32_t>size)
        put_32(at + MAGIC_AT, MAGIC_V1)
        put_32(at + BODY_CRC_AT, body_crc & CRC_MASK)
        put_32(at + QUEUE_ID_AT, <uint32_t>queue_id)
        put_32(at + FLAG_AT, <uint32_t>flag)
        put_64(at + QUEUE_OFFSET_AT, <uint64_t>queue.next_offset)
        put_64(at + LOG_OFFSET_AT, <uint64_t>log_offset)
        put_32(at + SYS_FLAG_AT, <uint32_t>sys_flag)
        put_64(at + BORN_MS_AT, <uint64_t>send.born_ms)
        at += BORN_HOST_AT
        memcpy(at, PyBytes_AS_STRING(born_host), born_bytes)
        at += born_bytes
        put_64(at, <uint64_t>self.store_ms)
        memcpy(at + 8, PyBytes_AS_STRING(self.store_host), store_bytes)
        at += 8 + store_bytes
        put_32(at + RECONSUME_BEHIND, <uint32_t>send.reconsume)
        put_64(at + PREPARED_BEHIND, 0)
        put_32(at + BODY_SIZE_BEHIND, <uint32_t>body_bytes)
        at += FIXED_BEHIND_BYTES
        behind = at
        if is_large:
            self.outside.append((at - self.records.data, parts))
        else:
            memcpy(at, body, body_bytes)
            at += body_bytes
        memcpy(at, PyBytes_AS_STRING(topic.encoded), topic_bytes)
        at += topic_bytes
        put_16(at, <uint32_t>(properties_bytes + CRC_PROPERTY_BYTES))
        memcpy(at + 2, properties, properties_bytes)
        at += 2 + properties_bytes
        if is_large:
            crc = crc32_more(crc32_join(crc32_of(start, behind - start), body_crc, body_bytes), behind, at - behind)
        else:
            crc = crc32_of(start, at - start)
        put_crc_property(at, crc & CRC_MASK)
        queue.stage_one(log_offset, <int32_t>size, code)
        self.records.size += copied
        self.log_bytes += size
        self.count += 1
        self.messages += 1
        self.body_bytes += body_bytes
        return 0

    cdef list large_body(self, Bytes body, Py_ssize_t size):
        """Return the parts of a large body; its bytes are shared."""
        if self.parts is not None:
            return self.parts
        return [memoryview(self.source)[body - <Bytes>PyBytes_AS_STRING(self.source):][:size]]

    cdef int take_end(self, int64_t link, SigningUser sender, Send *send) except -1:
        """End a transaction; return 0, with nothing changed, if the end is unusual, or not allowed."""
        cdef Header *header = &send.header
        cdef Text *given = header.ends
        cdef Text group = header.fields[1].text[<int>GROUP]
        cdef HalfProperties half
        cdef Record record
        cdef PyObject *found
        cdef object at, raw
        cdef Bytes data
        cdef Text kept
        cdef int64_t half_offset, log_offset, outcome, queue_id
        cdef Py_ssize_t size
        if header.ends_seen & 7 != 7 or not header.fields[1].seen & 1 or not group.size:
            return 0
        if not (
            read_number(given[<int>HALF_OFFSET], <int64_t>1 << 60, &half_offset)
            and read_number(given[<int>LOG_OFFSET], <int64_t>1 << 60, &log_offset)
            and read_number(given[<int>OUTCOME], INT32_MAX_VALUE, &outcome)
        ):
            return 0
        if outcome != COMMIT and outcome != ROLLBACK:
            return 0
        at = half_offset
        found = PyDict_GetItem(self.open_halves, at)
        if found == NULL or at in self.ended or (<object>found)[0] != log_offset:
            return 0
        if not may_send(sender, (<object>found)[1]):
            return 0
        raw = self.read_log(log_offset, (<object>found)[2])
        if type(raw) is not bytes:
            return 0
        data = <Bytes>PyBytes_AS_STRING(raw)
        size = PyBytes_GET_SIZE(raw)
        if not read_record(data, size, &record) or record.size != size or not is_sound(data, &record):
            return 0
        if record.magic != MAGIC_V1 or record.log_offset != log_offset or record.queue_offset != half_offset:
            return 0
        if record.sys_flag & TRANSACTION_BITS or not is_named(
            record.topic.data, record.topic.size, PyBytes_AS_STRING(HALF), PyBytes_GET_SIZE(HALF)
        ):
            return 0
        kept.data = record.properties.data
        kept.size = record.properties.size - CRC_PROPERTY_BYTES
        if kept.size <= 0 or not has_own_crc(&record) or not read_half(kept, &half):
            return 0
        if not is_named(group.data, group.size, <const char *>half.group.data, half.group.size):
            return 0
        if not self.is_named_by(header, half.named.unique):
            return 0
        if not read_number(half.queue_id, INT32_MAX_VALUE, &queue_id):
            return 0
        if outcome == COMMIT and not self.commit(data, &record, kept, &half, queue_id):
            return 0
        self.ended[at] = False
        self.ends.append(
            (
                half_offset,
                PyUnicode_DecodeUTF8(<char *>half.topic.data, half.topic.size, "strict"),
                record.born_ms,
                outcome == COMMIT,
            )
        )
        self.count += 1
        self.acknowledge_end(link, send)
        return 1

    cdef int commit(
        self, Bytes data, Record *record, Text kept, HalfProperties *half, int64_t queue_id
    ) except -1:
        """Store the message of a half message; return 0 if its queue is not open, or the file has no room."""
        cdef TopicTarget topic
        cdef QueueTail queue
        cdef Copy copy
        cdef Py_ssize_t size = copied_bytes(record, half.topic, kept)
        cdef object name = PyUnicode_DecodeUTF8(<char *>half.topic.data, half.topic.size, "strict")
        cdef PyObject *found = PyDict_GetItem(self.topics, name)
        if found == NULL:
            return 0
        topic = <TopicTarget?><object>found
        found = PyDict_GetItem(topic.queues, queue_id)
        if found == NULL or half.topic.size > 127 or PyBytes_GET_SIZE(topic.encoded) != half.topic.size + 1:
            return 0
        queue = <QueueTail?><object>found
        if self.log_bytes + size > self.room:
            return 0
        reserve(&self.records, size)
        if queue.next_offset == queue.max_offset:
            self.queues.append(queue)
        copy.queue_id = <int32_t>queue_id
        copy.queue_offset = queue.next_offset
        copy.log_offset = self.log_end + self.log_bytes
        copy.sys_flag = record.sys_flag | COMMIT
        copy.store_ms = self.store_ms
        copy.store_host = NULL
        copy.reconsume = record.reconsume
        copy.prepared = record.log_offset
        write_copy(self.records.data + self.records.size, data, record, &copy, half.topic, kept)
        queue.stage_one(copy.log_offset, <int32_t>size, tags_code(half.named.tags))
        append_keys(&self.keys, topic.key_prefix, half.named.unique, half.named.keys, copy.log_offset, self.store_ms)
        self.records.size += size
        self.log_bytes += size
        return 1

    cdef bint is_named_by(self, Header *header, Text unique) noexcept:
        """Whether an end names the message by its unique key, or by nothing."""
        cdef Text one = header.ends[<int>MESSAGE_ID]
        cdef Text other = header.ends[<int>TRANSACTION_ID]
        if not header.ends_seen >> <int>MESSAGE_ID & 1:
            one.size = 0
        if not header.ends_seen >> <int>TRANSACTION_ID & 1:
            other.size = 0
        if not unique.size or not (one.size or other.size):
            return True
        return is_named(one.data, one.size, <const char *>unique.data, unique.size) or is_named(
            other.data, other.size, <const char *>unique.data, unique.size
        )

    cdef int acknowledge_end(self, int64_t link, Send *send) except -1:
        """Prepare the response to an end: it waits like that to a send."""
        cdef Buffer *to = &self.answers
        cdef Py_ssize_t start = to.size
        if self.ack_count and (self.ack_link != link or not self.ack_waits):
            self.close_ack()
            start = to.size
        self.ack_link = link
        self.ack_waits = True
        self.ack_count += 1
        self.ack_end = self.log_end + self.log_bytes
        if send.header.flag & 2:
            return 0
        reserve(to, 200)
        if send.form == 1:
            to.size += 8 + 21
            self.put_binary_head(start, send)
            return 0
        return append_plain_answer(to, send.header.opaque)

    cdef int append_id(self, int64_t log_offset) except -1:
        """Append the offset id of a message to the ids of the response."""
        cdef int digit
        append(&self.ids, PyBytes_AS_STRING(self.store_host_hex), PyBytes_GET_SIZE(self.store_host_hex))
        reserve(&self.ids, 16)
        for digit in range(16):
            self.ids.data[self.ids.size + digit] = HEX[log_offset >> (60 - 4 * digit) & 15]
        self.ids.size += 16
        return 0

    cdef int acknowledge(
        self, int64_t link, Send *send, int64_t queue_offset, Text unique, bint waits, Py_ssize_t messages
    ) except -1:
        """Prepare the response to messages that were just stored."""
        cdef bint is_oneway = send.header.flag & 2 != 0
        if is_oneway:
            waits = False
        if self.ack_count and (self.ack_link != link or self.ack_waits != waits):
            self.close_ack()
        self.ack_link = link
        self.ack_waits = waits
        self.ack_count += messages
        self.ack_end = self.log_end + self.log_bytes
        if is_oneway:
            return 0
        if send.form == 0:
            return self.answer_json(send, queue_offset, unique)
        return self.answer_binary(send, queue_offset, unique)

    cdef int close_ack(self) except -1:
        self.acks.append(
            (self.ack_link, taken(&self.answers, self.ack_start), self.ack_end, self.ack_waits, self.ack_count)
        )
        self.ack_start = self.answers.size
        self.ack_count = 0
        return 0

    cdef int answer_json(self, Send *send, int64_t queue_offset, Text unique) except -1:
        cdef Buffer *to = &self.answers
        cdef Py_ssize_t start = to.size
        reserve(to, 320 + self.ids.size + unique.size)
        to.size += 8
        append(to, b'{"code":0,"extFields":{"MSG_REGION":', 36)
        append(to, PyBytes_AS_STRING(self.region_json), PyBytes_GET_SIZE(self.region_json))
        append(to, b',"TRACE_ON":"', 13)
        append(to, PyBytes_AS_STRING(self.trace_on), PyBytes_GET_SIZE(self.trace_on))
        append(to, b'","msgId":"', 11)
        append(to, self.ids.data, self.ids.size)
        append(to, b'","queueId":"', 13)
        append_number(to, send.queue_id)
        append(to, b'","queueOffset":"', 17)
        append_number(to, queue_offset)
        if unique.size:
            append(to, b'","transactionId":"', 19)
            append(to, unique.data, unique.size)
        if self.handle.size:
            append(to, b'","recallHandle":"', 18)
            append(to, self.handle.data, self.handle.size)
        append(to, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
        append_number(to, send.header.opaque)
        append(to, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
        append_number(to, VERSION)
        append(to, b"}", 1)
        put_32(to.data + start, <uint32_t>(to.size - start - 4))
        put_32(to.data + start + 4, <uint32_t>(to.size - start - 8))
        return 0

    cdef int answer_binary(self, Send *send, int64_t queue_offset, Text unique) except -1:
        cdef Buffer *to = &self.answers
        cdef Py_ssize_t start = to.size
        reserve(to, 320 + self.ids.size + unique.size)
        to.size += 8 + 21
        if PyBytes_GET_SIZE(self.region):
            self.append_field(b"MSG_REGION", 10, <Bytes>PyBytes_AS_STRING(self.region), PyBytes_GET_SIZE(self.region))
        self.append_field(b"TRACE_ON", 8, <Bytes>PyBytes_AS_STRING(self.trace_on), PyBytes_GET_SIZE(self.trace_on))
        self.append_field(b"msgId", 5, self.ids.data, self.ids.size)
        self.part.size = 0
        append_number(&self.part, send.queue_id)
        self.append_field(b"queueId", 7, self.part.data, self.part.size)
        self.part.size = 0
        append_number(&self.part, queue_offset)
        self.append_field(b"queueOffset", 11, self.part.data, self.part.size)
        if unique.size:
            self.append_field(b"transactionId", 13, unique.data, unique.size)
        if self.handle.size:
            self.append_field(b"recallHandle", 12, self.handle.data, self.handle.size)
        self.put_binary_head(start, send)
        return 0

    cdef void put_binary_head(self, Py_ssize_t start, Send *send) noexcept:
        """Write what stands before the fields of a binary header, which end the response."""
        cdef unsigned char *head = self.answers.data + start
        cdef Py_ssize_t size = self.answers.size - start
        put_32(head, <uint32_t>(size - 4))
        put_32(head + 4, <uint32_t>(1 << 24 | (size - 8)))
        put_16(head + 8, 0)
        head[10] = 3  # PYTHON
        put_16(head + 11, VERSION)
        put_32(head + 13, <uint32_t>send.header.opaque)
        put_32(head + 17, 1)
        put_32(head + 21, 0)
        put_32(head + 25, <uint32_t>(size - 29))

    cdef int append_field(self, Bytes name, int name_bytes, Bytes value, Py_ssize_t value_bytes) except -1:
        cdef Buffer *to = &self.answers
        reserve(to, 6 + name_bytes + value_bytes)
        put_16(to.data + to.size, name_bytes)
        memcpy(to.data + to.size + 2, name, name_bytes)
        put_32(to.data + to.size + 2 + name_bytes, <uint32_t>value_bytes)
        memcpy(to.data + to.size + 6 + name_bytes, value, value_bytes)
        to.size += 6 + name_bytes + value_bytes
        return 0

    cdef tuple taken_records(self):
        """Return the buffers that make the records when they are written one behind the other."""
        cdef list buffers = []
        cdef Py_ssize_t at = 0, place
        cdef list body
        for place, body in self.outside:
            buffers.append(PyBytes_FromStringAndSize(<char *>self.records.data + at, place - at))
            buffers += body
            at = place
        if self.records.size > at:
            buffers.append(taken(&self.records, at))
        return tuple(buffers)

    def flush(self):
        if self.ack_count:
            self.close_ack()
        sends = TakenSends(
            self.log_end, self.taken_records(), self.queues, taken(&self.keys, 0), self.store_ms, self.acks,
            self.messages, self.body_bytes, self.timed, self.halves, self.ends,
        )
        self.begin(0, 0, 0, 0)
        return sends


cdef uint32_t crc_of_parts(list parts) except? 0:
    cdef const unsigned char[::1] view
    cdef uint32_t crc = 0
    cdef object part
    for part in parts:
        if len(part):
            view = part
            crc = crc_unlocked(crc, &view[0], view.shape[0])
    return crc


cdef uint32_t crc_unlocked(uint32_t crc, Bytes data, Py_ssize_t size):
    """Return the checksum of more bytes; of many without the lock of the interpreter."""
    if size <= LOCKED_BYTES_MAX:
        return crc32_more(crc, data, size)
    with nogil:
        crc = crc32_more(crc, data, size)
    return crc


cdef bint may_ask(Bytes data, Py_ssize_t size) noexcept:
    """Whether the Python code must look at a message within a batch: it asks to be delivered later, or for more."""
    cdef Bytes at = data
    cdef Bytes end = data + size
    cdef Bytes mark, split
    cdef int meaning
    while at < end:
        mark = <Bytes>memchr(at, 2, end - at)
        split = <Bytes>memchr(at, 1, (end if mark == NULL else mark) - at)
        if split != NULL:
            meaning = meaning_of(at, split - at)
            if meaning in (DELAY_LEVEL, IS_HALF, INNER_MESSAGES) or is_timer(at, split - at):
                return True
        if mark == NULL:
            return False
        at = mark + 1
    return False
