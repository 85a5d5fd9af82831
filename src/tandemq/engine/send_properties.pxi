# Properties of sends: which are stored, and what they mean.

cdef enum TimerKind:
    NO_TIMER
    DELAY_SEC
    DELAY_MS
    DELIVER_MS


cdef struct Properties:
    Named named
    Text delay
    Text timer
    TimerKind timer_kind
    bint waits
    bint is_half  # of a transaction
    bint has_group


cdef inline bint is_false(Text value) noexcept:
    """Whether a text is "false", in upper or lower case."""
    cdef int at
    if value.size != 5:
        return False
    for at in range(5):
        if value.data[at] | 0x20 != FALSE[at]:
            return False
    return True


cdef inline bint is_unusual(Bytes name, Py_ssize_t size) noexcept:
    """Whether the Python code must look at a property: timers, names that brokers set, and rare requests."""
    if size >= 6 and memcmp(name, b"TIMER_", 6) == 0:
        return True
    return (
        is_named(name, size, b"__CRC32#", 8)
        or is_named(name, size, b"__transactionId__", 17)
        or is_named(name, size, b"CLUSTER", 7)
        or is_named(name, size, b"MSG_REGION", 10)
        or is_named(name, size, b"TRACE_ON", 8)
        or is_named(name, size, b"REAL_TOPIC", 10)
        or is_named(name, size, b"REAL_QID", 8)
        or is_named(name, size, b"TRANSACTION_CHECK_TIMES", 23)
        or is_named(name, size, b"TRAN_PREPARED_QUEUE_OFFSET", 26)
        or is_named(name, size, b"CHECK_IMMUNITY_TIME_IN_SECONDS", 30)
        or is_named(name, size, b"INNER_NUM", 9)
    )


cdef inline TimerKind timer_kind(Bytes name, Py_ssize_t size) noexcept:
    """Return which time of a delivery a property is."""
    if size < 14 or memcmp(name, b"TIMER_", 6):
        return NO_TIMER
    if is_named(name, size, b"TIMER_DELAY_MS", 14):
        return DELAY_MS
    if is_named(name, size, b"TIMER_DELAY_SEC", 15):
        return DELAY_SEC
    return DELIVER_MS if is_named(name, size, b"TIMER_DELIVER_MS", 16) else NO_TIMER


cdef int keep_properties(Text raw, bint is_batch, Buffer *kept, Properties *found) except -1:
    """Append the pairs to store; return 0 if a property is unusual. WAIT is dropped, of a batch UNIQ_KEY too."""
    cdef Text names[NAMES_MAX]
    cdef int count = 0, number
    cdef TimerKind kind
    cdef Py_ssize_t start = 0, stop, split
    cdef Bytes mark
    cdef Text name, value
    found.named = find_named(NULL, 0)
    found.delay.size = 0
    found.delay.data = NULL
    found.timer_kind = NO_TIMER
    found.waits = True
    found.is_half = found.has_group = False
    reserve(kept, raw.size + 1)
    while start < raw.size:
        mark = <Bytes>memchr(raw.data + start, 2, raw.size - start)
        stop = mark - raw.data if mark != NULL else raw.size
        mark = <Bytes>memchr(raw.data + start, 1, stop - start)
        split = mark - raw.data if mark != NULL else stop
        name.data = raw.data + start
        name.size = split - start
        value.data = raw.data + split + 1
        value.size = stop - split - 1
        start = stop + 1
        if name.size <= 0 or value.size <= 0:
            continue
        kind = timer_kind(name.data, name.size)
        if count == NAMES_MAX or (not kind and is_unusual(name.data, name.size)):
            return 0
        if kind:
            if is_batch or found.timer_kind:
                return 0
            found.timer_kind = kind
            found.timer = value
        for number in range(count):
            if is_named(names[number].data, names[number].size, <const char *>name.data, name.size):
                return 0
        names[count] = name
        count += 1
        if is_named(name.data, name.size, b"WAIT", 4):
            found.waits = not is_false(value)
            continue
        if is_named(name.data, name.size, b"UNIQ_KEY", 8):
            found.named.unique = value
            if is_batch:
                continue
        elif is_named(name.data, name.size, b"KEYS", 4):
            found.named.keys = value
        elif is_named(name.data, name.size, b"TAGS", 4):
            found.named.tags = value
        elif is_named(name.data, name.size, b"DELAY", 5):
            found.delay = value
        elif is_named(name.data, name.size, b"PGROUP", 6):
            found.has_group = True
        elif is_named(name.data, name.size, b"TRAN_MSG", 8):
            if not is_named(value.data, value.size, b"true", 4):
                return 0
            found.is_half = True
        append(kept, name.data, stop - split + name.size)
        append(kept, b"\x02", 1)
    return 1


cdef struct HalfProperties:
    Named named
    Text group
    Text topic
    Text queue_id


cdef bint read_half(Text raw, HalfProperties *found) noexcept:
    """Read the properties of a half message; False unless they are as this broker stores them, and ask for nothing
    else than a delivery at once after the commit."""
    cdef Text names[NAMES_MAX]
    cdef int count = 0, number
    cdef Py_ssize_t start = 0, stop, split
    cdef Bytes mark
    cdef Text name, value
    found.named = find_named(raw.data, raw.size)
    found.group.size = found.topic.size = found.queue_id.size = 0
    if not raw.size or raw.data[raw.size - 1] != 2 or not is_utf8(raw.data, raw.size):
        return False
    while start < raw.size:
        mark = <Bytes>memchr(raw.data + start, 2, raw.size - start)
        stop = mark - raw.data
        mark = <Bytes>memchr(raw.data + start, 1, stop - start)
        if mark == NULL:
            return False
        split = mark - raw.data
        name.data = raw.data + start
        name.size = split - start
        value.data = raw.data + split + 1
        value.size = stop - split - 1
        start = stop + 1
        if not name.size or not value.size or count == NAMES_MAX:
            return False
        for number in range(count):
            if is_named(names[number].data, names[number].size, <const char *>name.data, name.size):
                return False
        names[count] = name
        count += 1
        if is_named(name.data, name.size, b"PGROUP", 6):
            found.group = value
        elif is_named(name.data, name.size, b"REAL_TOPIC", 10):
            found.topic = value
        elif is_named(name.data, name.size, b"REAL_QID", 8):
            found.queue_id = value
        elif is_named(name.data, name.size, b"DELAY", 5) or is_named(name.data, name.size, b"__CRC32#", 8):
            return False
        elif is_named(name.data, name.size, b"CHECK_IMMUNITY_TIME_IN_SECONDS", 30):
            return False
    return found.group.size and found.topic.size and found.queue_id.size


cdef bint is_plain_json(Text text) noexcept:
    """Whether a text stands in a JSON string as it is."""
    cdef Py_ssize_t at
    for at in range(text.size):
        if text.data[at] < 32 or text.data[at] == 34 or text.data[at] == 92:
            return False
    return True
