# Memory that grows, and numbers as text.

cdef struct Buffer:
    unsigned char *data
    Py_ssize_t size
    Py_ssize_t room


cdef inline int reserve(Buffer *buffer, Py_ssize_t more) except -1:
    """Make room for `more` further bytes."""
    cdef Py_ssize_t room
    cdef void *moved
    if buffer.size + more <= buffer.room:
        return 0
    room = max(buffer.size + more, 2 * buffer.room, 64)
    moved = PyMem_Realloc(buffer.data, room)
    if moved == NULL:
        raise MemoryError
    buffer.data = <unsigned char *>moved
    buffer.room = room
    return 0


cdef inline void keep_small(Buffer *buffer) noexcept:
    """Empty a buffer, and give back much memory."""
    buffer.size = 0
    if buffer.room > BUFFER_BYTES_KEPT:
        PyMem_Free(buffer.data)
        buffer.data = NULL
        buffer.room = 0


cdef inline int append(Buffer *buffer, const void *data, Py_ssize_t size) except -1:
    if not size:  # an empty buffer has no memory, and memcpy wants some
        return 0
    reserve(buffer, size)
    memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return 0


cdef inline int append_number(Buffer *buffer, int64_t value) except -1:
    """Append a number in decimal."""
    cdef unsigned char digits[20]
    cdef int at = 20
    cdef uint64_t rest = <uint64_t>value if value >= 0 else <uint64_t>0 - <uint64_t>value
    while True:
        at -= 1
        digits[at] = <unsigned char>(48 + rest % 10)
        rest //= 10
        if not rest:
            break
    if value < 0:
        at -= 1
        digits[at] = 45
    return append(buffer, digits + at, 20 - at)


cdef int append_base64(Buffer *buffer, Bytes data, Py_ssize_t size) except -1:
    """Append bytes in Base64 for URLs, with padding."""
    cdef Py_ssize_t at
    cdef uint32_t bits
    cdef int left, digit
    cdef unsigned char *to
    reserve(buffer, (size + 2) // 3 * 4)
    to = buffer.data + buffer.size
    for at in range(0, size, 3):
        left = <int>min(3, size - at)
        bits = <uint32_t>data[at] << 16
        if left > 1:
            bits |= <uint32_t>data[at + 1] << 8
        if left > 2:
            bits |= data[at + 2]
        for digit in range(4):
            to[digit] = BASE64[bits >> (18 - 6 * digit) & 63] if digit <= left else 61
        to += 4
    buffer.size = to - buffer.data
    return 0


cdef inline bytes taken(Buffer *buffer, Py_ssize_t start):
    return PyBytes_FromStringAndSize(<char *>buffer.data + start, buffer.size - start)


cdef inline void put_crc_property(unsigned char *at, uint32_t crc) noexcept:
    cdef int digit
    memcpy(at, CRC_NAME, 9)
    for digit in range(9, 19):
        at[digit] = <unsigned char>(48 + crc % 10)
        crc //= 10
    at[19] = 2
