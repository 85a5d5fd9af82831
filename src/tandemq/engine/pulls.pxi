# Pulls: records of queue entries, gathered from memory.

cdef inline bint is_entry_of(
    Bytes data, Py_ssize_t size, int32_t queue_id, int64_t queue_offset, int64_t log_offset, Text topic
) noexcept:
    """Whether `data` is the record of a queue entry."""
    cdef Record record
    return (
        read_record(data, size, &record)
        and record.size == size
        and record.log_offset == log_offset
        and record.queue_offset == queue_offset
        and record.queue_id == queue_id
        and is_named(record.topic.data, record.topic.size, <const char *>topic.data, topic.size)
    )


cdef int copy_cached(
    Buffer *to, int64_t start, Py_ssize_t size, dict blocks, int64_t block_bytes, int64_t recent_start, bytearray recent
) except -1:
    """Append bytes of the log that are in memory; return 0 if some are not."""
    cdef PyObject *found
    cdef Py_ssize_t at, part
    if start >= recent_start:
        at = start - recent_start
        if at + size > PyByteArray_GET_SIZE(recent):
            return 0
        append(to, PyByteArray_AS_STRING(recent) + at, size)
        return 1
    while size:
        found = PyDict_GetItem(blocks, start // block_bytes)
        if found == NULL:
            return 0
        at = start % block_bytes
        part = min(size, block_bytes - at)
        if at + part > PyBytes_GET_SIZE(<bytes?><object>found):
            return 0
        append(to, PyBytes_AS_STRING(<object>found) + at, part)
        start += part
        size -= part
    return 1


def gather_messages(
    bytes entries, int64_t queue_offset, int32_t queue_id, bytes topic, codes, Py_ssize_t most, Py_ssize_t bytes_max,
    int64_t limit, int64_t written_end, dict blocks, int64_t block_bytes, int64_t recent_start, bytearray recent,
):
    cdef Bytes entry = <Bytes>PyBytes_AS_STRING(entries)
    cdef Bytes end = entry + PyBytes_GET_SIZE(entries)
    cdef Buffer messages
    cdef Text name
    cdef int64_t log_offset, code
    cdef Py_ssize_t size, count = 0
    name.data = <Bytes>PyBytes_AS_STRING(topic)
    name.size = PyBytes_GET_SIZE(topic)
    messages.data = NULL
    messages.size = messages.room = 0
    try:
        while end - entry >= ENTRY_BYTES:
            log_offset = <int64_t>big_64(entry)
            size = <int32_t>big_32(entry + 8)
            code = <int64_t>big_64(entry + 12)
            entry += ENTRY_BYTES
            if size != HOLE_SIZE:
                if not RECORD_BYTES_MIN <= size <= GATHERED_BYTES_MAX or not 0 <= log_offset <= written_end - size:
                    return None
            if log_offset >= limit:
                break
            if size == HOLE_SIZE or (codes is not None and code not in codes):
                queue_offset += 1
                continue
            if count and (count >= most or messages.size + size > bytes_max):
                break
            if not copy_cached(&messages, log_offset, size, blocks, block_bytes, recent_start, recent):
                return None
            if not is_entry_of(messages.data + messages.size - size, size, queue_id, queue_offset, log_offset, name):
                return None
            count += 1
            queue_offset += 1
        return Gathered(taken(&messages, 0), count, queue_offset)
    finally:
        PyMem_Free(messages.data)
