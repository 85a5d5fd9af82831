# Responses to sends, as a client receives them.

cdef bint read_stored(Bytes data, Py_ssize_t size, Header *header, Text *msg_id, int64_t *queue_id, int64_t *offset) noexcept:
    """Read the header of an ordinary response to a stored message; False if it is something else."""
    cdef Listed *listed = header.listed
    cdef NamedText *field
    cdef int at
    cdef unsigned int seen = 0
    header.code = -1
    header.flag = header.opaque = 0
    header.ends_seen = header.fields[0].seen = header.fields[1].seen = 0
    listed.count = 0
    if not read_json(data, size, header, 0) or header.flag != 1:
        return False
    for at in range(listed.count):
        field = &listed.fields[at]
        if is_named(field.name.data, field.name.size, b"msgId", 5):
            msg_id[0] = field.value
            seen |= 1
            if memchr(field.value.data, 44, field.value.size) != NULL:
                return False
        elif is_named(field.name.data, field.name.size, b"queueId", 7):
            seen |= 2
            if not read_number(field.value, INT32_MAX_VALUE, queue_id):
                return False
        elif is_named(field.name.data, field.name.size, b"queueOffset", 11):
            seen |= 4
            if not read_number(field.value, 1 << 62, offset):
                return False
        elif is_named(field.name.data, field.name.size, b"recallHandle", 12):
            return False
    return seen == 7


def stored_sends(bytes data, Py_ssize_t start, Py_ssize_t frame_bytes_max):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef uint64_t length, header_bytes
    cdef uint32_t word
    cdef Header header
    cdef Listed listed
    cdef Text msg_id
    cdef int64_t queue_id = 0, offset = 0
    cdef list found = []
    msg_id = NO_TEXT
    header.listed = &listed
    while 0 <= start <= size - 8:
        length = big_32(raw + start)
        word = big_32(raw + start + 4)
        header_bytes = word & 0xFFFFFF
        if word >> 24 or header_bytes + 4 != length or length + 4 > <uint64_t>(size - start):
            break
        if header_bytes > HEADER_BYTES_MAX or length + 4 > <uint64_t>frame_bytes_max:
            break
        if not read_stored(raw + start + 8, header_bytes, &header, &msg_id, &queue_id, &offset):
            break
        start += <Py_ssize_t>length + 4
        found.append((header.opaque, queue_id, offset, utf8_text(msg_id.data, msg_id.size), start))
    return found, start
