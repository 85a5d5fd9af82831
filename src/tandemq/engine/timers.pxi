# Records of timed messages: what the index needs of each.

cdef bint is_topic_name(Text name) noexcept:
    """Whether a name has the characters and the length of topics."""
    cdef Py_ssize_t at
    cdef unsigned char letter
    if not 0 < name.size <= 127:
        return False
    for at in range(name.size):
        letter = name.data[at]
        if not (48 <= letter <= 57 or 65 <= letter <= 90 or 97 <= letter <= 122 or letter in (37, 45, 95, 124)):
            return False
    return True


cdef object timer_head(Record *record):
    """Return what the index needs of a record; None if the Python code must look at it."""
    cdef Bytes data = record.properties.data, end
    cdef Py_ssize_t size = record.properties.size, start = 0, stop, split
    cdef Text value, topic, key, out
    cdef Bytes name
    cdef int meaning
    cdef bint is_delete = False, is_rolled = False
    cdef int64_t out_ms = 0
    topic.size = key.size = out.size = 0
    topic.data = key.data = out.data = NULL
    while start < size:
        end = <Bytes>memchr(data + start, 2, size - start)
        stop = end - data if end != NULL else size
        end = <Bytes>memchr(data + start, 1, stop - start)
        name = data + start
        split = end - data if end != NULL else stop
        value.data = data + split + 1
        value.size = stop - split - 1
        if split > start and value.size > 0:
            meaning = meaning_of(name, split - start)
            if meaning == TIMER_OUT:
                out = value
            elif meaning == REAL_TOPIC_MEANT:
                topic = value
            elif meaning == UNIQUE_KEY:
                key = value
            elif meaning == TIMER_DELETE:
                is_delete = True
            elif meaning == TIMER_ROLLS:
                is_rolled = not is_named(value.data, value.size, b"0", 1)
        start = stop + 1
    if record.sys_flag & TRANSACTION_BITS or record.prepared < 0 or not is_topic_name(topic):
        return None
    if not read_number(out, <int64_t>1 << 60, &out_ms):
        return None
    return (
        out_ms,
        PyUnicode_DecodeUTF8(<char *>topic.data, topic.size, "replace"),
        PyUnicode_DecodeUTF8(<char *>key.data, key.size, "replace") if key.size else "",
        is_delete,
        is_rolled,
        record.prepared - 1,
        record.store_ms,
    )


def timer_heads(bytes data, int64_t base, bytes entries, int64_t queue_offset, bytes topic):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
    cdef Bytes entry = <Bytes>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t number, length = PyBytes_GET_SIZE(data)
    cdef int64_t at, size
    cdef Record record
    cdef list found = []
    for number in range(PyBytes_GET_SIZE(entries) // ENTRY_BYTES):
        at = <int64_t>(big_64(entry) - <uint64_t>base)
        size = <int32_t>big_32(entry + 8)
        entry += ENTRY_BYTES
        if not (RECORD_BYTES_MIN <= size <= length and 0 <= at <= length - size):
            found.append(None)
        elif not read_record(raw + at, size, &record) or record.size != size or record.log_offset != base + at:
            found.append(None)
        elif record.queue_id or record.queue_offset != queue_offset + number:
            found.append(None)
        elif not is_named(
            record.topic.data, record.topic.size, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
        ):
            found.append(None)
        else:
            found.append(timer_head(&record))
    return found
