# Acknowledgements of popped messages: from frames to the offsets acknowledged of each pop, and the responses.

cdef struct AckText:
    Text topic
    Text group
    Text queue_id
    Text offset
    Text handle


cdef bint read_ack(Bytes data, Py_ssize_t size, Header *header, AckText *ack) noexcept:
    """Read the header of an ordinary acknowledgement; False if it is something else."""
    cdef Listed *listed = header.listed
    cdef NamedText *field
    cdef int at
    cdef unsigned int seen = 0
    header.code = -1
    header.flag = header.opaque = 0
    header.ends_seen = header.fields[0].seen = header.fields[1].seen = 0
    listed.count = 0
    if not read_json(data, size, header, ACK_MESSAGE) or header.flag & ~<int64_t>2:
        return False
    for at in range(listed.count):
        field = &listed.fields[at]
        if is_named(field.name.data, field.name.size, b"topic", 5):
            ack.topic = field.value
            seen |= 1
        elif is_named(field.name.data, field.name.size, b"consumerGroup", 13):
            ack.group = field.value
            seen |= 2
        elif is_named(field.name.data, field.name.size, b"queueId", 7):
            ack.queue_id = field.value
            seen |= 4
        elif is_named(field.name.data, field.name.size, b"offset", 6):
            ack.offset = field.value
            seen |= 8
        elif is_named(field.name.data, field.name.size, b"extraInfo", 9):
            ack.handle = field.value
            seen |= 16
    return seen == 31


cdef Py_ssize_t place_bytes(Text handle, Text offset) noexcept:
    """Return how long the first seven parts of a handle are, if the eighth is the offset; else 0."""
    cdef Bytes at = handle.data
    cdef Bytes end = handle.data + handle.size
    cdef Bytes last
    cdef int part
    for part in range(7):
        at = <Bytes>memchr(at, 32, end - at)
        if at == NULL:
            return 0
        at += 1
    last = <Bytes>memchr(at, 32, end - at)
    if last == NULL:
        last = end
    if not is_named(at, last - at, <const char *>offset.data, offset.size):
        return 0
    return at - 1 - handle.data


cdef class AckEngine:
    cdef object admit
    cdef dict pops
    cdef Buffer key, last_key, answers, signed
    cdef dict last
    cdef int64_t low, high

    def __cinit__(self):
        cdef Buffer empty
        empty.data = NULL
        empty.size = empty.room = 0
        self.key = self.last_key = self.answers = self.signed = empty

    def __dealloc__(self):
        PyMem_Free(self.key.data)
        PyMem_Free(self.last_key.data)
        PyMem_Free(self.answers.data)
        PyMem_Free(self.signed.data)

    def __init__(self, admit):
        self.admit = admit
        self.forget()

    def forget(self):
        self.pops = {}
        self.last = None
        keep_small(&self.answers)

    def take(self, bytes data, Py_ssize_t at, SigningUser sender=None):
        cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef uint64_t length, header_bytes
        cdef uint32_t word
        cdef Header header
        cdef Listed listed
        cdef AckText ack
        header.listed = &listed
        header.stored = NULL
        self.answers.size = 0
        while size - at >= 8:
            length = big_32(raw + at)
            word = big_32(raw + at + 4)
            header_bytes = word & 0xFFFFFF
            if word >> 24 or header_bytes + 4 != length or length + 4 > <uint64_t>(size - at):
                break
            if header_bytes > HEADER_BYTES_MAX or not read_ack(raw + at + 8, header_bytes, &header, &ack):
                break
            if sender is not None and not has_signed(sender, &listed, NULL, 0, &self.signed):
                break
            if not self.take_one(&ack, sender):
                break
            if not header.flag & 2:
                append_plain_answer(&self.answers, header.opaque)
            at += 4 + length
        return at, taken(&self.answers, 0)

    cdef int take_one(self, AckText *ack, SigningUser sender) except -1:
        cdef int64_t queue_id, offset
        cdef Py_ssize_t place = place_bytes(ack.handle, ack.offset)
        cdef Buffer *key = &self.key
        cdef PyObject *found
        cdef object admitted, name
        if not place or not read_number(ack.offset, <int64_t>1 << 60, &offset):
            return 0
        if not read_number(ack.queue_id, INT32_MAX_VALUE, &queue_id):
            return 0
        key.size = 0
        append(key, ack.topic.data, ack.topic.size)
        append(key, b"\0", 1)
        append(key, ack.group.data, ack.group.size)
        append(key, b"\0", 1)
        append_number(key, queue_id)
        append(key, b"\0", 1)
        append(key, ack.handle.data, place)
        if sender is not None:
            append(key, b"\0", 1)
            append(key, PyBytes_AS_STRING(sender.encoded_key), PyBytes_GET_SIZE(sender.encoded_key))
        if self.last is None or not is_named(
            key.data, key.size, <const char *>self.last_key.data, self.last_key.size
        ):
            name = taken(key, 0)
            found = PyDict_GetItem(self.pops, name)
            if found == NULL:
                topic = PyUnicode_DecodeUTF8(<char *>ack.topic.data, ack.topic.size, "strict")
                group = PyUnicode_DecodeUTF8(<char *>ack.group.data, ack.group.size, "strict")
                if sender is not None and sender.pops is not None and (group, topic) not in sender.pops:
                    return 0
                admitted = self.admit(
                    topic, group, queue_id, PyUnicode_DecodeUTF8(<char *>ack.handle.data, place, "strict")
                )
                if admitted is None:
                    return 0
                self.pops[name] = admitted
            else:
                admitted = <object>found
            self.last = <dict?>admitted.offsets
            self.low, self.high = admitted.low, admitted.high
            self.last_key.size = 0
            append(&self.last_key, key.data, key.size)
        if not self.low <= offset <= self.high:
            return 0
        self.last[offset] = None
        return 1
