# What properties mean: the table `model.property_rules`, read when the module is loaded.

cdef enum:
    NAME_BYTES_MAX = 40
    MEANINGS_MAX = 64

cdef struct Text:
    Bytes data
    Py_ssize_t size


cdef struct Meant:
    Text name
    int meaning

cdef Meant[MEANINGS_MAX] MEANT  # By length of the name.
cdef int[NAME_BYTES_MAX + 2] FIRST_MEANT  # Index of the first name of a length.
cdef list MEANT_NAMES = sorted([name.encode() for name in MEANINGS], key=len)
cdef bytes TIMER_BEGIN = TIMER_PREFIX.encode()
cdef Bytes TIMER_BEGIN_AT = <Bytes>PyBytes_AS_STRING(TIMER_BEGIN)
cdef Py_ssize_t TIMER_BEGIN_BYTES = PyBytes_GET_SIZE(TIMER_BEGIN)

cdef int PLAIN = Meaning.PLAIN
cdef int UNIQUE_KEY = Meaning.UNIQUE_KEY
cdef int KEYS = Meaning.KEYS
cdef int TAGS = Meaning.TAGS
cdef int WAIT = Meaning.WAIT
cdef int DELAY_LEVEL = Meaning.DELAY_LEVEL
cdef int PRODUCER_GROUP = Meaning.PRODUCER_GROUP
cdef int IS_HALF = Meaning.IS_HALF
cdef int DELAY_SECONDS = Meaning.DELAY_SECONDS
cdef int DELAY_MS = Meaning.DELAY_MS
cdef int DELIVER_AT_MS = Meaning.DELIVER_AT_MS
cdef int PRIORITY_MEANT = Meaning.PRIORITY
cdef int SHARDING_KEY = Meaning.SHARDING_KEY
cdef int LEFT = Meaning.LEFT
cdef int CRC_MEANT = Meaning.CRC
cdef int REAL_TOPIC_MEANT = Meaning.REAL_TOPIC
cdef int REAL_QUEUE = Meaning.REAL_QUEUE
cdef int IMMUNITY = Meaning.IMMUNITY
cdef int TIMER_OUT = Meaning.TIMER_OUT
cdef int TIMER_DELETE = Meaning.TIMER_DELETE
cdef int TIMER_ROLLS = Meaning.TIMER_ROLLS
cdef int TIMER_MARK = Meaning.TIMER_MARK
cdef int INNER_MESSAGES = Meaning.INNER_MESSAGES
cdef int OTHER_MEANT = Meaning.OTHER


def _load_meanings():
    """Arrange the names by length, so that few are compared."""
    cdef int at = 0, size = 0
    cdef bytes name
    assert len(MEANT_NAMES) <= MEANINGS_MAX and max(map(len, MEANT_NAMES)) <= NAME_BYTES_MAX
    for name in MEANT_NAMES:
        while size <= PyBytes_GET_SIZE(name):
            FIRST_MEANT[size] = at
            size += 1
        MEANT[at].name.data = <Bytes>PyBytes_AS_STRING(name)
        MEANT[at].name.size = PyBytes_GET_SIZE(name)
        MEANT[at].meaning = MEANINGS[name.decode()]
        at += 1
    while size <= NAME_BYTES_MAX + 1:
        FIRST_MEANT[size] = at
        size += 1


_load_meanings()


cdef inline bint is_timer(Bytes name, Py_ssize_t size) noexcept:
    """Whether a name is one of those that time deliveries."""
    return size >= TIMER_BEGIN_BYTES and memcmp(name, TIMER_BEGIN_AT, TIMER_BEGIN_BYTES) == 0


cdef inline int meaning_of(Bytes name, Py_ssize_t size) noexcept:
    """Return what a property means."""
    cdef int at
    if 0 < size <= NAME_BYTES_MAX:
        for at in range(FIRST_MEANT[size], FIRST_MEANT[size + 1]):
            if memcmp(MEANT[at].name.data, name, size) == 0:
                return MEANT[at].meaning
    return OTHER_MEANT if is_timer(name, size) else PLAIN
