# Records: parsed, verified, dispatched to queues and index.

cdef enum:  # Positions of fields in a record; those behind the broker's host are counted from its end.
    MAGIC_AT = 4
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    LOG_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_MS_AT = 40
    BORN_HOST_AT = 48
    RECONSUME_BEHIND = 0
    PREPARED_BEHIND = 4
    BODY_SIZE_BEHIND = 12
    FIXED_BEHIND_BYTES = 16


cdef struct Record:
    Py_ssize_t size
    uint32_t magic
    int32_t queue_id
    int64_t queue_offset
    int64_t log_offset
    int32_t sys_flag
    int64_t born_ms
    Py_ssize_t store_at  # Position of the store time, which the broker's host follows.
    Py_ssize_t behind  # Position of the host's end.
    int64_t store_ms
    int32_t reconsume
    int64_t prepared
    uint32_t body_crc
    Bytes body
    Py_ssize_t body_size
    Text topic
    Text properties


cdef enum:
    HEAD_V4_BYTES = 88
    HEAD_BYTES_MAX = 112


cdef inline Py_ssize_t read_head(Bytes data, Py_ssize_t size, Record *record) noexcept:
    """Parse the fields before the body, which has `size` bytes with what is behind it at most; return their size or 0."""
    cdef Py_ssize_t head
    record.sys_flag = <int32_t>big_32(data + SYS_FLAG_AT)
    record.store_at = BORN_HOST_AT + (20 if record.sys_flag & BORN_V6 else 8)
    record.behind = record.store_at + 8 + (20 if record.sys_flag & STORE_V6 else 8)
    head = record.behind + FIXED_BEHIND_BYTES
    if size < head + 3:
        return 0
    record.size = <int32_t>big_32(data)
    record.magic = big_32(data + MAGIC_AT)
    if record.magic != MAGIC_V1 and record.magic != MAGIC_V2:
        return 0
    record.body_crc = big_32(data + BODY_CRC_AT)
    record.queue_id = <int32_t>big_32(data + QUEUE_ID_AT)
    record.queue_offset = <int64_t>big_64(data + QUEUE_OFFSET_AT)
    record.log_offset = <int64_t>big_64(data + LOG_OFFSET_AT)
    record.born_ms = <int64_t>big_64(data + BORN_MS_AT)
    record.store_ms = <int64_t>big_64(data + record.store_at)
    record.reconsume = <int32_t>big_32(data + record.behind + RECONSUME_BEHIND)
    record.prepared = <int64_t>big_64(data + record.behind + PREPARED_BEHIND)
    record.body_size = <int32_t>big_32(data + record.behind + BODY_SIZE_BEHIND)
    record.body = data + head
    if record.size > size or record.body_size < 0 or head + record.body_size + 3 > record.size:
        return 0
    return head


cdef inline bint read_tail(Bytes data, Py_ssize_t size, Record *record) noexcept:
    """Parse topic and properties, which must have `size` bytes."""
    cdef Py_ssize_t at, length
    if record.magic == MAGIC_V1:
        length = data[0]
        at = 1
        if length > 127:
            return False
    else:
        if size < 2:
            return False
        length = big_16(data)
        at = 2
    if at + length + 2 > size:
        return False
    record.topic.data = data + at
    record.topic.size = length
    at += length
    record.properties.size = big_16(data + at)
    record.properties.data = data + at + 2
    return record.properties.size <= PROPERTIES_BYTES_MAX and at + 2 + record.properties.size == size


cdef bint read_record(Bytes data, Py_ssize_t size, Record *record) noexcept:
    """Parse the record at `data`, but not its checksums; False if it is not one that ends within `size` bytes."""
    cdef Py_ssize_t at
    if size < RECORD_BYTES_MIN:
        return False
    at = read_head(data, size, record)
    if not at:
        return False
    at += record.body_size
    return read_tail(data + at, record.size - at, record)


cdef struct Copy:
    int32_t queue_id
    int64_t queue_offset
    int64_t log_offset
    int32_t sys_flag
    int64_t store_ms
    Bytes store_host  # Of as many bytes as that of the record; NULL: that of the record.
    int32_t reconsume
    int64_t prepared


cdef inline Py_ssize_t copied_bytes(Record *record, Text topic, Text properties) noexcept:
    """Return the size of a record with another topic, of at most 127 bytes, and other properties; its own CRC is added."""
    return (
        record.behind + FIXED_BEHIND_BYTES + record.body_size + 1 + topic.size + 2 + properties.size + CRC_PROPERTY_BYTES
    )


cdef void write_copy(
    unsigned char *to, Bytes data, Record *record, const Copy *copy, Text topic, Text properties
) noexcept:
    """Write a record with magic V1 at `data` with other values, another topic and other properties."""
    cdef Py_ssize_t at = record.behind + FIXED_BEHIND_BYTES + record.body_size
    memcpy(to, data, at)
    put_32(to, <uint32_t>copied_bytes(record, topic, properties))
    put_32(to + QUEUE_ID_AT, <uint32_t>copy.queue_id)
    put_64(to + QUEUE_OFFSET_AT, <uint64_t>copy.queue_offset)
    put_64(to + LOG_OFFSET_AT, <uint64_t>copy.log_offset)
    put_32(to + SYS_FLAG_AT, <uint32_t>copy.sys_flag)
    put_64(to + record.store_at, <uint64_t>copy.store_ms)
    if copy.store_host != NULL:
        memcpy(to + record.store_at + 8, copy.store_host, record.behind - record.store_at - 8)
    put_32(to + record.behind + RECONSUME_BEHIND, <uint32_t>copy.reconsume)
    put_64(to + record.behind + PREPARED_BEHIND, <uint64_t>copy.prepared)
    to[at] = <unsigned char>topic.size
    memcpy(to + at + 1, topic.data, topic.size)
    at += 1 + topic.size
    put_16(to + at, <uint32_t>(properties.size + CRC_PROPERTY_BYTES))
    if properties.size:  # without any they may have no memory, and memcpy wants some
        memcpy(to + at + 2, properties.data, properties.size)
    at += 2 + properties.size
    put_crc_property(to + at, crc32_of(to, at) & CRC_MASK)


cdef inline bint has_own_crc(Record *record) noexcept:
    """Whether the last of a record's properties is its CRC."""
    cdef Py_ssize_t size = record.properties.size - CRC_PROPERTY_BYTES
    return size >= 0 and memcmp(record.properties.data + size, CRC_NAME, 9) == 0


cdef bint is_sound(Bytes data, Record *record) noexcept:
    """Whether the record's checksum is right: its own, or that of its body if it has none."""
    cdef Bytes end = data + record.size
    cdef uint32_t crc
    cdef int at, same = 0
    if memcmp(end - CRC_PROPERTY_BYTES, CRC_NAME, 9) == 0:
        crc = crc32_of(data, record.size - CRC_PROPERTY_BYTES) & CRC_MASK
        for at in range(10):
            if end[at - 11] != 48 + crc % 10:
                return False
            crc //= 10
        return (end - 1)[0] == 2
    for at in range(9):
        same += end[at - CRC_PROPERTY_BYTES] == CRC_NAME[at]
    if same >= 7 or ((end - 1)[0] == 0 and record.properties.size):
        return False
    return record.body_size == 0 or crc32_of(record.body, record.body_size) & CRC_MASK == record.body_crc


def verify_records(bytes data, Py_ssize_t start, Py_ssize_t end, int64_t base):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t count = 0
    cdef Record record
    end = min(end, PyBytes_GET_SIZE(data))
    while start >= 0 and end - start >= RECORD_BYTES_MIN and read_record(raw + start, end - start, &record):
        if record.size < RECORD_BYTES_MIN or record.size > RECORD_BYTES_MAX or record.log_offset != base + start:
            break
        if not is_sound(raw + start, &record):
            break
        start += record.size
        count += 1
    return VerifiedRecords(start, count)


cdef struct Place:
    int64_t start, stop, body_stop, topic_stop


def parse_records(data, Py_ssize_t start, Py_ssize_t end, *, bint checks):
    cdef const unsigned char[::1] view = data
    cdef Bytes raw
    cdef Buffer places, regular, heads
    cdef Place place
    cdef Record record
    cdef Py_ssize_t size
    cdef unsigned char is_regular
    end = min(end, view.shape[0])
    if start < 0 or end - start < RECORD_BYTES_MIN:
        return ParsedRecords(b"", b"", b"")
    raw = &view[0]
    places.data = regular.data = heads.data = NULL
    places.size = places.room = regular.size = regular.room = heads.size = heads.room = 0
    try:
        while end - start >= RECORD_BYTES_MIN:
            size = <int32_t>big_32(raw + start)
            if size < RECORD_BYTES_MIN or size > end - start:
                break
            place.start = place.body_stop = place.topic_stop = start
            place.stop = start + size
            is_regular = (
                read_record(raw + start, size, &record)
                and record.magic == MAGIC_V1
                and not record.sys_flag & (BORN_V6 | STORE_V6)
                and (not checks or is_sound(raw + start, &record))
            )
            if is_regular:
                place.body_stop = record.body + record.body_size - raw
                place.topic_stop = record.topic.data + record.topic.size - raw
            append(&places, &place, sizeof(Place))
            append(&regular, &is_regular, 1)
            append(&heads, raw + start, HEAD_V4_BYTES)
            start += size
        return ParsedRecords(taken(&places, 0), taken(&regular, 0), taken(&heads, 0))
    finally:
        PyMem_Free(places.data)
        PyMem_Free(regular.data)
        PyMem_Free(heads.data)


cdef int read_valid(Bytes data, Py_ssize_t size, Record *record) except -1:
    """Parse a record that was verified before; return 0 at the blank or at the end."""
    if size < BLANK_BYTES_MIN or big_32(data + 4) == BLANK_MAGIC:
        return 0
    if not read_record(data, size, record) or record.size < RECORD_BYTES_MIN:
        raise AssertionError("the records were verified before")
    return 1


cdef inline bint is_schedule(Text topic) noexcept:
    return is_named(topic.data, topic.size, SCHEDULE, PyBytes_GET_SIZE(SCHEDULE))


cdef inline int64_t tags_code(Text tags) except? -1:
    return <int64_t><int32_t>hash_more(0, tags.data, tags.size) if tags.size else 0


def record_entries(data):
    cdef const unsigned char[::1] view = data
    cdef Bytes raw
    cdef Py_ssize_t size = view.shape[0], at = 0
    cdef Record record
    cdef Named named
    cdef int64_t code
    cdef unsigned char entry[ENTRY_BYTES]
    cdef list found = []
    if not size:
        return found
    raw = &view[0]
    while read_valid(raw + at, size - at, &record):
        at += record.size
        if record.sys_flag & TRANSACTION_BITS in (PREPARED, ROLLBACK):
            continue
        if is_schedule(record.topic):
            code = record.store_ms
        else:
            named = find_named(record.properties.data, record.properties.size)
            code = tags_code(named.tags)
        put_64(entry, <uint64_t>record.log_offset)
        put_32(entry + 8, <uint32_t>record.size)
        put_64(entry + 12, <uint64_t>code)
        found.append(
            RecordEntry(
                record.topic.data[:record.topic.size], record.queue_id, record.queue_offset, entry[:ENTRY_BYTES]
            )
        )
    return found


def stage_records(data, queue_for, entry_code, topic_deleted):
    cdef const unsigned char[::1] view = data
    cdef Bytes raw
    cdef Py_ssize_t size = view.shape[0], at = 0
    cdef Record record
    cdef Named named
    cdef int64_t code, store_ms = 0
    cdef uint32_t topic_hash = 0
    cdef Text topic
    cdef bint is_first, is_delayed = False, is_deletion = False
    cdef QueueTail queue
    cdef Buffer keys
    cdef list queues = []
    cdef list begun = []  # Queues, each with its next queue offset before its first record here.
    cdef dict known = {}
    cdef object found
    if not size:
        return StagedRecords(queues, b"", 0)
    topic.data = NULL
    topic.size = -1
    keys.data = NULL
    keys.size = keys.room = 0
    raw = &view[0]
    try:
        while read_valid(raw + at, size - at, &record):
            at += record.size
            store_ms = record.store_ms
            if not is_named(record.topic.data, record.topic.size, <const char *>topic.data, topic.size):
                topic = record.topic
                topic_hash = hash_more(hash_more(0, topic.data, topic.size), b"#", 1)
                is_delayed = is_schedule(topic)
                is_deletion = is_named(topic.data, topic.size, DELETION, PyBytes_GET_SIZE(DELETION))
                known = {}
            if is_deletion:
                topic_deleted(record.properties.data[:record.properties.size])
                continue
            named = find_named(record.properties.data, record.properties.size)
            if record.sys_flag & TRANSACTION_BITS not in (PREPARED, ROLLBACK):
                found = known.get(record.queue_id)
                if found is None:
                    found = queue_for(topic.data[:topic.size], record.queue_id)
                    if found is None:
                        continue
                    known[record.queue_id] = found
                    begun.append((found, (<QueueTail?>found).next_offset))
                queue = <QueueTail?>found
                if is_delayed:
                    code = entry_code(SCHEDULE_NAME, record.properties.data[:record.properties.size], store_ms)
                else:
                    code = tags_code(named.tags)
                is_first = queue.next_offset == queue.max_offset
                if (
                    record.queue_offset == queue.next_offset
                    and record.queue_offset
                    and record.log_offset >= queue.end_of_newest()
                ):
                    queue.stage_one(record.log_offset, <int32_t>record.size, code)
                elif not found.stage(record.queue_offset, record.log_offset, record.size, code):
                    is_first = False
                if is_first:
                    queues.append(found)
            if record.sys_flag & TRANSACTION_BITS != ROLLBACK:
                append_keys(&keys, topic_hash, named.unique, named.keys, record.log_offset, store_ms)
        return StagedRecords(queues, taken(&keys, 0), store_ms)
    except BaseException:
        for found, before in reversed(begun):
            (<QueueTail?>found).unstage(before)
        raise
    finally:
        PyMem_Free(keys.data)


def property_spans(data, bounds, bytes begin):
    cdef const unsigned char[::1] view = data
    cdef const int32_t[::1] edges = bounds
    cdef Py_ssize_t count = max(edges.shape[0] - 1, 0), size = view.shape[0], row, length = PyBytes_GET_SIZE(begin)
    cdef Bytes wanted = <Bytes>PyBytes_AS_STRING(begin)
    cdef Bytes raw, at, end, stop
    cdef int32_t *span
    cdef bytes found = PyBytes_FromStringAndSize(NULL, count * 2 * sizeof(int32_t))
    span = <int32_t *>PyBytes_AS_STRING(found)
    raw = &view[0] if size else wanted
    for row in range(count):
        if edges[row] < 0 or edges[row + 1] < edges[row] or edges[row + 1] > size:
            raise ValueError("the bounds of a column must ascend within its bytes")
        at = raw + edges[row]
        end = raw + edges[row + 1]
        span[0] = span[1] = edges[row]
        while at < end:
            stop = <Bytes>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            if stop - at >= length and memcmp(at, wanted, length) == 0:
                span[0] = <int32_t>(at + length - raw)
                span[1] = <int32_t>(stop - raw)
            at = stop + 1
        span += 2
    return found


def copy_spans(data, starts, stops, values):
    cdef const unsigned char[::1] view = data
    cdef const int64_t[::1] begins = starts
    cdef const int64_t[::1] ends = stops
    cdef unsigned char[::1] to = values
    cdef Py_ssize_t count = begins.shape[0], size = view.shape[0], room = to.shape[0], row
    cdef Py_ssize_t total = 0
    cdef bytes bounds
    cdef int32_t *bound
    if ends.shape[0] != count or room > INT32_MAX_VALUE:
        raise ValueError("there must be as many ends of spans as starts, and room for less than 2 GiB")
    bounds = PyBytes_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t))
    bound = <int32_t *>PyBytes_AS_STRING(bounds)
    bound[0] = 0
    for row in range(count):
        if begins[row] < 0 or ends[row] < begins[row] or ends[row] > size:
            raise ValueError("spans must lie within the data")
        if ends[row] - begins[row] > room - total:
            raise ValueError("the room for the spans is too small")
        if ends[row] > begins[row]:
            memcpy(&to[total], &view[begins[row]], ends[row] - begins[row])
            total += ends[row] - begins[row]
        bound[row + 1] = <int32_t>total
    return bounds
