# Java's hashes of tags and keys, named properties, and entries of the key index.

cdef uint32_t hash_more(uint32_t value, Bytes data, Py_ssize_t size) except? 0xFFFFFFFF:
    """Continue Java's hash of a text with UTF-8 bytes; other bytes count as U+FFFD, as Python decodes them."""
    cdef uint32_t begun = value
    cdef unsigned char all_bits = 0
    cdef Py_ssize_t at
    cdef uint32_t point
    for at in range(size):
        all_bits |= data[at]
        value = 31 * value + data[at]
    if not all_bits & 0x80:
        return value
    value = begun
    for point in PyUnicode_DecodeUTF8(<char *>data, size, "replace"):
        if point >= 0x10000:
            value = 31 * value + (0xD800 + (point - 0x10000 >> 10))
            point = 0xDC00 + (point - 0x10000 & 0x3FF)
        value = 31 * value + point
    return value


cdef inline int32_t index_hash(uint32_t value) noexcept:
    cdef int32_t signed = <int32_t>value
    if value == <uint32_t>0x80000000:
        return 0
    return -signed if signed < 0 else signed


cdef inline int append_key(Buffer *keys, uint32_t value, int64_t log_offset, int64_t store_ms) except -1:
    cdef unsigned char *at
    reserve(keys, KEY_BYTES)
    at = keys.data + keys.size
    put_little(at, <uint64_t><uint32_t>index_hash(value), 4)
    put_little(at + 4, <uint64_t>log_offset, 8)
    put_little(at + 12, <uint64_t>store_ms, 8)
    keys.size += KEY_BYTES
    return 0


cdef int append_keys(
    Buffer *keys, uint32_t topic_hash, Text unique, Text words, int64_t log_offset, int64_t store_ms
) except -1:
    """Append the rows of a message's keys; `topic_hash`: the hash of the topic's name and "#"."""
    cdef Py_ssize_t start = 0, at
    if unique.size:
        append_key(keys, hash_more(topic_hash, unique.data, unique.size), log_offset, store_ms)
    for at in range(words.size + 1):
        if at == words.size or words.data[at] == 32:
            if at > start:
                append_key(keys, hash_more(topic_hash, words.data + start, at - start), log_offset, store_ms)
            start = at + 1
    return 0


# Values of the properties by which a message is found; of a repeated one the last.
cdef struct Named:
    Text unique
    Text keys
    Text tags


cdef inline bint is_named(Bytes name, Py_ssize_t size, const char *wanted, Py_ssize_t wanted_size) noexcept:
    return size == wanted_size and memcmp(name, wanted, size) == 0


cdef inline bint is_same(Text left, Text right) noexcept:
    return left.size == right.size and memcmp(left.data, right.data, left.size) == 0


cdef Named find_named(Bytes data, Py_ssize_t size) noexcept:
    cdef Named found
    cdef Py_ssize_t start = 0, stop, split
    cdef Bytes end
    cdef Text value
    cdef int meaning
    found.unique.size = found.keys.size = found.tags.size = 0
    found.unique.data = found.keys.data = found.tags.data = NULL
    while start < size:
        end = <Bytes>memchr(data + start, 2, size - start)
        stop = end - data if end != NULL else size
        end = <Bytes>memchr(data + start, 1, stop - start)
        if end != NULL:
            split = end - data
            value.data = data + split + 1
            value.size = stop - split - 1
            meaning = meaning_of(data + start, split - start)
            if meaning == UNIQUE_KEY:
                found.unique = value
            elif meaning == KEYS:
                found.keys = value
            elif meaning == TAGS:
                found.tags = value
        start = stop + 1
    return found


def key_hash(str topic, bytes key):
    cdef bytes name = topic.encode("utf-8", "surrogatepass") + b"#"
    cdef uint32_t value = hash_more(0, <Bytes>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    return index_hash(hash_more(value, <Bytes>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)))


def key_rows(str topic, bytes properties, int64_t log_offset, int64_t store_ms):
    cdef bytes name = topic.encode("utf-8", "surrogatepass") + b"#"
    cdef uint32_t value = hash_more(0, <Bytes>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    cdef Named found = find_named(<Bytes>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
    cdef Buffer keys
    keys.data = NULL
    keys.size = keys.room = 0
    try:
        append_keys(&keys, value, found.unique, found.keys, log_offset, store_ms)
        return taken(&keys, 0)
    finally:
        PyMem_Free(keys.data)


def link_keys(bytes rows, int32_t[::1] table, int64_t begin_ms, int32_t number):
    cdef Bytes row = <Bytes>PyBytes_AS_STRING(rows)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(rows) // KEY_BYTES, at
    cdef int32_t slots = table.shape[0], hashed, slot, previous
    cdef int64_t seconds, store_ms, fresh = 0
    cdef bytes entries = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
    cdef unsigned char *entry = <unsigned char *>PyBytes_AS_STRING(entries)
    if slots <= 0:
        raise ValueError("an index file has slots")
    for at in range(count):
        hashed = <int32_t>little_32(row)
        slot = hashed % slots
        if slot < 0:
            raise ValueError("hashes are not negative")
        previous = table[slot]
        fresh += previous == 0
        store_ms = <int64_t>little_64(row + 12)
        seconds = <int64_t>((<uint64_t>store_ms - <uint64_t>begin_ms) // 1000) if store_ms > begin_ms else 0
        put_32(entry, <uint32_t>hashed)
        put_64(entry + 4, little_64(row + 4))
        put_32(entry + 12, <uint32_t>min(seconds, INT32_MAX_VALUE))
        put_32(entry + 16, <uint32_t>previous)
        table[slot] = number
        number += 1
        row += KEY_BYTES
        entry += ENTRY_BYTES
    return LinkedKeys(entries, fresh)
