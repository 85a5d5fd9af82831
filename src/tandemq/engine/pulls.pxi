# Pulls: records of queue entries, gathered from memory and files.

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


cdef enum:
    FEW_CODES_MAX = 16


cdef struct Wanted:
    # A record that is part of the answer.
    int64_t start
    int64_t queue_offset
    Py_ssize_t size


cdef int copy_cached(
    unsigned char *to, int64_t start, Py_ssize_t size, dict blocks, int64_t block_bytes, int64_t recent_start,
    bytearray recent,
) except -1:
    """Copy bytes of the log that are in memory; return 0 if some are not."""
    cdef PyObject *found
    cdef Py_ssize_t at, part
    if start >= recent_start:
        at = start - recent_start
        if at + size > PyByteArray_GET_SIZE(recent):
            return 0
        memcpy(to, PyByteArray_AS_STRING(recent) + at, size)
        return 1
    while size:
        found = PyDict_GetItem(blocks, start // block_bytes)
        if found == NULL:
            return 0
        at = start % block_bytes
        part = min(size, block_bytes - at)
        if at + part > PyBytes_GET_SIZE(<bytes?><object>found):
            return 0
        memcpy(to, PyBytes_AS_STRING(<object>found) + at, part)
        to += part
        start += part
        size -= part
    return 1


cdef int64_t near_end(const Wanted *record, const Wanted *last) noexcept:
    """The end of the records from `record` on that one read can serve: at least half of its bytes are wanted."""
    cdef int64_t start = record.start, end = start + record.size
    cdef Py_ssize_t wanted = record.size
    while record < last:
        record += 1
        wanted += record.size
        if record.start < end or record.start + record.size - start > min(2 * wanted, JOINED_BYTES_MAX):
            break
        end = record.start + record.size
    return end


cdef inline bint is_wanted(int64_t code, object codes, const int64_t *few, Py_ssize_t few_count) except -1:
    """Whether a tags code is one of `codes`; `few`: all of them, if they are few."""
    cdef Py_ssize_t at
    if not few_count:
        return code in codes
    for at in range(few_count):
        if few[at] == code:
            return True
    return False


def gather_messages(
    bytes entries, int64_t queue_offset, int32_t queue_id, bytes topic, codes, Py_ssize_t most, Py_ssize_t bytes_max,
    int64_t limit, int64_t written_end, dict blocks, int64_t block_bytes, int64_t recent_start, bytearray recent, load,
):
    cdef Bytes entry = <Bytes>PyBytes_AS_STRING(entries)
    cdef Bytes end = entry + PyBytes_GET_SIZE(entries)
    cdef Wanted *wanted
    cdef const Wanted *record
    cdef unsigned char *to
    cdef bytes answer, piece = b""
    cdef Text name
    cdef int64_t few[FEW_CODES_MAX]
    cdef Py_ssize_t few_count = 0
    cdef int64_t log_offset, code, piece_start = 0
    cdef Py_ssize_t size, total = 0, count = 0, at
    name.data = <Bytes>PyBytes_AS_STRING(topic)
    name.size = PyBytes_GET_SIZE(topic)
    wanted = <Wanted *>PyMem_Malloc(max(1, (end - entry) // ENTRY_BYTES) * sizeof(Wanted))
    if wanted == NULL:
        raise MemoryError
    try:
        if codes is not None and len(codes) <= FEW_CODES_MAX:
            for number in codes:
                few[few_count] = number
                few_count += 1
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
            if size == HOLE_SIZE or (codes is not None and not is_wanted(code, codes, few, few_count)):
                queue_offset += 1
                continue
            if count and (count >= most or total + size > bytes_max):
                break
            wanted[count].start = log_offset
            wanted[count].queue_offset = queue_offset
            wanted[count].size = size
            total += size
            count += 1
            queue_offset += 1
        answer = PyBytes_FromStringAndSize(NULL, total)
        to = <unsigned char *>PyBytes_AS_STRING(answer)
        for at in range(count):
            record = wanted + at
            if piece_start <= record.start <= piece_start + PyBytes_GET_SIZE(piece) - record.size:
                memcpy(to, PyBytes_AS_STRING(piece) + (record.start - piece_start), record.size)
            elif not copy_cached(to, record.start, record.size, blocks, block_bytes, recent_start, recent):
                loaded = load(record.start, record.start + record.size, near_end(record, wanted + count - 1))
                if loaded is not None:
                    piece_start, piece = record.start, loaded
                    if PyBytes_GET_SIZE(piece) < record.size:
                        return None
                    memcpy(to, PyBytes_AS_STRING(piece), record.size)
                elif not copy_cached(to, record.start, record.size, blocks, block_bytes, recent_start, recent):
                    return None
            if not is_entry_of(to, record.size, queue_id, record.queue_offset, record.start, name):
                return None
            to += record.size
        return Gathered(answer, count, queue_offset)
    finally:
        PyMem_Free(wanted)
