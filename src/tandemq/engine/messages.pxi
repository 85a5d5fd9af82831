# Messages of pull responses.

cdef enum:
    NAMES_KEPT = 16


cdef Text NO_TEXT
NO_TEXT.data = HEX
NO_TEXT.size = 0


# Texts that neighbouring records have in common, made once: hosts, topics, names and values of properties by their
# place.
cdef class SharedTexts:
    cdef Text host[2]
    cdef Text topic
    cdef Text name[NAMES_KEPT]
    cdef Text value[NAMES_KEPT]
    cdef list hosts
    cdef str topic_text
    cdef list names
    cdef list values

    def __cinit__(self):
        cdef int at
        self.hosts = ["", ""]
        self.topic_text = ""
        self.names = [""] * NAMES_KEPT
        self.values = [""] * NAMES_KEPT
        self.host[0] = self.host[1] = self.topic = NO_TEXT
        for at in range(NAMES_KEPT):
            self.name[at] = self.value[at] = NO_TEXT

    cdef str host_text(self, int which, Bytes data, Py_ssize_t size):
        if not is_named(data, size, <const char *>self.host[which].data, self.host[which].size):
            self.hosts[which] = decode_host(data[:size])
            self.host[which].data = data
            self.host[which].size = size
        return <str>self.hosts[which]

    cdef str topic_name(self, Text topic):
        if not is_named(topic.data, topic.size, <const char *>self.topic.data, self.topic.size):
            self.topic_text = utf8_text(topic.data, topic.size)
            self.topic = topic
        return self.topic_text

    cdef str property_name(self, int place, Bytes data, Py_ssize_t size):
        if place >= NAMES_KEPT:
            return utf8_text(data, size)
        if not is_named(data, size, <const char *>self.name[place].data, self.name[place].size):
            self.names[place] = utf8_text(data, size)
            self.name[place].data = data
            self.name[place].size = size
        return <str>self.names[place]

    cdef str property_value(self, int place, Bytes data, Py_ssize_t size):
        if place >= NAMES_KEPT:
            return utf8_text(data, size)
        if not is_named(data, size, <const char *>self.value[place].data, self.value[place].size):
            self.values[place] = utf8_text(data, size)
            self.value[place].data = data
            self.value[place].size = size
        return <str>self.values[place]


cdef inline str utf8_text(Bytes data, Py_ssize_t size):
    return PyUnicode_DecodeUTF8(<char *>data, size, "replace")


cdef dict property_dict(Text properties, SharedTexts shared):
    """Return the named values of properties; pairs without a name or a value are dropped."""
    cdef dict found = {}
    cdef Bytes at = properties.data, end = properties.data + properties.size, stop, split
    cdef int place = 0
    cdef str name
    while at < end:
        stop = <Bytes>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        split = <Bytes>memchr(at, 1, stop - at)
        if split != NULL and split > at and split + 1 < stop:
            name = shared.property_name(place, at, split - at)
            found[name] = shared.property_value(place, split + 1, stop - split - 1)
            place += 1
        at = stop + 1
    return found


cdef str place_id(Bytes host, Py_ssize_t size, int64_t log_offset):
    """Return an offset message id: host and log offset in upper-case hex."""
    cdef unsigned char raw[28]
    cdef char text[56]
    cdef Py_ssize_t at
    memcpy(raw, host, size)
    put_64(raw + size, <uint64_t>log_offset)
    for at in range(size + 8):
        text[2 * at] = <char>HEX[raw[at] >> 4]
        text[2 * at + 1] = <char>HEX[raw[at] & 15]
    return PyUnicode_DecodeUTF8(text, 2 * (size + 8), NULL)


def stored_messages(bytes data, Py_ssize_t start):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data), at, born_host, store_host
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), born_size, store_size
    cdef Record record
    cdef SharedTexts shared = SharedTexts()
    cdef list messages = []
    while 0 <= start < end and read_record(raw + start, end - start, &record):
        if record.sys_flag & COMPRESSED or not is_sound(raw + start, &record):
            break
        at = raw + start
        born_size = 20 if record.sys_flag & BORN_V6 else 8
        store_size = 20 if record.sys_flag & STORE_V6 else 8
        born_host = at + 48
        store_host = born_host + born_size + 8
        messages.append(
            StoredMessage(
                shared.topic_name(record.topic),
                record.queue_id,
                record.queue_offset,
                record.log_offset,
                record.body[:record.body_size],
                property_dict(record.properties, shared),
                <int32_t>big_32(at + 16),
                record.sys_flag,
                <int64_t>big_64(at + 40),
                shared.host_text(0, born_host, born_size),
                record.store_ms,
                shared.host_text(1, store_host, store_size),
                <int32_t>big_32(store_host + store_size),
                <int64_t>big_64(store_host + store_size + 4),
                record.size,
                place_id(store_host, store_size, record.log_offset),
                "",
            )
        )
        start += record.size
    return StoredMessages(messages, start)


def record_properties(bytes data):
    cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t start = 0, end = PyBytes_GET_SIZE(data)
    cdef Record record
    cdef SharedTexts shared = SharedTexts()
    cdef list found = []
    while start < end and read_record(raw + start, end - start, &record):
        start += record.size
        found.append(
            RecordProperties(
                record.queue_offset,
                record.log_offset,
                start,
                record.properties.size,
                property_dict(record.properties, shared),
            )
        )
    return found
