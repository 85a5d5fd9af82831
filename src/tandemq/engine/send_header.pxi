# Headers of sends, JSON and binary: the fields of an ordinary one, or nothing.

cdef class TopicTarget:
    cdef public bytes encoded
    cdef public int32_t write_queue_nums
    cdef public bint takes_plain
    cdef public dict queues
    cdef public Budget budget
    cdef uint32_t key_prefix

    def __init__(self, str name, int32_t write_queue_nums, *, bint takes_plain):
        cdef bytes raw = name.encode()
        cdef bytes prefix = raw + b"#"
        self.encoded = bytes([min(len(raw), 255)]) + raw
        self.write_queue_nums = write_queue_nums
        self.takes_plain = takes_plain and len(raw) <= 127
        self.queues = {}
        self.budget = None
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

cdef struct StoredFields:
    unsigned int seen
    Text msg_id
    Text queue_id
    Text queue_offset

cdef enum EndField:
    HALF_OFFSET
    LOG_OFFSET
    OUTCOME
    FROM_CHECK
    MESSAGE_ID
    TRANSACTION_ID
    END_FIELDS

cdef struct Header:
    int64_t code
    int64_t flag
    int64_t opaque
    Fields fields[2]  # by one letter each (310, 320), by name (10)
    unsigned int ends_seen
    Text ends[END_FIELDS]  # of END_TRANSACTION (37); its group is among the fields by name
    Listed *listed  # all fields, if a signature is to be checked; or NULL
    StoredFields *stored  # of a response to a send; or NULL


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


cdef EndField end_name_of(Bytes name, Py_ssize_t size) noexcept:
    if is_named(name, size, b"tranStateTableOffset", 20):
        return HALF_OFFSET
    if is_named(name, size, b"commitLogOffset", 15):
        return LOG_OFFSET
    if is_named(name, size, b"commitOrRollback", 16):
        return OUTCOME
    if is_named(name, size, b"fromTransactionCheck", 20):
        return FROM_CHECK
    if is_named(name, size, b"msgId", 5):
        return MESSAGE_ID
    return TRANSACTION_ID if is_named(name, size, b"transactionId", 13) else END_FIELDS


cdef bint note_end_field(Header *header, Bytes name, Py_ssize_t size, Text value, bint has_escapes) noexcept:
    """Note a field of END_TRANSACTION; False if it came before, or has escapes."""
    cdef EndField field = end_name_of(name, size)
    if has_escapes:
        return False
    if field == END_FIELDS:
        return True
    if header.ends_seen >> <int>field & 1:
        return False
    header.ends_seen |= 1u << <int>field
    header.ends[<int>field] = value
    return True


cdef bint note_field(Header *header, Bytes name, Py_ssize_t name_size, Text value, bint has_escapes) noexcept:
    """Note a field under its letter or name; False if it came before, or has escapes and is not the properties."""
    cdef Field field = letter_of(name, name_size)
    cdef Fields *fields = &header.fields[0]
    cdef Text own_name
    if header.listed != NULL:
        own_name.data = name
        own_name.size = name_size
        if not list_field(header.listed, own_name, value, has_escapes):
            return False
    if field == OTHER:
        field = name_of(name, name_size)
        fields = &header.fields[1]
        if field == OTHER:
            return note_end_field(header, name, name_size, value, has_escapes)
    if fields.seen >> <int>field & 1 or (has_escapes and field != PROPERTIES):
        return False
    fields.seen |= 1u << <int>field
    fields.text[<int>field] = value
    if field == PROPERTIES:
        fields.has_escapes = has_escapes
    return True


cdef bint note_stored(StoredFields *stored, Text name, Text value) noexcept:
    """Note a field of a response to a send; False if it came before, or shows another response."""
    cdef unsigned int bit = 0
    if is_named(name.data, name.size, b"msgId", 5):
        bit = 1
        stored.msg_id = value
    elif is_named(name.data, name.size, b"queueId", 7):
        bit = 2
        stored.queue_id = value
    elif is_named(name.data, name.size, b"queueOffset", 11):
        bit = 4
        stored.queue_offset = value
    elif is_named(name.data, name.size, b"recallHandle", 12):
        return False
    if stored.seen & bit:
        return False
    stored.seen |= bit
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
        if header.stored != NULL:
            if has_escapes or not note_stored(header.stored, name, value):
                return False
        elif not note_field(header, name.data, name.size, value, has_escapes):
            return False
        if take_mark(cursor, 125):
            return True
        if not take_mark(cursor, 44):
            return False


cdef bint read_json(Bytes data, Py_ssize_t size, Header *header, int64_t code=-1) noexcept:
    """Read a JSON header. `code`: see `is_code`."""
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
            if not take_int32(&cursor, &header.code):
                return False
            if not is_code(header.code, code):
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


cdef inline bint is_code(int64_t code, int64_t wanted) noexcept:
    """Whether a request has the wanted code; -1: one of a send. Lite pulls count as pulls."""
    if wanted < 0:
        return code == 310 or code == 320 or code == 10 or code == END_TRANSACTION
    return code == wanted or (wanted == PULL_MESSAGE and code == LITE_PULL_MESSAGE)


cdef bint read_binary(Bytes data, Py_ssize_t size, Header *header, int64_t code=-1) noexcept:
    """Read a binary header. `code`: see `is_code`."""
    cdef Py_ssize_t at, end, length
    cdef Text name, value
    if size < 21:
        return False
    header.code = big_16(data)
    header.opaque = <int32_t>big_32(data + 5)
    header.flag = <int32_t>big_32(data + 9)
    if not is_code(header.code, code) or <int32_t>big_32(data + 13) > 0:
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
