# Responses to sends, as a client receives them.

cdef bint read_stored(Bytes data, Py_ssize_t size, Header *header, int64_t *queue_id, int64_t *offset) noexcept:
    """Read the header of an ordinary response to a stored message; False if it is something else."""
    cdef StoredFields *fields = header.stored
    header.flag = header.opaque = 0
    fields.seen = 0
    if not read_json(data, size, header, 0) or header.flag != 1 or fields.seen != 7:
        return False
    if memchr(fields.msg_id.data, 44, fields.msg_id.size) != NULL:
        return False
    return read_number(fields.queue_id, INT32_MAX_VALUE, queue_id) and read_number(fields.queue_offset, 1 << 62, offset)


def stored_sends(bytes data, Py_ssize_t start, Py_ssize_t frame_bytes_max):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef uint64_t length, header_bytes
    cdef uint32_t word
    cdef Header header
    cdef StoredFields fields
    cdef int64_t queue_id = 0, offset = 0
    cdef list found = []
    header.listed = NULL
    header.stored = &fields
    while 0 <= start <= size - 8:
        length = big_32(raw + start)
        word = big_32(raw + start + 4)
        header_bytes = word & 0xFFFFFF
        if word >> 24 or header_bytes + 4 != length or length + 4 > <uint64_t>(size - start):
            break
        if header_bytes > HEADER_BYTES_MAX or length + 4 > <uint64_t>frame_bytes_max:
            break
        if not read_stored(raw + start + 8, header_bytes, &header, &queue_id, &offset):
            break
        start += <Py_ssize_t>length + 4
        found.append((header.opaque, queue_id, offset, utf8_text(fields.msg_id.data, fields.msg_id.size), start))
    return found, start
