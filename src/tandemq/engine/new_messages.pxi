# Messages of our client's producers: their properties, and their parts of batches.

cdef enum:
    KEPT_TOPICS = 1024
    BATCH_HEAD_BYTES = 20

cdef str EMPTY_TEXT = ""
cdef Py_ssize_t SENT_BYTES = SENT_PROPERTIES_MAX
cdef dict SENT_TOPICS = {}


cdef bint takes_topic(object topic) except -1:
    """Return whether a topic has a valid name and takes sends; False if it is no str."""
    cdef PyObject *found
    if type(topic) is not str:
        return False
    found = PyDict_GetItem(SENT_TOPICS, topic)
    if found != NULL:
        return <object>found is True
    if PyDict_Size(SENT_TOPICS) >= KEPT_TOPICS:
        SENT_TOPICS.clear()
    SENT_TOPICS[topic] = is_sent_topic(topic)
    return SENT_TOPICS[topic] is True


cdef int append_text(Buffer *buffer, object text, bint is_key) except -1:
    """Append a str in UTF-8; 0 if it is none, or has a byte that separates properties, or keys, or a lone surrogate."""
    cdef Py_ssize_t size, at
    cdef const char *data
    cdef unsigned char byte, lowest = 32 if is_key else 2
    if type(text) is not str:
        return 0
    try:
        data = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        return 0
    for at in range(size):
        byte = <unsigned char>data[at]
        if byte <= lowest and (byte == 1 or byte == 2 or byte == lowest):
            return 0
    append(buffer, data, size)
    return 1


cdef int append_named(Buffer *buffer, object name, object value) except -1:
    """Append a property; 0 if name or value is unusual."""
    if not append_text(buffer, name, False):
        return 0
    append(buffer, b"\x01", 1)
    if not append_text(buffer, value, False):
        return 0
    append(buffer, b"\x02", 1)
    return 1


cdef int append_properties(Buffer *buffer, object message, object unique_key) except -1:
    """Append the properties of a message; 0 if it is unusual."""
    cdef object tags, keys = message.keys, properties = message.properties, key
    cdef Py_ssize_t start = buffer.size
    if type(properties) is not dict:
        return 0
    if PyDict_Size(properties):
        for key, value in (<dict>properties).items():
            if type(key) is not str or not key or key in UNUSUAL_PROPERTIES or not append_named(buffer, key, value):
                return 0
    if not append_named(buffer, UNIQUE_KEY_NAME, unique_key):
        return 0
    if message.wait_store_ok:
        append(buffer, b"WAIT\x01true\x02", 10)
    else:
        append(buffer, b"WAIT\x01false\x02", 11)
    tags = message.tags
    if tags is not EMPTY_TEXT:
        if type(tags) is not str:
            return 0
        if PyUnicode_GET_LENGTH(tags):
            if "|" in <str>tags or <str>tags != (<str>tags).strip() or not append_named(buffer, TAGS_NAME, tags):
                return 0
    if type(keys) is not tuple:
        return 0
    if PyTuple_GET_SIZE(keys):
        append(buffer, b"KEYS\x01", 5)
        for at in range(PyTuple_GET_SIZE(keys)):
            if at:
                append(buffer, b" ", 1)
            if not append_text(buffer, (<tuple>keys)[at], True):
                return 0
        append(buffer, b"\x02", 1)
    return buffer.size - start <= SENT_BYTES


cdef object usual_body(object message, Py_ssize_t body_bytes_max, int32_t *flag):
    """Return the body of a message whose fields, but for its texts, are usual, and its flag; None of another one."""
    cdef object body, number
    if type(message) is not Message or message.delay is not None or message.deliver_at is not None:
        return None
    if message.priority is not None or type(message.delay_level) is not int or message.delay_level != 0:
        return None
    body = message.body
    number = message.flag
    if type(body) is not bytes or PyBytes_GET_SIZE(body) > body_bytes_max or type(number) is not int:
        return None
    if not -INT32_MAX_VALUE - 1 <= number <= INT32_MAX_VALUE or not takes_topic(message.topic):
        return None
    flag[0] = <int32_t>number
    return body


def plain_properties(message, unique_key, Py_ssize_t body_bytes_max):
    cdef int32_t flag
    cdef Buffer sent  # Of this call: a collection of garbage within it may let another thread run.
    sent.data = NULL
    sent.size = sent.room = 0
    if usual_body(message, body_bytes_max, &flag) is None:
        return None
    try:
        reserve(&sent, 256)
        if not append_properties(&sent, message, unique_key):
            return None
        return PyUnicode_DecodeUTF8(<char *>sent.data, sent.size, NULL)
    finally:
        PyMem_Free(sent.data)


def batch_part(message, unique_key, Py_ssize_t body_bytes_max):
    cdef int32_t flag
    cdef Py_ssize_t body_end
    cdef object body = usual_body(message, body_bytes_max, &flag)
    cdef Buffer sent
    sent.data = NULL
    sent.size = sent.room = 0
    if body is None:
        return None
    body_end = BATCH_HEAD_BYTES + PyBytes_GET_SIZE(body)
    try:
        reserve(&sent, body_end + 258)
        sent.size = body_end + 2
        if not append_properties(&sent, message, unique_key):
            return None
        memset(sent.data, 0, BATCH_HEAD_BYTES)
        put_32(sent.data, <uint32_t>sent.size)
        put_32(sent.data + 12, <uint32_t>flag)
        put_32(sent.data + 16, <uint32_t>PyBytes_GET_SIZE(body))
        memcpy(sent.data + BATCH_HEAD_BYTES, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        put_16(sent.data + body_end, <uint32_t>(sent.size - body_end - 2))
        return taken(&sent, 0)
    finally:
        PyMem_Free(sent.data)


def unique_key(str head, int64_t ms, int count):
    cdef char text[12]
    cdef int at
    cdef uint32_t value = <uint32_t>ms
    for at in range(8):
        text[at] = <char>HEX[value >> (28 - 4 * at) & 15]
    for at in range(4):
        text[8 + at] = <char>HEX[count >> (12 - 4 * at) & 15]
    return head + PyUnicode_DecodeUTF8(text, 12, NULL)


# Where requests begin and end, and the buffer for fields, which is used without a call of Python.
cdef bytes REQUEST_MIDDLE = b'},"flag":0,"language":"' + LANGUAGE_SPOKEN.encode() + b'","opaque":'
cdef bytes ONEWAY_MIDDLE = b'},"flag":2,"language":"' + LANGUAGE_SPOKEN.encode() + b'","opaque":'
cdef bytes HEADER_END = b',"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION_SPOKEN).encode() + b"}"
cdef Buffer FRAME
FRAME.data = NULL
FRAME.size = FRAME.room = 0


cdef int append_json_text(Buffer *buffer, Bytes at, Py_ssize_t size) except -1:
    """Append a text in UTF-8 as a JSON string."""
    cdef Bytes end = at + size, stop
    cdef unsigned char escape[6]
    append(buffer, b'"', 1)
    while True:
        stop = plain_end(at, end)
        while stop < end and stop[0] >= 0x80:
            stop += 1
        append(buffer, at, stop - at)
        if stop >= end:
            break
        at = stop
        if at[0] >= 0x20 and at[0] != 0x22 and at[0] != 0x5C:
            continue
        escape[0] = 0x5C
        if at[0] == 0x22 or at[0] == 0x5C:
            escape[1] = at[0]
            append(buffer, escape, 2)
        elif at[0] in (8, 9, 10, 12, 13):
            escape[1] = b"btn_fr"[at[0] - 8]
            append(buffer, escape, 2)
        else:
            memcpy(escape + 1, b"u00", 3)
            escape[4] = b"0123456789abcdef"[at[0] >> 4]
            escape[5] = b"0123456789abcdef"[at[0] & 15]
            append(buffer, escape, 6)
        at += 1
    append(buffer, b'"', 1)
    return 0


cdef int write_fields(
    bytes head, int64_t sys_flag, int64_t wall_ms, int64_t flag, Bytes properties, Py_ssize_t size, int64_t reconsume_times
) except -1:
    """Write the fields of a send into `FRAME`."""
    FRAME.size = 0
    append(&FRAME, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
    append(&FRAME, b',"f":"', 6)
    append_number(&FRAME, sys_flag)
    append(&FRAME, b'","g":"', 7)
    append_number(&FRAME, wall_ms)
    append(&FRAME, b'","h":"', 7)
    append_number(&FRAME, flag)
    append(&FRAME, b'","i":', 6)
    append_json_text(&FRAME, properties, size)
    append(&FRAME, b',"j":"', 6)
    append_number(&FRAME, reconsume_times)
    append(&FRAME, b'"', 1)
    return 1


def send_fields(bytes head, int64_t sys_flag, int64_t wall_ms, int64_t flag, str properties, int64_t reconsume_times):
    cdef Py_ssize_t size
    cdef Bytes text = <Bytes>PyUnicode_AsUTF8AndSize(properties, &size)
    write_fields(head, sys_flag, wall_ms, flag, text, size, reconsume_times)
    fields = taken(&FRAME, 0)
    keep_small(&FRAME)
    return fields


cdef bytes request_frame(Bytes fields, Py_ssize_t fields_size, bytes middle, int64_t opaque, bytes body):
    """Return the frame of a request whose header begins with `fields`."""
    cdef Buffer number
    cdef unsigned char digits[24]
    cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body), header_size
    cdef bytes frame
    cdef unsigned char *to
    number.data = digits
    number.size = 0
    number.room = 24
    append_number(&number, opaque)
    header_size = fields_size + PyBytes_GET_SIZE(middle) + number.size + PyBytes_GET_SIZE(HEADER_END)
    frame = PyBytes_FromStringAndSize(NULL, 8 + header_size + body_size)
    to = <unsigned char *>PyBytes_AS_STRING(frame)
    put_32(to, <uint32_t>(4 + header_size + body_size))
    put_32(to + 4, <uint32_t>header_size)
    to += 8
    memcpy(to, fields, fields_size)
    to += fields_size
    memcpy(to, PyBytes_AS_STRING(middle), PyBytes_GET_SIZE(middle))
    to += PyBytes_GET_SIZE(middle)
    memcpy(to, digits, number.size)
    to += number.size
    memcpy(to, PyBytes_AS_STRING(HEADER_END), PyBytes_GET_SIZE(HEADER_END))
    memcpy(to + PyBytes_GET_SIZE(HEADER_END), PyBytes_AS_STRING(body), body_size)
    return frame


def json_frame(bytes fields, int64_t opaque, bytes body, *, bint oneway=False):
    cdef bytes middle = ONEWAY_MIDDLE if oneway else REQUEST_MIDDLE
    return request_frame(<Bytes>PyBytes_AS_STRING(fields), PyBytes_GET_SIZE(fields), middle, opaque, body)


def plain_frame(message, unique_key, Py_ssize_t body_bytes_max, bytes head, int64_t wall_ms, int64_t opaque):
    cdef int32_t flag
    cdef bytes frame
    cdef object body = usual_body(message, body_bytes_max, &flag)
    cdef Buffer properties
    properties.data = NULL
    properties.size = properties.room = 0
    if body is None:
        return None
    try:
        reserve(&properties, 256)
        if not append_properties(&properties, message, unique_key):
            return None
        write_fields(head, 0, wall_ms, flag, properties.data, properties.size, 0)
        frame = request_frame(FRAME.data, FRAME.size, REQUEST_MIDDLE, opaque, <bytes>body)
        keep_small(&FRAME)
        return frame
    finally:
        PyMem_Free(properties.data)
