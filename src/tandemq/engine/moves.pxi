# Records that are stored again in other queues: delivered delayed and timed messages, and changed copies.

cdef enum:
    ADDED_BYTES_MAX = 96


cdef struct Moved:
    Text topic
    Text queue_id
    Named named
    Py_ssize_t kept
    int names
    bint has_pair


cdef bint read_moved(Text properties, Text pair, Moved *moved, unsigned char *to) noexcept:
    """Copy all properties to `to`; return False if a broker would not have written them so.

    Sets the fields of `moved`; `has_pair`: whether `pair` is one of the properties.
    """
    cdef Bytes at = properties.data
    cdef Bytes end = properties.data + properties.size
    cdef Bytes stop, split
    cdef Text[64] names
    cdef Text name, value
    cdef int seen, meaning
    memset(moved, 0, sizeof(Moved))
    while at < end:
        stop = <Bytes>memchr(at, 2, end - at)
        if stop == NULL or moved.names == 64:
            return False
        split = <Bytes>memchr(at, 1, stop - at)
        if split == NULL or split == at or split + 1 == stop:
            return False
        name.data = at
        name.size = split - at
        value.data = split + 1
        value.size = stop - split - 1
        for seen in range(moved.names):
            if is_same(names[seen], name):
                return False
        names[moved.names] = name
        moved.names += 1
        meaning = meaning_of(at, name.size)
        if meaning == CRC_MEANT or meaning == TIMER_MARK:
            return False
        moved.has_pair = moved.has_pair or is_named(at, stop + 1 - at, <const char *>pair.data, pair.size)
        memcpy(to + moved.kept, at, stop + 1 - at)
        moved.kept += stop + 1 - at
        if meaning == REAL_TOPIC_MEANT:
            moved.topic = value
        elif meaning == REAL_QUEUE:
            moved.queue_id = value
        elif meaning == UNIQUE_KEY:
            moved.named.unique = value
        elif meaning == KEYS:
            moved.named.keys = value
        elif meaning == TAGS:
            moved.named.tags = value
        at = stop + 1
    return True


cdef bint read_queue_id(Text text, int64_t *number) noexcept:
    """Parse a decimal queue id of at most 9 digits; return False if the text is none."""
    cdef Py_ssize_t at
    number[0] = 0
    if not 0 < text.size < 10:
        return False
    for at in range(text.size):
        if not 48 <= text.data[at] <= 57:
            return False
        number[0] = 10 * number[0] + text.data[at] - 48
    return True


cdef bint is_text(Bytes data, Py_ssize_t size):
    """Whether bytes are UTF-8."""
    cdef unsigned char all_bits = 0
    cdef Py_ssize_t at
    for at in range(size):
        all_bits |= data[at]
    if not all_bits & 0x80:
        return True
    try:
        PyUnicode_DecodeUTF8(<char *>data, size, "strict")
    except UnicodeDecodeError:
        return False
    return True


def move_records(
    bytes data, int64_t base, bytes entries, int64_t queue_offset, bytes topic, int32_t queue_id, rule,
    int64_t log_offset, Py_ssize_t room, int64_t store_ms, queue_for,
):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
    cdef Bytes entry = <Bytes>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(data), size, count = 0
    cdef Py_ssize_t rows = PyBytes_GET_SIZE(entries) // ENTRY_BYTES
    cdef Record record
    cdef Moved moved
    cdef Copy copy
    cdef Text pair, properties
    cdef bytes wanted = rule[0]
    cdef int64_t precision_ms = rule[1], when_ms
    cdef bint is_timed = precision_ms > 0
    cdef int64_t at, target_id, end = log_offset
    cdef Buffer records, keys, kept
    cdef QueueTail queue
    cdef object found
    cdef dict known = {}
    cdef list queues = []
    cdef tuple place
    pair.data = <Bytes>PyBytes_AS_STRING(wanted)
    pair.size = PyBytes_GET_SIZE(wanted)
    records.data = keys.data = kept.data = NULL
    records.size = records.room = keys.size = keys.room = kept.size = kept.room = 0
    try:
        reserve(&kept, PROPERTIES_BYTES_MAX + ADDED_BYTES_MAX)
        for count in range(rows + 1):
            if count == rows:
                break
            at = <int64_t>big_64(entry) - base
            size = <int32_t>big_32(entry + 8)
            if at < 0 or size < RECORD_BYTES_MIN or at + size > length:
                break
            if not read_record(raw + at, size, &record) or record.size != size:
                break
            if (
                record.log_offset != base + at
                or record.queue_id != queue_id
                or record.queue_offset != queue_offset + count
                or not is_named(record.topic.data, record.topic.size, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
                or (not is_timed and <int64_t>big_64(entry + 12) < record.store_ms)
                or record.magic != MAGIC_V1
                or record.sys_flag & (BORN_V6 | STORE_V6)
                or record.sys_flag & TRANSACTION_BITS in (PREPARED, ROLLBACK)
                or (is_timed and record.sys_flag & TRANSACTION_BITS)
                or not is_sound(raw + at, &record)
            ):
                break
            properties = record.properties
            if not has_own_crc(&record):
                break
            properties.size -= CRC_PROPERTY_BYTES
            if not read_moved(properties, pair, &moved, kept.data) or (is_timed and not moved.has_pair):
                break
            if not 0 < moved.topic.size <= 127 or not read_queue_id(moved.queue_id, &target_id):
                break
            if is_schedule(moved.topic) or not is_text(properties.data, properties.size):
                break
            if is_timed:
                when_ms = record.store_ms - record.store_ms % precision_ms
                kept.size = moved.kept
                append(&kept, b"TIMER_ENQUEUE_MS\x01", 17)
                append_number(&kept, when_ms)
                append(&kept, b"\x02TIMER_DEQUEUE_MS\x01", 18)
                append_number(&kept, store_ms)
                append(&kept, b"\x02", 1)
                moved.kept = kept.size
                if moved.kept + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX:
                    break
            place = (moved.topic.data[:moved.topic.size], target_id)
            found = known.get(place)
            if found is None:
                found = queue_for(place[0], target_id)
                if found is None:
                    break
                known[place] = found
            queue = <QueueTail?>found
            properties.data = kept.data
            properties.size = moved.kept
            size = copied_bytes(&record, moved.topic, properties)
            if records.size + size > room:
                break
            reserve(&records, size)
            copy.queue_id = <int32_t>target_id
            copy.queue_offset = queue.next_offset
            copy.log_offset = end
            copy.sys_flag = record.sys_flag
            copy.store_ms = store_ms
            copy.store_host = NULL
            copy.reconsume = record.reconsume
            copy.prepared = record.log_offset + 1 if is_timed else 0
            write_copy(records.data + records.size, raw + at, &record, &copy, moved.topic, properties)
            if queue.next_offset == queue.max_offset:
                queues.append(queue)
            queue.stage_one(end, <int32_t>size, tags_code(moved.named.tags))
            append_keys(
                &keys,
                hash_more(hash_more(0, moved.topic.data, moved.topic.size), b"#", 1),
                moved.named.unique,
                moved.named.keys,
                end,
                store_ms,
            )
            records.size += size
            end += size
            entry += ENTRY_BYTES
        return MovedRecords(count, taken(&records, 0), queues, taken(&keys, 0))
    finally:
        PyMem_Free(records.data)
        PyMem_Free(keys.data)
        PyMem_Free(kept.data)


cdef bint is_one_of(Text name, tuple names):
    """Whether a name is one of `names`, which are bytes."""
    cdef bytes other
    for other in names:
        if is_named(name.data, name.size, PyBytes_AS_STRING(other), PyBytes_GET_SIZE(other)):
            return True
    return False


cdef int copy_properties(Text properties, tuple dropped, uint64_t *seen, tuple defaults, Buffer *kept) except -1:
    """Copy the properties that are not dropped; return False if a broker would not have written them so.

    Sets the bit of `seen` with the index of each default whose name is among the properties.
    """
    cdef Bytes at = properties.data
    cdef Bytes end = properties.data + properties.size
    cdef Bytes stop, split
    cdef Text[64] names
    cdef Text name
    cdef int count = 0, number
    cdef bytes other
    seen[0] = 0
    while at < end:
        stop = <Bytes>memchr(at, 2, end - at)
        if stop == NULL or count == 64:
            return False
        split = <Bytes>memchr(at, 1, stop - at)
        if split == NULL or split == at or split + 1 == stop:
            return False
        name.data = at
        name.size = split - at
        for number in range(count):
            if is_same(names[number], name):
                return False
        names[count] = name
        count += 1
        if meaning_of(at, name.size) == CRC_MEANT:
            return False
        for number in range(<int>len(defaults)):
            other = defaults[number][0]
            if is_named(name.data, name.size, PyBytes_AS_STRING(other), PyBytes_GET_SIZE(other)):
                seen[0] |= <uint64_t>1 << number
        if not is_one_of(name, dropped):
            append(kept, at, stop + 1 - at)
        at = stop + 1
    return True


def copy_record(
    bytes data, changes, bytes topic, int32_t queue_id, int64_t queue_offset, int64_t store_ms, reserve_bytes
):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Record record
    cdef Copy copy
    cdef Text name, properties
    cdef Buffer kept
    cdef bytes copied, pair, host = changes.store_host
    cdef tuple dropped = changes.drop, defaults = changes.defaults
    cdef uint64_t seen
    cdef int number
    cdef unsigned char *to
    name.data = <Bytes>PyBytes_AS_STRING(topic)
    name.size = PyBytes_GET_SIZE(topic)
    kept.data = NULL
    kept.size = kept.room = 0
    if (
        not read_record(raw, size, &record)
        or record.size != size
        or record.magic != MAGIC_V1
        or name.size > 127
        or not has_own_crc(&record)
        or not is_sound(raw, &record)
        or (host is not None and PyBytes_GET_SIZE(host) != record.behind - record.store_at - 8)
    ):
        return copy_record_in_python(data, changes, topic, queue_id, queue_offset, store_ms, reserve_bytes)
    properties = record.properties
    properties.size -= CRC_PROPERTY_BYTES
    try:
        if not is_text(properties.data, properties.size) or not copy_properties(
            properties, dropped, &seen, defaults, &kept
        ):
            return copy_record_in_python(data, changes, topic, queue_id, queue_offset, store_ms, reserve_bytes)
        for number in range(<int>len(defaults)):
            if not seen >> number & 1:
                pair = b"%b\x01%b\x02" % defaults[number]
                append(&kept, PyBytes_AS_STRING(pair), PyBytes_GET_SIZE(pair))
        pair = changes.add
        append(&kept, PyBytes_AS_STRING(pair), PyBytes_GET_SIZE(pair))
        properties.data = kept.data
        properties.size = kept.size
        if kept.size + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX:
            raise RecordTooLarge(
                f"the properties take {kept.size + CRC_PROPERTY_BYTES} bytes, at most {PROPERTIES_BYTES_MAX} fit"
            )
        copied = PyBytes_FromStringAndSize(NULL, copied_bytes(&record, name, properties))
        copy.queue_id = queue_id
        copy.queue_offset = queue_offset
        copy.log_offset = reserve_bytes(len(copied))
        copy.sys_flag = <int32_t>changes.sys_flag & ~(BORN_V6 | STORE_V6) | record.sys_flag & (BORN_V6 | STORE_V6)
        copy.store_ms = store_ms
        copy.store_host = NULL
        if host is not None:
            copy.store_host = <Bytes>PyBytes_AS_STRING(host)
        copy.reconsume = record.reconsume if changes.reconsume_times is None else <int32_t>changes.reconsume_times
        copy.prepared = changes.prepared_offset
        to = <unsigned char *>PyBytes_AS_STRING(copied)
        write_copy(to, raw, &record, &copy, name, properties)
        return CopiedRecord(copied, taken(&kept, 0), copy.log_offset)
    finally:
        PyMem_Free(kept.data)
