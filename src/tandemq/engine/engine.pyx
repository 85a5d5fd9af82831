# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=False
"""The engine, compiled; `python.py` describes each class and function.

Everything that a peer sent is read with a check of its bounds. What is unusual is left to the Python code: an unknown
field of another type, a number that is not written as Java writes it, a repeated name, text that is not UTF-8.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from tandemq.engine.python import Gathered, RecordEntry, TakenSends
from tandemq.model.command import VERSION_SPOKEN
from tandemq.model.topic import SCHEDULE_TOPIC

cdef extern from "crc32.h" nogil:
    void crc32_start()
    uint32_t crc32_of(const unsigned char *data, size_t size)

cdef extern from *:
    """
    static inline uint16_t big_16(const unsigned char *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t big_32(const unsigned char *p)
    { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }
    static inline uint64_t big_64(const unsigned char *p) { return (uint64_t)big_32(p) << 32 | big_32(p + 4); }
    static inline void put_16(unsigned char *p, uint32_t v) { p[0] = (unsigned char)(v >> 8); p[1] = (unsigned char)v; }
    static inline void put_32(unsigned char *p, uint32_t v)
    { p[0] = (unsigned char)(v >> 24); p[1] = (unsigned char)(v >> 16); p[2] = (unsigned char)(v >> 8); p[3] = (unsigned char)v; }
    static inline void put_64(unsigned char *p, uint64_t v) { put_32(p, (uint32_t)(v >> 32)); put_32(p + 4, (uint32_t)v); }
    static inline uint32_t little_32(const unsigned char *p)
    { return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0]; }
    static inline uint64_t little_64(const unsigned char *p) { return (uint64_t)little_32(p + 4) << 32 | little_32(p); }
    static inline void put_little(unsigned char *p, uint64_t v, int size)
    { for (int at = 0; at < size; at++) p[at] = (unsigned char)(v >> 8 * at); }

    /* The first byte of a JSON string that needs a look: a quote, a backslash, a control character, or not ASCII. */
    static inline const unsigned char *plain_end(const unsigned char *p, const unsigned char *end)
    {
        const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
        for (; end - p >= 8; p += 8) {
            uint64_t word, quote, escape;
            memcpy(&word, p, 8);
            quote = word ^ 0x22 * ones;
            escape = word ^ 0x5C * ones;
            if (((quote - ones) | (escape - ones) | (word - 0x20 * ones) | word) & highs)
                break;
        }
        while (p < end && *p >= 0x20 && *p < 0x80 && *p != 0x22 && *p != 0x5C)
            p++;
        return p;
    }
    """
    const unsigned char *plain_end(const unsigned char *p, const unsigned char *end) nogil
    uint16_t big_16(const unsigned char *p) nogil
    uint32_t big_32(const unsigned char *p) nogil
    uint64_t big_64(const unsigned char *p) nogil
    void put_16(unsigned char *p, uint32_t v) nogil
    void put_32(unsigned char *p, uint32_t v) nogil
    void put_64(unsigned char *p, uint64_t v) nogil
    uint32_t little_32(const unsigned char *p) nogil
    uint64_t little_64(const unsigned char *p) nogil
    void put_little(unsigned char *p, uint64_t v, int size) nogil

ctypedef const unsigned char *Bytes

NAME = "compiled"
crc32_start()

cdef enum:
    ENTRY_BYTES = 20
    KEY_BYTES = 20
    CRC_PROPERTY_BYTES = 20
    BLANK_BYTES_MIN = 8
    RECORD_BYTES_MIN = 91
    RECORD_BYTES_MAX = 64 << 20
    PROPERTIES_BYTES_MAX = 32767
    HOLE_SIZE = 0x7FFFFFFF
    GATHERED_BYTES_MAX = 64 << 10
    NAMES_MAX = 48
    PARTS_MAX = 4096
    HEADER_BYTES_MAX = 1 << 16
    BUFFER_BYTES_KEPT = 8 << 20
    TRANSACTION_BITS = 0xC
    PREPARED = 0x4
    ROLLBACK = 0xC
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    UNUSUAL_FLAGS = 0xC | 0xF0

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t BLANK_MAGIC = 0xCBD43194
cdef uint32_t CRC_MASK = 0x7FFFFFFF
cdef int64_t INT32_MAX_VALUE = 0x7FFFFFFF
cdef Bytes CRC_NAME = b"__CRC32#\x01"
cdef Bytes FALSE = b"false"
cdef Bytes HEX = b"0123456789ABCDEF"
cdef bytes SCHEDULE = SCHEDULE_TOPIC.encode()
cdef str SCHEDULE_NAME = SCHEDULE_TOPIC
cdef int VERSION = VERSION_SPOKEN


# Growing memory.

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


cdef inline bytes taken(Buffer *buffer, Py_ssize_t start):
    return PyBytes_FromStringAndSize(<char *>buffer.data + start, buffer.size - start)


cdef inline void put_crc_property(unsigned char *at, uint32_t crc) noexcept:
    cdef int digit
    memcpy(at, CRC_NAME, 9)
    for digit in range(9, 19):
        at[digit] = <unsigned char>(48 + crc % 10)
        crc //= 10
    at[19] = 2


# Queue tails.

cdef class QueueTail:
    cdef Buffer entries
    cdef public int64_t tail_start
    cdef public int64_t max_offset
    cdef public int64_t next_offset
    cdef public int64_t last_log_end
    cdef public object held

    def __cinit__(self):
        self.entries.data = NULL
        self.entries.size = self.entries.room = 0

    def __dealloc__(self):
        PyMem_Free(self.entries.data)

    cdef int stage_one(self, int64_t log_offset, int32_t size, int64_t tags_code) except -1:
        cdef unsigned char *at
        reserve(&self.entries, ENTRY_BYTES)
        at = self.entries.data + self.entries.size
        put_64(at, <uint64_t>log_offset)
        put_32(at + 8, <uint32_t>size)
        put_64(at + 12, <uint64_t>tags_code)
        self.entries.size += ENTRY_BYTES
        self.next_offset += 1
        return 0

    def start_tail(self, int64_t queue_offset):
        self.entries.size = 0
        self.tail_start = self.max_offset = self.next_offset = queue_offset

    def stage_entry(self, int64_t log_offset, int32_t size, int64_t tags_code, int64_t times=1):
        cdef bint is_first = self.next_offset == self.max_offset
        cdef int64_t _
        reserve(&self.entries, times * ENTRY_BYTES)
        for _ in range(times):
            self.stage_one(log_offset, size, tags_code)
        return is_first

    def stage_packed(self, bytes entries):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(entries)
        append(&self.entries, PyBytes_AS_STRING(entries), size)
        self.next_offset += size // ENTRY_BYTES

    cdef int64_t end_of_newest(self):
        cdef unsigned char *newest
        if self.next_offset == self.max_offset or self.entries.size < ENTRY_BYTES:
            return self.last_log_end
        newest = self.entries.data + self.entries.size - ENTRY_BYTES
        return <int64_t>big_64(newest) + <int32_t>big_32(newest + 8)

    def staged_log_end(self):
        return self.end_of_newest()

    cdef void commit(self):
        self.last_log_end = self.end_of_newest()
        self.max_offset = self.next_offset

    def commit_staged(self):
        self.commit()

    def drop_staged(self):
        self.next_offset = self.max_offset
        self.entries.size = min(self.entries.size, (self.max_offset - self.tail_start) * ENTRY_BYTES)

    def tail(self, int64_t queue_offset, int64_t stop):
        cdef Py_ssize_t first = max(0, (queue_offset - self.tail_start) * ENTRY_BYTES)
        cdef Py_ssize_t last = min(self.entries.size, (stop - self.tail_start) * ENTRY_BYTES)
        return PyBytes_FromStringAndSize(<char *>self.entries.data + first, last - first) if last > first else b""

    def rewrite_tail(self, int64_t queue_offset, bytes packed):
        cdef Py_ssize_t at = (queue_offset - self.tail_start) * ENTRY_BYTES
        cdef Py_ssize_t size = PyBytes_GET_SIZE(packed)
        if at < 0 or at + size > self.entries.size:
            raise ValueError("only existing entries are rewritten")
        if size:
            memcpy(self.entries.data + at, PyBytes_AS_STRING(packed), size)

    def advance_tail(self, int64_t count):
        cdef Py_ssize_t size = min(self.entries.size, count * ENTRY_BYTES)
        self.entries.size -= size
        if self.entries.size:
            memmove(self.entries.data, self.entries.data + size, self.entries.size)
        self.tail_start += count
        if not self.entries.size:
            PyMem_Free(self.entries.data)
            self.entries.data = NULL
            self.entries.room = 0

    def cut_tail(self, int64_t queue_offset):
        self.entries.size = max(0, min(self.entries.size, (queue_offset - self.tail_start) * ENTRY_BYTES))
        self.max_offset = self.next_offset = queue_offset


def commit_staged(list queues, list woken):
    cdef QueueTail queue
    for queue in queues:
        queue.commit()
        if queue.held is not None:
            woken.append(queue)


# Java's hashes.

cdef uint32_t hash_more(uint32_t value, Bytes data, Py_ssize_t size) except? 0xFFFFFFFF:
    """Continue Java's hash of a text with UTF-8 bytes; bytes that are not UTF-8 count as U+FFFD, as Python decodes them."""
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


cdef struct Text:
    Bytes data
    Py_ssize_t size


cdef int append_keys(Buffer *keys, uint32_t topic_hash, Text unique, Text words, int64_t log_offset, int64_t store_ms) except -1:
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


cdef Named find_named(Bytes data, Py_ssize_t size) noexcept:
    cdef Named found
    cdef Py_ssize_t start = 0, stop, split
    cdef Bytes end
    cdef Text value
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
            if is_named(data + start, split - start, b"UNIQ_KEY", 8):
                found.unique = value
            elif is_named(data + start, split - start, b"KEYS", 4):
                found.keys = value
            elif is_named(data + start, split - start, b"TAGS", 4):
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
    return entries, fresh


# Records.

cdef struct Record:
    Py_ssize_t size
    int32_t queue_id
    int64_t queue_offset
    int64_t log_offset
    int32_t sys_flag
    int64_t store_ms
    uint32_t body_crc
    Bytes body
    Py_ssize_t body_size
    Text topic
    Text properties


cdef bint read_record(Bytes data, Py_ssize_t size, Record *record) noexcept:
    """Parse the record at `data`; False if it is not one, or does not end within `size` bytes. No checksum is checked."""
    cdef Py_ssize_t head, at, length
    cdef uint32_t magic
    if size < RECORD_BYTES_MIN:
        return False
    record.sys_flag = <int32_t>big_32(data + 36)
    head = 88 + (12 if record.sys_flag & BORN_V6 else 0) + (12 if record.sys_flag & STORE_V6 else 0)
    if size < head + 3:
        return False
    record.size = <int32_t>big_32(data)
    magic = big_32(data + 4)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return False
    record.body_crc = big_32(data + 8)
    record.queue_id = <int32_t>big_32(data + 12)
    record.queue_offset = <int64_t>big_64(data + 20)
    record.log_offset = <int64_t>big_64(data + 28)
    at = 48 + (20 if record.sys_flag & BORN_V6 else 8)
    record.store_ms = <int64_t>big_64(data + at)
    record.body_size = <int32_t>big_32(data + head - 4)
    record.body = data + head
    if record.size > size or record.body_size < 0 or head + record.body_size + 3 > record.size:
        return False
    at = head + record.body_size
    if magic == MAGIC_V1:
        length = data[at]
        at += 1
        if length > 127:
            return False
    else:
        if at + 2 > record.size:
            return False
        length = big_16(data + at)
        at += 2
    if at + length + 2 > record.size:
        return False
    record.topic.data = data + at
    record.topic.size = length
    at += length
    record.properties.size = big_16(data + at)
    record.properties.data = data + at + 2
    return record.properties.size <= PROPERTIES_BYTES_MAX and at + 2 + record.properties.size == record.size


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
    return start, count


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


def stage_records(data, queue_for, entry_code):
    cdef const unsigned char[::1] view = data
    cdef Bytes raw
    cdef Py_ssize_t size = view.shape[0], at = 0
    cdef Record record
    cdef Named named
    cdef int64_t code, store_ms = 0
    cdef uint32_t topic_hash = 0
    cdef Text topic
    cdef bint is_first, is_delayed = False
    cdef QueueTail queue
    cdef Buffer keys
    cdef list queues = []
    cdef dict known = {}
    cdef object found
    if not size:
        return queues, b"", 0
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
                known = {}
            named = find_named(record.properties.data, record.properties.size)
            if record.sys_flag & TRANSACTION_BITS not in (PREPARED, ROLLBACK):
                found = known.get(record.queue_id)
                if found is None:
                    found = queue_for(topic.data[:topic.size], record.queue_id)
                    if found is None:
                        continue
                    known[record.queue_id] = found
                queue = <QueueTail?>found
                if is_delayed:
                    code = entry_code(SCHEDULE_NAME, record.properties.data[:record.properties.size], store_ms)
                else:
                    code = tags_code(named.tags)
                is_first = queue.next_offset == queue.max_offset
                if record.queue_offset == queue.next_offset and record.queue_offset:
                    queue.stage_one(record.log_offset, <int32_t>record.size, code)
                elif not found.stage(record.queue_offset, record.log_offset, record.size, code):
                    is_first = False
                if is_first:
                    queues.append(found)
            if record.sys_flag & TRANSACTION_BITS != ROLLBACK:
                append_keys(&keys, topic_hash, named.unique, named.keys, record.log_offset, store_ms)
        return queues, taken(&keys, 0), store_ms
    finally:
        PyMem_Free(keys.data)


# Pulls.

cdef inline bint is_entry_of(Bytes data, Py_ssize_t size, int32_t queue_id, int64_t queue_offset, int64_t log_offset, Text topic) noexcept:
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


cdef int copy_cached(Buffer *to, int64_t start, Py_ssize_t size, dict blocks, int64_t block_bytes, int64_t recent_start, bytearray recent) except -1:
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
            if size != HOLE_SIZE and not (RECORD_BYTES_MIN <= size <= GATHERED_BYTES_MAX and 0 <= log_offset <= written_end - size):
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


# Sends: headers.

cdef class TopicTarget:
    cdef public bytes encoded
    cdef public int32_t write_queue_nums
    cdef public bint takes_plain
    cdef public dict queues
    cdef uint32_t key_prefix

    def __init__(self, str name, int32_t write_queue_nums, *, bint takes_plain):
        cdef bytes raw = name.encode()
        cdef bytes prefix = raw + b"#"
        self.encoded = bytes([min(len(raw), 255)]) + raw
        self.write_queue_nums = write_queue_nums
        self.takes_plain = takes_plain and len(raw) <= 127
        self.queues = {}
        self.key_prefix = hash_more(0, <Bytes>PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))


cdef enum Field:
    GROUP
    TOPIC
    DEFAULT_TOPIC
    DEFAULT_NUMS
    QUEUE_ID
    SYS_FLAG
    BORN
    FLAG
    PROPERTIES
    RECONSUME
    MAX_RECONSUME
    BATCH
    FIELDS
    OTHER

cdef enum:
    REQUIRED = 0xFF

cdef struct Fields:
    unsigned int seen
    bint has_escapes  # in the properties
    Text text[FIELDS]

cdef struct Header:
    int64_t code
    int64_t flag
    int64_t opaque
    Fields fields[2]  # by one letter each (310, 320), by name (10)


cdef Field letter_of(Bytes name, Py_ssize_t size) noexcept:
    if size != 1:
        return OTHER
    if 97 <= name[0] <= 106:  # a to j
        return <Field>(name[0] - 97)
    if name[0] == 108:  # l
        return MAX_RECONSUME
    return BATCH if name[0] == 109 else OTHER


cdef Field name_of(Bytes name, Py_ssize_t size) noexcept:
    if is_named(name, size, b"producerGroup", 13):
        return GROUP
    if is_named(name, size, b"topic", 5):
        return TOPIC
    if is_named(name, size, b"defaultTopic", 12):
        return DEFAULT_TOPIC
    if is_named(name, size, b"defaultTopicQueueNums", 21):
        return DEFAULT_NUMS
    if is_named(name, size, b"queueId", 7):
        return QUEUE_ID
    if is_named(name, size, b"sysFlag", 7):
        return SYS_FLAG
    if is_named(name, size, b"bornTimestamp", 13):
        return BORN
    if is_named(name, size, b"flag", 4):
        return FLAG
    if is_named(name, size, b"properties", 10):
        return PROPERTIES
    if is_named(name, size, b"reconsumeTimes", 14):
        return RECONSUME
    if is_named(name, size, b"maxReconsumeTimes", 17):
        return MAX_RECONSUME
    return BATCH if is_named(name, size, b"batch", 5) else OTHER


cdef bint note_field(Header *header, Bytes name, Py_ssize_t name_size, Text value, bint has_escapes) noexcept:
    """Note a field under its letter or name; False if it came before, or has escapes and is not the properties."""
    cdef Field field = letter_of(name, name_size)
    cdef Fields *fields = &header.fields[0]
    if field == OTHER:
        field = name_of(name, name_size)
        fields = &header.fields[1]
        if field == OTHER:
            return not has_escapes
    if fields.seen >> <int>field & 1 or (has_escapes and field != PROPERTIES):
        return False
    fields.seen |= 1u << <int>field
    fields.text[<int>field] = value
    if field == PROPERTIES:
        fields.has_escapes = has_escapes
    return True


cdef bint read_number(Text text, int64_t most, int64_t *value) noexcept:
    """Read a decimal number of at least 0 as Java writes it: no sign, no leading zero."""
    cdef Py_ssize_t at
    cdef int64_t found = 0
    if not 0 < text.size <= 18 or (text.data[0] == 48 and text.size > 1):
        return False
    for at in range(text.size):
        if not 48 <= text.data[at] <= 57:
            return False
        found = 10 * found + (text.data[at] - 48)
    value[0] = found
    return found <= most


cdef bint is_utf8(Bytes data, Py_ssize_t size) noexcept:
    cdef Py_ssize_t at = 0
    cdef int more
    cdef uint32_t point
    while at < size:
        if data[at] < 0x80:
            at += 1
            continue
        if 0xC2 <= data[at] <= 0xDF:
            more = 1
            point = data[at] & 0x1F
        elif 0xE0 <= data[at] <= 0xEF:
            more = 2
            point = data[at] & 0x0F
        elif 0xF0 <= data[at] <= 0xF4:
            more = 3
            point = data[at] & 0x07
        else:
            return False
        if at + more >= size:
            return False
        at += 1
        for _ in range(more):
            if data[at] & 0xC0 != 0x80:
                return False
            point = point << 6 | (data[at] & 0x3F)
            at += 1
        if (more == 2 and point < 0x800) or (more == 3 and not 0x10000 <= point <= 0x10FFFF):
            return False
        if 0xD800 <= point <= 0xDFFF:
            return False
    return True


# JSON headers. A cursor that becomes NULL has met something unusual.

cdef struct Cursor:
    Bytes at
    Bytes end


cdef inline void skip_spaces(Cursor *cursor) noexcept:
    while cursor.at < cursor.end and cursor.at[0] in (32, 9, 10, 13):
        cursor.at += 1


cdef inline bint take_mark(Cursor *cursor, unsigned char mark) noexcept:
    """Skip spaces and one character; False if another one follows."""
    skip_spaces(cursor)
    if cursor.at >= cursor.end or cursor.at[0] != mark:
        return False
    cursor.at += 1
    return True


cdef bint take_text(Cursor *cursor, Text *text, bint *has_escapes) noexcept:
    """Take a JSON string; `text` is what stands between its quotes."""
    cdef Bytes at
    cdef unsigned char all_bits = 0
    has_escapes[0] = False
    if not take_mark(cursor, 34):
        return False
    at = plain_end(cursor.at, cursor.end)
    while at < cursor.end and at[0] != 34:
        if at[0] == 92:
            has_escapes[0] = True
            at += 1
            if at >= cursor.end:
                return False
        elif at[0] < 32:
            return False
        all_bits |= at[0]
        at = plain_end(at + 1, cursor.end)
    if at >= cursor.end:
        return False
    text.data = cursor.at
    text.size = at - cursor.at
    cursor.at = at + 1
    return not all_bits & 0x80 or is_utf8(text.data, text.size)


cdef bint take_int32(Cursor *cursor, int64_t *value) noexcept:
    """Take a JSON integer of 32 bits."""
    cdef Text digits
    cdef bint is_negative = False
    skip_spaces(cursor)
    if cursor.at < cursor.end and cursor.at[0] == 45:
        is_negative = True
        cursor.at += 1
    digits.data = cursor.at
    while cursor.at < cursor.end and 48 <= cursor.at[0] <= 57:
        cursor.at += 1
    digits.size = cursor.at - digits.data
    if not read_number(digits, INT32_MAX_VALUE + is_negative, value):
        return False
    if is_negative:
        if not value[0]:
            return False
        value[0] = -value[0]
    return cursor.at < cursor.end and cursor.at[0] in (44, 125, 32, 9, 10, 13)


cdef bint take_null(Cursor *cursor) noexcept:
    skip_spaces(cursor)
    if cursor.end - cursor.at < 4 or memcmp(cursor.at, b"null", 4):
        return False
    cursor.at += 4
    return True


cdef bint take_ext_fields(Cursor *cursor, Header *header) noexcept:
    cdef Text name, value
    cdef bint has_escapes
    if not take_mark(cursor, 123):
        return False
    if take_mark(cursor, 125):
        return True
    while True:
        if not take_text(cursor, &name, &has_escapes) or has_escapes or not take_mark(cursor, 58):
            return False
        if not take_text(cursor, &value, &has_escapes):
            return False
        if not note_field(header, name.data, name.size, value, has_escapes):
            return False
        if take_mark(cursor, 125):
            return True
        if not take_mark(cursor, 44):
            return False


cdef bint read_json(Bytes data, Py_ssize_t size, Header *header) noexcept:
    cdef Cursor cursor
    cdef Text name, value
    cdef bint has_escapes
    cdef unsigned int seen = 0, bit
    cdef int64_t number = 0
    cursor.at = data
    cursor.end = data + size
    if not take_mark(&cursor, 123):
        return False
    while True:
        if not take_text(&cursor, &name, &has_escapes) or has_escapes or not take_mark(&cursor, 58):
            return False
        if is_named(name.data, name.size, b"code", 4):
            bit = 1
            if not take_int32(&cursor, &header.code) or not is_send(header.code):
                return False
        elif is_named(name.data, name.size, b"flag", 4):
            bit = 2
            if not take_int32(&cursor, &header.flag):
                return False
        elif is_named(name.data, name.size, b"opaque", 6):
            bit = 4
            if not take_int32(&cursor, &header.opaque):
                return False
        elif is_named(name.data, name.size, b"version", 7):
            bit = 8
            if not take_int32(&cursor, &number):
                return False
        elif is_named(name.data, name.size, b"extFields", 9):
            bit = 16
            if not take_ext_fields(&cursor, header):
                return False
        elif is_named(name.data, name.size, b"remark", 6):
            bit = 128
            if not take_null(&cursor) and (not take_text(&cursor, &value, &has_escapes) or has_escapes):
                return False
        elif is_named(name.data, name.size, b"language", 8):
            bit = 32
            if not take_text(&cursor, &value, &has_escapes) or has_escapes:
                return False
        elif is_named(name.data, name.size, b"serializeTypeCurrentRPC", 23):
            bit = 64
            if not take_text(&cursor, &value, &has_escapes) or has_escapes:
                return False
        else:
            return False
        if seen & bit:
            return False
        seen |= bit
        if take_mark(&cursor, 125):
            break
        if not take_mark(&cursor, 44):
            return False
    skip_spaces(&cursor)
    return cursor.at == cursor.end and seen & 17 == 17


cdef inline bint is_send(int64_t code) noexcept:
    return code == 310 or code == 320 or code == 10


cdef bint read_binary(Bytes data, Py_ssize_t size, Header *header) noexcept:
    cdef Py_ssize_t at, end, length
    cdef Text name, value
    if size < 21:
        return False
    header.code = big_16(data)
    header.opaque = <int32_t>big_32(data + 5)
    header.flag = <int32_t>big_32(data + 9)
    if not is_send(header.code) or <int32_t>big_32(data + 13) > 0:
        return False
    length = <int32_t>big_32(data + 17)
    at = 21
    end = at + length
    if length <= 0 or end > size:
        return False
    while at < end:
        if at + 2 > end:
            return False
        name.size = big_16(data + at)
        name.data = data + at + 2
        at += 2 + name.size
        if at + 4 > end:
            return False
        value.size = <int32_t>big_32(data + at)
        value.data = data + at + 4
        if value.size < 0 or value.size > end - at - 4:
            return False
        at += 4 + value.size
        if not is_utf8(name.data, name.size) or not is_utf8(value.data, value.size):
            return False
        if not name.size or not value.size:
            continue
        if not note_field(header, name.data, name.size, value, False):
            return False
    return True


cdef inline int hex_digit(unsigned char digit) noexcept:
    if 48 <= digit <= 57:
        return digit - 48
    if 97 <= digit <= 102:
        return digit - 87
    return digit - 55 if 65 <= digit <= 70 else -1


cdef int32_t read_escape(Bytes at, Bytes end) noexcept:
    """Return the code unit of the four digits at `at`, -1 if they are not digits."""
    cdef int32_t unit = 0
    cdef int digit, number
    if end - at < 4:
        return -1
    for number in range(4):
        digit = hex_digit(at[number])
        if digit < 0:
            return -1
        unit = unit << 4 | digit
    return unit


cdef int unescape(Text text, Buffer *to) except -1:
    """Append what a JSON string means, as UTF-8; return 0 if an escape is unusual."""
    cdef Bytes at = text.data
    cdef Bytes end = text.data + text.size
    cdef Bytes next
    cdef unsigned char *out
    cdef int32_t unit, low
    reserve(to, text.size)
    out = to.data + to.size
    while at < end:
        next = <Bytes>memchr(at, 92, end - at)
        if next == NULL:
            next = end
        memcpy(out, at, next - at)
        out += next - at
        at = next
        if at == end:
            break
        if end - at < 2:
            return 0
        at += 2
        unit = (at - 1)[0]
        if unit == 117:
            unit = read_escape(at, end)
            at += 4
            if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
                return 0
            if 0xD800 <= unit <= 0xDBFF:
                if end - at < 6 or at[0] != 92 or at[1] != 117:
                    return 0
                low = read_escape(at + 2, end)
                at += 6
                if not 0xDC00 <= low <= 0xDFFF:
                    return 0
                unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
        elif unit == 110:
            unit = 10
        elif unit == 116:
            unit = 9
        elif unit == 114:
            unit = 13
        elif unit == 98:
            unit = 8
        elif unit == 102:
            unit = 12
        elif unit not in (34, 92, 47):
            return 0
        if unit < 0x80:
            out[0] = <unsigned char>unit
            out += 1
        elif unit < 0x800:
            out[0] = <unsigned char>(0xC0 | unit >> 6)
            out[1] = <unsigned char>(0x80 | unit & 0x3F)
            out += 2
        elif unit < 0x10000:
            out[0] = <unsigned char>(0xE0 | unit >> 12)
            out[1] = <unsigned char>(0x80 | unit >> 6 & 0x3F)
            out[2] = <unsigned char>(0x80 | unit & 0x3F)
            out += 3
        else:
            out[0] = <unsigned char>(0xF0 | unit >> 18)
            out[1] = <unsigned char>(0x80 | unit >> 12 & 0x3F)
            out[2] = <unsigned char>(0x80 | unit >> 6 & 0x3F)
            out[3] = <unsigned char>(0x80 | unit & 0x3F)
            out += 4
    to.size = out - to.data
    return 1


# Sends: properties.

cdef struct Properties:
    Named named
    Text delay
    bint waits
    bint has_others  # besides UNIQ_KEY and WAIT


cdef inline bint is_false(Text value) noexcept:
    """Whether a text is "false", in upper or lower case."""
    cdef int at
    if value.size != 5:
        return False
    for at in range(5):
        if value.data[at] | 0x20 != FALSE[at]:
            return False
    return True


cdef inline bint is_unusual(Bytes name, Py_ssize_t size) noexcept:
    """Whether the Python code must look at a property: transactions, timers, and names that brokers set."""
    if size >= 6 and memcmp(name, b"TIMER_", 6) == 0:
        return True
    return (
        is_named(name, size, b"TRAN_MSG", 8)
        or is_named(name, size, b"__CRC32#", 8)
        or is_named(name, size, b"CLUSTER", 7)
        or is_named(name, size, b"REAL_TOPIC", 10)
        or is_named(name, size, b"REAL_QID", 8)
    )


cdef int keep_properties(Text raw, bint is_batch, Buffer *kept, Properties *found) except -1:
    """Append the pairs to store; return 0 if a property is unusual. WAIT is dropped, of a batch UNIQ_KEY too."""
    cdef Text names[NAMES_MAX]
    cdef int count = 0, number
    cdef Py_ssize_t start = 0, stop, split
    cdef Bytes mark
    cdef Text name, value
    found.named = find_named(NULL, 0)
    found.delay.size = 0
    found.delay.data = NULL
    found.waits = True
    reserve(kept, raw.size + 1)
    while start < raw.size:
        mark = <Bytes>memchr(raw.data + start, 2, raw.size - start)
        stop = mark - raw.data if mark != NULL else raw.size
        mark = <Bytes>memchr(raw.data + start, 1, stop - start)
        split = mark - raw.data if mark != NULL else stop
        name.data = raw.data + start
        name.size = split - start
        value.data = raw.data + split + 1
        value.size = stop - split - 1
        start = stop + 1
        if name.size <= 0 or value.size <= 0:
            continue
        if count == NAMES_MAX or is_unusual(name.data, name.size):
            return 0
        for number in range(count):
            if is_named(names[number].data, names[number].size, <const char *>name.data, name.size):
                return 0
        names[count] = name
        count += 1
        if is_named(name.data, name.size, b"WAIT", 4):
            found.waits = not is_false(value)
            continue
        if is_named(name.data, name.size, b"UNIQ_KEY", 8):
            found.named.unique = value
            if is_batch:
                continue
        elif is_named(name.data, name.size, b"KEYS", 4):
            found.named.keys = value
        elif is_named(name.data, name.size, b"TAGS", 4):
            found.named.tags = value
        elif is_named(name.data, name.size, b"DELAY", 5):
            found.delay = value
        append(kept, name.data, stop - split + name.size)
        append(kept, b"\x02", 1)
    return 1


cdef bint is_plain_json(Text text) noexcept:
    """Whether a text stands in a JSON string as it is."""
    cdef Py_ssize_t at
    for at in range(text.size):
        if text.data[at] < 32 or text.data[at] == 34 or text.data[at] == 92:
            return False
    return True


# Sends.

cdef struct Send:
    Header header
    Fields *fields
    int form
    int64_t queue_id
    int64_t sys_flag
    int64_t born_ms
    int64_t flag
    int64_t reconsume
    bint is_batch


cdef bint read_send(int form, Bytes data, Py_ssize_t size, Send *send) noexcept:
    """Read the header of an ordinary send; False if it is something else."""
    cdef int64_t number = 0
    cdef Fields *fields
    cdef Text batch
    send.header.code = -1
    send.header.flag = send.header.opaque = 0
    send.header.fields[0].seen = send.header.fields[1].seen = 0
    send.header.fields[0].has_escapes = send.header.fields[1].has_escapes = False
    send.form = form
    if form == 0:
        if not read_json(data, size, &send.header):
            return False
    elif form != 1 or not read_binary(data, size, &send.header):
        return False
    if send.header.flag & ~<int64_t>2:
        return False
    fields = send.fields = &send.header.fields[1 if send.header.code == 10 else 0]
    if fields.seen & REQUIRED != REQUIRED or send.header.fields[0 if send.header.code == 10 else 1].has_escapes:
        return False
    send.reconsume = 0
    send.is_batch = False
    if fields.seen >> <int>RECONSUME & 1 and not read_number(fields.text[<int>RECONSUME], INT32_MAX_VALUE, &send.reconsume):
        return False
    if fields.seen >> <int>MAX_RECONSUME & 1 and not read_number(fields.text[<int>MAX_RECONSUME], INT32_MAX_VALUE, &number):
        return False
    if fields.seen >> <int>BATCH & 1:
        batch = fields.text[<int>BATCH]
        send.is_batch = is_named(batch.data, batch.size, b"true", 4)
        if not send.is_batch and not is_named(batch.data, batch.size, b"false", 5):
            return False
    if not fields.seen >> <int>PROPERTIES & 1:
        fields.text[<int>PROPERTIES].data = b""
        fields.text[<int>PROPERTIES].size = 0
        fields.has_escapes = False
    return (
        read_number(fields.text[<int>DEFAULT_NUMS], INT32_MAX_VALUE, &number)
        and read_number(fields.text[<int>QUEUE_ID], INT32_MAX_VALUE, &send.queue_id)
        and read_number(fields.text[<int>SYS_FLAG], INT32_MAX_VALUE, &send.sys_flag)
        and read_number(fields.text[<int>BORN], <int64_t>1 << 60, &send.born_ms)
        and read_number(fields.text[<int>FLAG], INT32_MAX_VALUE, &send.flag)
        and not send.sys_flag & UNUSUAL_FLAGS
    )


cdef class SendEngine:
    cdef dict topics
    cdef bytes store_host, store_host_hex, region, region_json, cluster_pair
    cdef uint64_t frame_bytes_max
    cdef Py_ssize_t body_bytes_max
    cdef list delays_ms
    cdef readonly Py_ssize_t count
    cdef int64_t log_end, store_ms
    cdef Py_ssize_t room, body_bytes
    cdef Buffer records, keys, answers, kept, plain, part, ids
    cdef list queues, acks
    # The acknowledgement that the next message joins, if it is of the same connection and waits alike.
    cdef int64_t ack_link, ack_end, ack_count
    cdef bint ack_waits
    cdef Py_ssize_t ack_start

    def __cinit__(self):
        cdef Buffer empty
        empty.data = NULL
        empty.size = empty.room = 0
        self.records = self.keys = self.answers = self.kept = self.plain = self.part = self.ids = empty

    def __dealloc__(self):
        PyMem_Free(self.records.data)
        PyMem_Free(self.keys.data)
        PyMem_Free(self.answers.data)
        PyMem_Free(self.kept.data)
        PyMem_Free(self.plain.data)
        PyMem_Free(self.part.data)
        PyMem_Free(self.ids.data)

    def __init__(self, dict topics):
        self.topics = topics
        self.store_host = self.store_host_hex = self.region = self.region_json = self.cluster_pair = b""
        self.delays_ms = []
        self.begin(0, 0, 0)

    def configure(self, *, bytes store_host, str region, str cluster, frame_bytes_max, body_bytes_max, delays_ms):
        from msgspec.json import encode

        self.store_host = store_host
        self.store_host_hex = store_host.hex().upper().encode()
        self.region = region.encode()
        self.region_json = encode(region)
        self.cluster_pair = f"CLUSTER\x01{cluster}\x02".encode()
        self.frame_bytes_max = frame_bytes_max
        self.body_bytes_max = body_bytes_max
        self.delays_ms = list(delays_ms)

    def begin(self, int64_t log_end, Py_ssize_t room, int64_t store_ms):
        self.log_end = log_end
        self.room = room
        self.store_ms = store_ms
        self.count = self.body_bytes = 0
        if self.records.room > BUFFER_BYTES_KEPT:
            PyMem_Free(self.records.data)
            self.records.data = NULL
            self.records.room = 0
        self.records.size = self.keys.size = self.answers.size = 0
        self.queues = []
        self.acks = []
        self.ack_count = self.ack_start = 0

    def take(self, int64_t link, bytes born_host, bytes data, Py_ssize_t at):
        cdef Bytes raw = <Bytes>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef uint64_t length, header_bytes
        cdef uint32_t word
        cdef Bytes header
        if PyBytes_GET_SIZE(born_host) not in (8, 20) or PyBytes_GET_SIZE(self.store_host) not in (8, 20):
            return at
        while size - at >= 8:
            length = big_32(raw + at)
            word = big_32(raw + at + 4)
            header_bytes = word & 0xFFFFFF
            if length + 4 > self.frame_bytes_max or header_bytes + 4 > length or length + 4 > <uint64_t>(size - at):
                break
            if header_bytes > HEADER_BYTES_MAX:
                break
            header = raw + at + 8
            if not self.take_frame(link, born_host, <int>(word >> 24), header, header_bytes, length - 4 - header_bytes):
                break
            at += 4 + length
        return at

    cdef int take_frame(self, int64_t link, bytes born_host, int form, Bytes header, Py_ssize_t header_bytes, Py_ssize_t body_bytes) except -1:
        """Take one send; return 0, with nothing changed, if it is something else or unusual."""
        cdef Send send
        cdef TopicTarget route
        cdef Text topic, raw
        cdef PyObject *found
        cdef object name
        if not 0 < body_bytes <= self.body_bytes_max or not read_send(form, header, header_bytes, &send):
            return 0
        topic = send.fields.text[<int>TOPIC]
        name = PyUnicode_DecodeUTF8(<char *>topic.data, topic.size, "strict")
        found = PyDict_GetItem(self.topics, name)
        if found == NULL:
            return 0
        route = <TopicTarget?><object>found
        if not route.takes_plain or send.queue_id >= route.write_queue_nums:
            return 0
        raw = send.fields.text[<int>PROPERTIES]
        if send.fields.has_escapes:
            self.plain.size = 0
            if not unescape(raw, &self.plain):
                return 0
            raw.data = self.plain.data
            raw.size = self.plain.size
        if send.is_batch:
            return self.take_batch(link, born_host, &send, route, raw, header + header_bytes, body_bytes)
        return self.take_single(link, born_host, &send, route, raw, header + header_bytes, body_bytes)

    cdef int take_single(self, int64_t link, bytes born_host, Send *send, TopicTarget route, Text raw, Bytes body, Py_ssize_t body_bytes) except -1:
        cdef Properties found
        cdef TopicTarget target = route
        cdef QueueTail queue
        cdef PyObject *there
        cdef int64_t queue_id = send.queue_id, level = 0, code, log_offset, queue_offset
        cdef Py_ssize_t size
        self.kept.size = 0
        if not keep_properties(raw, False, &self.kept, &found):
            return 0
        if found.named.unique.size and send.form == 0 and not is_plain_json(found.named.unique):
            return 0
        if found.delay.size:
            if not read_number(found.delay, len(self.delays_ms), &level) or not level:
                return 0
            there = PyDict_GetItem(self.topics, SCHEDULE_NAME)
            if there == NULL:
                return 0
            target = <TopicTarget?><object>there
            queue_id = level - 1
            append(&self.kept, b"REAL_TOPIC\x01", 11)
            append(&self.kept, PyBytes_AS_STRING(route.encoded) + 1, PyBytes_GET_SIZE(route.encoded) - 1)
            append(&self.kept, b"\x02REAL_QID\x01", 10)
            append_number(&self.kept, send.queue_id)
            append(&self.kept, b"\x02", 1)
        there = PyDict_GetItem(target.queues, queue_id)
        if there == NULL:
            return 0
        queue = <QueueTail?><object>there
        append(&self.kept, PyBytes_AS_STRING(self.cluster_pair), PyBytes_GET_SIZE(self.cluster_pair))
        size = self.record_bytes(born_host, target, body_bytes, self.kept.size)
        if self.kept.size + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX or self.records.size + size > self.room:
            return 0
        code = self.store_ms + <int64_t>self.delays_ms[level - 1] if level else tags_code(found.named.tags)
        log_offset = self.log_end + self.records.size
        queue_offset = queue.next_offset
        self.store(born_host, send, target, queue, queue_id, <int32_t>send.flag, body, body_bytes, self.kept.data, self.kept.size, code)
        append_keys(&self.keys, target.key_prefix, found.named.unique, found.named.keys, log_offset, self.store_ms)
        self.ids.size = 0
        self.append_id(log_offset)
        self.acknowledge(link, send, queue_offset, found.named.unique, found.waits, 1)
        return 1

    cdef int take_batch(self, int64_t link, bytes born_host, Send *send, TopicTarget route, Text raw, Bytes body, Py_ssize_t body_bytes) except -1:
        cdef Properties found
        cdef Named named
        cdef QueueTail queue
        cdef PyObject *there
        cdef Bytes part = body, properties
        cdef Bytes end = body + body_bytes
        cdef Py_ssize_t length, properties_bytes, shared, longest = 0, parts = 0, number
        cdef int64_t first, log_offset
        self.kept.size = 0
        if not keep_properties(raw, True, &self.kept, &found) or found.delay.size:
            return 0
        if found.named.unique.size and send.form == 0 and not is_plain_json(found.named.unique):
            return 0
        append(&self.kept, PyBytes_AS_STRING(self.cluster_pair), PyBytes_GET_SIZE(self.cluster_pair))
        shared = self.kept.size
        there = PyDict_GetItem(route.queues, send.queue_id)
        if there == NULL:
            return 0
        queue = <QueueTail?><object>there
        while part < end:  # look at all messages before the first one is stored
            if end - part < 22 or parts == PARTS_MAX:
                return 0
            length = <int32_t>big_32(part + 16)
            if length < 0 or length > end - part - 22:
                return 0
            properties = part + 20 + length + 2
            properties_bytes = big_16(properties - 2)
            if properties_bytes > end - properties or properties + properties_bytes - part != <int32_t>big_32(part):
                return 0
            if has_timer(properties, properties_bytes):
                return 0
            longest = max(longest, properties_bytes)
            part = properties + properties_bytes
            parts += 1
        if longest + 1 + shared + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX:
            return 0
        length = body_bytes + parts * (113 + shared + PyBytes_GET_SIZE(route.encoded))
        if self.records.size + length > self.room:
            return 0
        self.ids.size = 0
        first = queue.next_offset
        part = body
        for number in range(parts):
            length = <int32_t>big_32(part + 16)
            properties = part + 20 + length + 2
            properties_bytes = big_16(properties - 2)
            self.part.size = 0
            append(&self.part, properties, properties_bytes)
            if properties_bytes and properties[properties_bytes - 1] != 2:
                append(&self.part, b"\x02", 1)
            append(&self.part, self.kept.data, shared)
            named = find_named(self.part.data, self.part.size)
            log_offset = self.log_end + self.records.size
            self.store(
                born_host, send, route, queue, send.queue_id, <int32_t>big_32(part + 12), part + 20, length,
                self.part.data, self.part.size, tags_code(named.tags),
            )
            append_keys(&self.keys, route.key_prefix, named.unique, named.keys, log_offset, self.store_ms)
            if number:
                append(&self.ids, b",", 1)
            self.append_id(log_offset)
            part = properties + properties_bytes
        self.acknowledge(link, send, first, found.named.unique, found.waits, parts)
        return 1

    cdef inline Py_ssize_t record_bytes(self, bytes born_host, TopicTarget route, Py_ssize_t body_bytes, Py_ssize_t properties_bytes):
        return (
            74 + PyBytes_GET_SIZE(born_host) + PyBytes_GET_SIZE(self.store_host) + body_bytes
            + PyBytes_GET_SIZE(route.encoded) + properties_bytes + CRC_PROPERTY_BYTES
        )

    cdef int store(
        self, bytes born_host, Send *send, TopicTarget route, QueueTail queue, int64_t queue_id, int32_t flag,
        Bytes body, Py_ssize_t body_bytes, Bytes properties, Py_ssize_t properties_bytes, int64_t code,
    ) except -1:
        """Append a record and stage its queue entry."""
        cdef Py_ssize_t size = self.record_bytes(born_host, route, body_bytes, properties_bytes)
        cdef Py_ssize_t born_bytes = PyBytes_GET_SIZE(born_host), store_bytes = PyBytes_GET_SIZE(self.store_host)
        cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(route.encoded)
        cdef int64_t log_offset = self.log_end + self.records.size
        cdef int64_t sys_flag = send.sys_flag | (BORN_V6 if born_bytes == 20 else 0) | (STORE_V6 if store_bytes == 20 else 0)
        cdef unsigned char *start
        cdef unsigned char *at
        reserve(&self.records, size)
        if queue.next_offset == queue.max_offset:
            self.queues.append(queue)
        start = at = self.records.data + self.records.size
        put_32(at, <uint32_t>size)
        put_32(at + 4, MAGIC_V1)
        put_32(at + 8, crc32_of(body, body_bytes) & CRC_MASK)
        put_32(at + 12, <uint32_t>queue_id)
        put_32(at + 16, <uint32_t>flag)
        put_64(at + 20, <uint64_t>queue.next_offset)
        put_64(at + 28, <uint64_t>log_offset)
        put_32(at + 36, <uint32_t>sys_flag)
        put_64(at + 40, <uint64_t>send.born_ms)
        at += 48
        memcpy(at, PyBytes_AS_STRING(born_host), born_bytes)
        at += born_bytes
        put_64(at, <uint64_t>self.store_ms)
        memcpy(at + 8, PyBytes_AS_STRING(self.store_host), store_bytes)
        at += 8 + store_bytes
        put_32(at, <uint32_t>send.reconsume)
        put_64(at + 4, 0)
        put_32(at + 12, <uint32_t>body_bytes)
        at += 16
        memcpy(at, body, body_bytes)
        at += body_bytes
        memcpy(at, PyBytes_AS_STRING(route.encoded), topic_bytes)
        at += topic_bytes
        put_16(at, <uint32_t>(properties_bytes + CRC_PROPERTY_BYTES))
        memcpy(at + 2, properties, properties_bytes)
        at += 2 + properties_bytes
        put_crc_property(at, crc32_of(start, at - start) & CRC_MASK)
        queue.stage_one(log_offset, <int32_t>size, code)
        self.records.size += size
        self.count += 1
        self.body_bytes += body_bytes
        return 0

    cdef int append_id(self, int64_t log_offset) except -1:
        """Append the offset id of a message to the ids of the response."""
        cdef int digit
        append(&self.ids, PyBytes_AS_STRING(self.store_host_hex), PyBytes_GET_SIZE(self.store_host_hex))
        reserve(&self.ids, 16)
        for digit in range(16):
            self.ids.data[self.ids.size + digit] = HEX[log_offset >> (60 - 4 * digit) & 15]
        self.ids.size += 16
        return 0

    cdef int acknowledge(self, int64_t link, Send *send, int64_t queue_offset, Text unique, bint waits, Py_ssize_t messages) except -1:
        """Prepare the response to messages that were just stored."""
        cdef bint is_oneway = send.header.flag & 2 != 0
        if is_oneway:
            waits = False
        if self.ack_count and (self.ack_link != link or self.ack_waits != waits):
            self.close_ack()
        self.ack_link = link
        self.ack_waits = waits
        self.ack_count += messages
        self.ack_end = self.log_end + self.records.size
        if is_oneway:
            return 0
        if send.form == 0:
            return self.answer_json(send, queue_offset, unique)
        return self.answer_binary(send, queue_offset, unique)

    cdef int close_ack(self) except -1:
        self.acks.append(
            (self.ack_link, taken(&self.answers, self.ack_start), self.ack_end, self.ack_waits, self.ack_count)
        )
        self.ack_start = self.answers.size
        self.ack_count = 0
        return 0

    cdef int answer_json(self, Send *send, int64_t queue_offset, Text unique) except -1:
        cdef Buffer *to = &self.answers
        cdef Py_ssize_t start = to.size
        reserve(to, 320 + self.ids.size + unique.size)
        to.size += 8
        append(to, b'{"code":0,"extFields":{"MSG_REGION":', 36)
        append(to, PyBytes_AS_STRING(self.region_json), PyBytes_GET_SIZE(self.region_json))
        append(to, b',"TRACE_ON":"true","msgId":"', 28)
        append(to, self.ids.data, self.ids.size)
        append(to, b'","queueId":"', 13)
        append_number(to, send.queue_id)
        append(to, b'","queueOffset":"', 17)
        append_number(to, queue_offset)
        if unique.size:
            append(to, b'","transactionId":"', 19)
            append(to, unique.data, unique.size)
        append(to, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
        append_number(to, send.header.opaque)
        append(to, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
        append_number(to, VERSION)
        append(to, b"}", 1)
        put_32(to.data + start, <uint32_t>(to.size - start - 4))
        put_32(to.data + start + 4, <uint32_t>(to.size - start - 8))
        return 0

    cdef int answer_binary(self, Send *send, int64_t queue_offset, Text unique) except -1:
        cdef Buffer *to = &self.answers
        cdef Py_ssize_t start = to.size
        reserve(to, 320 + self.ids.size + unique.size)
        to.size += 8 + 21
        if PyBytes_GET_SIZE(self.region):
            self.append_field(b"MSG_REGION", 10, <Bytes>PyBytes_AS_STRING(self.region), PyBytes_GET_SIZE(self.region))
        self.append_field(b"TRACE_ON", 8, b"true", 4)
        self.append_field(b"msgId", 5, self.ids.data, self.ids.size)
        self.part.size = 0
        append_number(&self.part, send.queue_id)
        self.append_field(b"queueId", 7, self.part.data, self.part.size)
        self.part.size = 0
        append_number(&self.part, queue_offset)
        self.append_field(b"queueOffset", 11, self.part.data, self.part.size)
        if unique.size:
            self.append_field(b"transactionId", 13, unique.data, unique.size)
        put_32(to.data + start, <uint32_t>(to.size - start - 4))
        put_32(to.data + start + 4, <uint32_t>(1 << 24 | (to.size - start - 8)))
        put_16(to.data + start + 8, 0)
        to.data[start + 10] = 3  # PYTHON
        put_16(to.data + start + 11, VERSION)
        put_32(to.data + start + 13, <uint32_t>send.header.opaque)
        put_32(to.data + start + 17, 1)
        put_32(to.data + start + 21, 0)
        put_32(to.data + start + 25, <uint32_t>(to.size - start - 29))
        return 0

    cdef int append_field(self, Bytes name, int name_bytes, Bytes value, Py_ssize_t value_bytes) except -1:
        cdef Buffer *to = &self.answers
        reserve(to, 6 + name_bytes + value_bytes)
        put_16(to.data + to.size, name_bytes)
        memcpy(to.data + to.size + 2, name, name_bytes)
        put_32(to.data + to.size + 2 + name_bytes, <uint32_t>value_bytes)
        memcpy(to.data + to.size + 6 + name_bytes, value, value_bytes)
        to.size += 6 + name_bytes + value_bytes
        return 0

    def flush(self):
        if self.ack_count:
            self.close_ack()
        sends = TakenSends(
            self.log_end, taken(&self.records, 0), self.queues, taken(&self.keys, 0), self.store_ms, self.acks, self.count, self.body_bytes
        )
        self.begin(0, 0, 0)
        return sends


cdef bint has_timer(Bytes data, Py_ssize_t size) noexcept:
    cdef Bytes at = data
    cdef Bytes end = data + size
    while end - at >= 6:
        at = <Bytes>memchr(at, 84, end - at - 5)  # T
        if at == NULL:
            return False
        if memcmp(at, b"TIMER_", 6) == 0:
            return True
        at += 1
    return False
