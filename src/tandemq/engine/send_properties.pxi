# Properties of sends: which are stored, and what they mean.

cdef struct Properties:
    Named named
    Text delay
    Text timer
    Text priority
    int timer_kind  # What asks for a time of delivery; PLAIN: nothing.
    bint waits
    bint is_half  # of a transaction
    bint has_group
    bint has_sharding_key


cdef inline bint is_false(Text value) noexcept:
    """Whether a text is "false", in upper or lower case."""
    cdef int at
    if value.size != 5:
        return False
    for at in range(5):
        if value.data[at] | 0x20 != FALSE[at]:
            return False
    return True


cdef int keep_properties(Text raw, bint is_batch, Buffer *kept, Properties *found) except -1:
    """Append the pairs to store; return 0 if a property is unusual. WAIT is dropped, of a batch UNIQ_KEY too."""
    cdef Text names[NAMES_MAX]
    cdef int count = 0, number
    cdef int meaning
    cdef Py_ssize_t start = 0, stop, split
    cdef Bytes mark
    cdef Text name, value
    found.named = find_named(NULL, 0)
    found.delay.size = 0
    found.delay.data = NULL
    found.priority.size = 0
    found.timer_kind = PLAIN
    found.waits = True
    found.is_half = found.has_group = found.has_sharding_key = False
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
        meaning = meaning_of(name.data, name.size)
        if count == NAMES_MAX or meaning >= LEFT:
            return 0
        if meaning == DELAY_SECONDS or meaning == DELAY_MS or meaning == DELIVER_AT_MS:
            if is_batch or found.timer_kind:
                return 0
            found.timer_kind = meaning
            found.timer = value
        for number in range(count):
            if is_named(names[number].data, names[number].size, <const char *>name.data, name.size):
                return 0
        names[count] = name
        count += 1
        if meaning == WAIT:
            found.waits = not is_false(value)
            continue
        if meaning == UNIQUE_KEY:
            found.named.unique = value
            if is_batch:
                continue
        elif meaning == KEYS:
            found.named.keys = value
        elif meaning == TAGS:
            found.named.tags = value
        elif meaning == DELAY_LEVEL:
            found.delay = value
        elif meaning == PRODUCER_GROUP:
            found.has_group = True
        elif meaning == PRIORITY_MEANT:
            found.priority = value
        elif meaning == SHARDING_KEY:
            found.has_sharding_key = True
        elif meaning == IS_HALF:
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
    cdef int count = 0, number, meaning
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
        meaning = meaning_of(name.data, name.size)
        if meaning == PRODUCER_GROUP:
            found.group = value
        elif meaning == REAL_TOPIC_MEANT:
            found.topic = value
        elif meaning == REAL_QUEUE:
            found.queue_id = value
        elif meaning == DELAY_LEVEL or meaning == CRC_MEANT or meaning == IMMUNITY:
            return False
    return found.group.size and found.topic.size and found.queue_id.size


cdef bint is_plain_json(Text text) noexcept:
    """Whether a text stands in a JSON string as it is."""
    cdef Py_ssize_t at
    for at in range(text.size):
        if text.data[at] < 32 or text.data[at] == 34 or text.data[at] == 92:
            return False
    return True
