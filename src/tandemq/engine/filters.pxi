# SQL92 filters, evaluated over the properties of records as they are stored.

from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from libc.math cimport INFINITY, NAN, signbit

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **end, PyObject *overflow)

cdef extern from *:
    """
    /* Whether a text, not empty, stands anywhere in bytes; memmem takes linear time. */
    static int has_text(const unsigned char *p, size_t size, const unsigned char *text, size_t length)
    { return length <= size && memmem(p, size, text, length) != NULL; }
    """
    bint has_text(Bytes p, size_t size, Bytes text, size_t length) nogil

cdef enum:
    DIGITS_MAX = 400
    EXACT_DIGITS_MAX = 15
    EXACT_PLACES_MAX = 22
    LENGTHS_KEPT = 63
    RECORD_COST = 64

cdef enum Operation:  # the numbers of program.py
    CONSTANT, PROPERTY, NEGATIVE, TRUTH, NOT_OF, ALL_OF, ANY_OF, EQUAL, ORDER, ONE_OF, CONTAINS

cdef enum Kind:
    UNKNOWN, LOGICAL, TEXT, INT32, INT64, DOUBLE

# How an evaluation ends: with a value, with values that cannot be compared, or left to Python.
cdef enum Outcome:
    FINE, UNEQUAL, ODD

cdef enum:
    LESS = 1
    SAME = 2
    MORE = 4
    PREFIX = 1
    SUFFIX = 2
    NEGATES = 4

cdef double[EXACT_PLACES_MAX + 1] TENS
TENS[0] = 1.0
for _place in range(EXACT_PLACES_MAX):
    TENS[_place + 1] = TENS[_place] * 10.0

cdef struct Operand:
    int kind
    int64_t whole
    double number
    Text text

cdef struct FilterStep:
    int operation
    int option
    const int *parts
    int count
    Operand value  # of a constant
    int place  # of a property


cdef inline bint is_ascii(Text text) noexcept:
    cdef Py_ssize_t at
    cdef unsigned char bits = 0
    for at in range(text.size):
        bits |= text.data[at]
    return bits < 0x80


cdef inline bint is_digit(unsigned char byte) noexcept:
    return 48 <= byte <= 57


cdef Outcome read_whole(Text text, int kind, Operand *found) noexcept:
    """Read a text as a whole number of 32 or 64 bits."""
    cdef Bytes at = text.data, end = text.data + text.size
    cdef bint is_negative = False
    cdef uint64_t value = 0, digit, most
    if not is_ascii(text):  # digits of other scripts count in Java
        return ODD
    if text.size > DIGITS_MAX:
        return UNEQUAL
    if at < end and (at[0] == 43 or at[0] == 45):
        is_negative = at[0] == 45
        at += 1
    if at == end:
        return UNEQUAL
    most = (<uint64_t>1 << (31 if kind == INT32 else 63)) - (0 if is_negative else 1)
    while at < end:
        if not is_digit(at[0]):
            return UNEQUAL
        digit = at[0] - 48
        if value > (most - digit) // 10:
            return UNEQUAL
        value = 10 * value + digit
        at += 1
    found.kind = kind
    found.whole = <int64_t>(<uint64_t>0 - value) if is_negative else <int64_t>value
    return FINE


cdef Outcome read_double(Text text, Operand *found) noexcept:
    """Read a text as a double, written as Java's Double.valueOf allows."""
    cdef Bytes at = text.data, end = text.data + text.size, digits
    cdef char copy[DIGITS_MAX + 1]
    cdef bint is_negative = False, is_exact = True
    cdef uint64_t value = 0
    cdef Py_ssize_t count = 0, places = 0, size
    cdef double number
    while at < end and at[0] <= 32:
        at += 1
    while end > at and (end - 1)[0] <= 32:
        end -= 1
    size = end - at
    if not 0 < size <= DIGITS_MAX:
        return UNEQUAL
    memcpy(copy, at, size)
    found.kind = DOUBLE
    if at[0] == 43 or at[0] == 45:
        is_negative = at[0] == 45
        at += 1
    if end - at == 3 and memcmp(at, b"NaN", 3) == 0:
        found.number = NAN
        return FINE
    if end - at == 8 and memcmp(at, b"Infinity", 8) == 0:
        found.number = -INFINITY if is_negative else INFINITY
        return FINE
    if end - at > 1 and at[0] == 48 and at[1] | 32 == 120:  # hexadecimal
        return ODD
    digits = at
    while at < end and is_digit(at[0]):
        at += 1
    count = at - digits
    if at < end and at[0] == 46:
        at += 1
        digits = at
        while at < end and is_digit(at[0]):
            at += 1
        places = at - digits
    if not count + places:
        return UNEQUAL
    if at < end and at[0] | 32 == 101:
        is_exact = False
        at += 1
        if at < end and (at[0] == 43 or at[0] == 45):
            at += 1
        digits = at
        while at < end and is_digit(at[0]):
            at += 1
        if at == digits:
            return UNEQUAL
    if at < end and (at[0] | 32 == 102 or at[0] | 32 == 100):
        at += 1
        size -= 1
    if at < end:
        return UNEQUAL
    if is_exact and count + places <= EXACT_DIGITS_MAX:  # both are exact doubles, and so is no rounding but one
        for digit in copy[:size]:
            if is_digit(<unsigned char>digit):
                value = 10 * value + <unsigned char>digit - 48
        number = <double>value / TENS[places]
        found.number = -number if is_negative else number
        return FINE
    copy[size] = 0
    found.number = PyOS_string_to_double(copy, NULL, NULL)
    if found.number == -1.0 and PyErr_Occurred():
        PyErr_Clear()
        return ODD
    return FINE


cdef inline int sign_of(bint is_less, bint is_more) noexcept:
    return LESS if is_less else MORE if is_more else SAME


cdef int double_order(double left, double right) noexcept:
    """Order doubles as Double.compareTo: -0.0 before 0.0, NaN behind all others and equal to itself."""
    cdef bint is_left_nan = left != left, is_right_nan = right != right
    if is_left_nan or is_right_nan:
        return sign_of(is_right_nan and not is_left_nan, is_left_nan and not is_right_nan)
    if left == 0.0 and right == 0.0:
        return sign_of(signbit(left) and not signbit(right), signbit(right) and not signbit(left))
    return sign_of(left < right, left > right)


cdef int number_order(const Operand *left, const Operand *right) noexcept:
    if left.kind == DOUBLE or right.kind == DOUBLE:
        return double_order(
            left.number if left.kind == DOUBLE else <double>left.whole,
            right.number if right.kind == DOUBLE else <double>right.whole,
        )
    return sign_of(left.whole < right.whole, left.whole > right.whole)


cdef inline bint is_true_text(Text text) noexcept:
    return (
        text.size == 4
        and text.data[0] | 32 == 116
        and text.data[1] | 32 == 114
        and text.data[2] | 32 == 117
        and text.data[3] | 32 == 101
    )


cdef inline Outcome read_like(Text text, const Operand *number, Operand *found) noexcept:
    """Read a text as a number of the kind of another one."""
    return read_double(text, found) if number.kind == DOUBLE else read_whole(text, number.kind, found)


cdef Outcome order_of(const Operand *left, const Operand *right, int *order) noexcept:
    """Compare values that are known; those of kinds that have no order count as less."""
    cdef Operand read
    cdef Outcome outcome
    cdef bint flag
    if left.kind == TEXT and right.kind == TEXT:
        if not is_utf8(left.text.data, left.text.size) or not is_utf8(right.text.data, right.text.size):
            return ODD
        flag = left.text.size == right.text.size and memcmp(left.text.data, right.text.data, left.text.size) == 0
        order[0] = SAME if flag else LESS
    elif left.kind == TEXT and right.kind == LOGICAL:
        flag = is_true_text(left.text)
        order[0] = sign_of(not flag and right.whole, flag and not right.whole)
    elif left.kind == LOGICAL and right.kind == TEXT:
        return UNEQUAL
    elif left.kind == TEXT:
        outcome = read_like(left.text, right, &read)
        if outcome != FINE:
            return outcome
        order[0] = number_order(&read, right)
    elif right.kind == TEXT:
        outcome = read_like(right.text, left, &read)
        if outcome != FINE:
            return outcome
        order[0] = number_order(left, &read)
    elif left.kind == LOGICAL and right.kind == LOGICAL:
        order[0] = sign_of(left.whole < right.whole, left.whole > right.whole)
    elif left.kind == LOGICAL or right.kind == LOGICAL:
        order[0] = LESS
    else:
        order[0] = number_order(left, right)
    return FINE


cdef inline void set_logical(Operand *found, bint value) noexcept:
    found.kind = LOGICAL
    found.whole = value


cdef class FilterProgram:
    cdef FilterStep *steps
    cdef int *links
    cdef Text *names
    cdef Text *values
    cdef int steps_count
    cdef int names_count
    cdef uint64_t lengths
    cdef list texts
    cdef object in_python
    cdef readonly Py_ssize_t parts

    def __cinit__(self, steps, Py_ssize_t parts, matches):
        cdef Py_ssize_t links = 0
        self.parts = parts
        self.in_python = matches
        self.texts = sorted({step.value.encode() for step in steps if step.operation == PROPERTY}, key=by_length)
        for step in steps:
            links += len(step.parts)
        self.steps = <FilterStep *>PyMem_Malloc(max(1, len(steps)) * sizeof(FilterStep))
        self.links = <int *>PyMem_Malloc(max(1, links) * sizeof(int))
        self.names = <Text *>PyMem_Malloc(max(1, len(self.texts)) * sizeof(Text))
        self.values = <Text *>PyMem_Malloc(max(1, len(self.texts)) * sizeof(Text))
        if self.steps == NULL or self.links == NULL or self.names == NULL or self.values == NULL:
            raise MemoryError
        for name in self.texts:
            self.names[self.names_count] = text_of(name)
            self.lengths |= <uint64_t>1 << min(PyBytes_GET_SIZE(name), LENGTHS_KEPT)
            self.names_count += 1
        links = 0
        for step in steps:
            links += self.add(step, links)
        if not self.steps_count:
            raise ValueError("a filter has at least one step")

    def __dealloc__(self):
        PyMem_Free(self.steps)
        PyMem_Free(self.links)
        PyMem_Free(self.names)
        PyMem_Free(self.values)

    cdef Py_ssize_t add(self, given, Py_ssize_t links) except -1:
        """Add a step; return the number of its parts, which must stand before it."""
        cdef FilterStep *step = self.steps + self.steps_count
        cdef Py_ssize_t count = len(given.parts), least = 1
        step.operation = given.operation
        step.option = given.option
        step.parts = self.links + links
        step.count = <int>count
        step.place = -1
        step.value.kind = UNKNOWN
        for number in given.parts:
            if not 0 <= number < self.steps_count:
                raise ValueError("a step stands behind its parts")
            self.links[links] = number
            links += 1
        if step.operation == CONSTANT:
            least = 0
            self.set_constant(&step.value, given.option, given.value)
        elif step.operation == PROPERTY:
            least = 0
            name = given.value.encode()
            step.place = self.place_of(<Bytes>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        elif step.operation in (EQUAL, ORDER, CONTAINS):
            least = 2
        if count < least or not CONSTANT <= step.operation <= CONTAINS:
            raise ValueError(f"{given} is no step")
        self.steps_count += 1
        return count

    cdef int set_constant(self, Operand *operand, int kind, value) except -1:
        operand.kind = kind
        if kind == TEXT:
            text = value.encode("utf-8", "surrogatepass")
            self.texts.append(text)
            operand.text = text_of(text)
        elif kind == DOUBLE:
            operand.number = value
        elif kind == LOGICAL or kind == INT32 or kind == INT64:
            operand.whole = value
        return 0

    cdef int place_of(self, Bytes name, Py_ssize_t size) noexcept:
        """Return the place of a property among those that are read; -1 if it is not."""
        cdef int low = 0, high = self.names_count, middle, order
        while low < high:
            middle = (low + high) // 2
            if self.names[middle].size != size:
                order = -1 if self.names[middle].size < size else 1
            else:
                order = memcmp(self.names[middle].data, name, size)
                if order == 0:
                    return middle
            if order < 0:
                low = middle + 1
            else:
                high = middle
        return -1

    cdef void read_values(self, Text properties) noexcept:
        """Find the values of the properties that are read; the last one counts."""
        cdef Bytes at = properties.data, end = properties.data + properties.size, stop, split
        cdef int place
        for place in range(self.names_count):
            self.values[place].size = -1
        while at < end:
            stop = <Bytes>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            split = <Bytes>memchr(at, 1, stop - at)
            if split != NULL and split > at and split + 1 < stop:
                if self.lengths >> min(split - at, LENGTHS_KEPT) & 1:
                    place = self.place_of(at, split - at)
                    if place >= 0:
                        self.values[place].data = split + 1
                        self.values[place].size = stop - split - 1
            at = stop + 1

    cdef Outcome evaluate(self, int number, Operand *found) noexcept:
        cdef const FilterStep *step = self.steps + number
        cdef Operand other
        cdef Outcome outcome
        cdef int at, order, operation = step.operation
        cdef bint flag
        if operation == CONSTANT:
            found[0] = step.value
            return FINE
        if operation == PROPERTY:
            found.text = self.values[step.place]
            found.kind = UNKNOWN if found.text.size < 0 else TEXT
            return FINE
        if operation == ALL_OF or operation == ANY_OF:
            flag = False  # whether one is unknown
            for at in range(step.count):
                outcome = self.evaluate(step.parts[at], found)
                if outcome != FINE:
                    return outcome
                if found.kind == UNKNOWN:
                    flag = True
                elif found.whole == (operation == ANY_OF):
                    return FINE
            if flag:
                found.kind = UNKNOWN
            return FINE
        outcome = self.evaluate(step.parts[0], found)
        if outcome != FINE:
            return outcome
        if operation == NOT_OF:
            if found.kind == LOGICAL:
                found.whole = not found.whole
        elif operation == TRUTH:
            if found.kind != UNKNOWN:
                set_logical(found, False)
        elif operation == NEGATIVE:
            if found.kind == DOUBLE:
                found.number = -found.number
            elif found.kind == INT32 or found.kind == INT64:
                found.whole = -found.whole
            else:
                found.kind = UNKNOWN
        elif operation == EQUAL:
            outcome = self.evaluate(step.parts[1], &other)
            if outcome != FINE:
                return outcome
            if found.kind == UNKNOWN:
                if other.kind == UNKNOWN:
                    set_logical(found, True)
            elif other.kind == UNKNOWN:
                set_logical(found, False)
            else:
                outcome = order_of(found, &other, &order)
                set_logical(found, order == SAME)
                return outcome
        elif operation == ORDER:
            if found.kind == UNKNOWN:
                return FINE
            outcome = self.evaluate(step.parts[1], &other)
            if outcome != FINE:
                return outcome
            if other.kind == UNKNOWN:
                found.kind = UNKNOWN
                return FINE
            if found.kind == TEXT and other.kind == TEXT:
                outcome = order_as_numbers(found, &other, &order)
            else:
                outcome = order_of(found, &other, &order)
            set_logical(found, (order & step.option) != 0)
            return outcome
        elif operation == ONE_OF:
            if found.kind != TEXT:
                return FINE
            if not is_utf8(found.text.data, found.text.size):
                return ODD
            flag = False
            for at in range(1, step.count):
                if is_same(found.text, self.steps[step.parts[at]].value.text):
                    flag = True
                    break
            set_logical(found, flag != ((step.option & NEGATES) != 0))
        else:
            if found.kind == TEXT and not is_utf8(found.text.data, found.text.size):
                return ODD
            flag = found.kind == TEXT
            set_logical(found, flag and contains(found.text, self.steps[step.parts[1]].value.text, step.option))
        return FINE

    cdef int matches_text(self, Text properties) except -1:
        """Whether properties match; what is odd is left to Python."""
        cdef Operand found
        cdef Outcome outcome
        self.read_values(properties)
        outcome = self.evaluate(self.steps_count - 1, &found)
        if outcome == ODD:
            return bool(self.in_python(property_dict(properties, SharedTexts())))
        return outcome == FINE and found.kind == LOGICAL and found.whole != 0

    def matches(self, bytes properties):
        return bool(self.matches_text(text_of(properties)))


def by_length(bytes name):
    return len(name), name


cdef inline Text text_of(bytes text):
    cdef Text found
    found.data = <Bytes>PyBytes_AS_STRING(text)
    found.size = PyBytes_GET_SIZE(text)
    return found


cdef bint contains(Text text, Text wanted, int option) noexcept:
    """CONTAINS, STARTSWITH or ENDSWITH; false for an empty text, with NOT too."""
    cdef bint found = False
    if not wanted.size:
        return False
    if wanted.size <= text.size:
        if option & PREFIX:
            found = memcmp(text.data, wanted.data, wanted.size) == 0
        elif option & SUFFIX:
            found = memcmp(text.data + (text.size - wanted.size), wanted.data, wanted.size) == 0
        else:
            found = has_text(text.data, text.size, wanted.data, wanted.size)
    return found != ((option & NEGATES) != 0)


cdef Outcome order_as_numbers(const Operand *left, const Operand *right, int *order) noexcept:
    """Compare two texts as doubles."""
    cdef Operand one, other
    cdef Outcome outcome = read_double(left.text, &one), second
    order[0] = LESS
    if outcome == UNEQUAL:
        return UNEQUAL
    second = read_double(right.text, &other)
    if second != FINE:
        return second
    if outcome == FINE:
        order[0] = double_order(one.number, other.number)
    return outcome


cdef enum:
    # Reads of a device for one pull, so that a filter over messages that lie far apart does not stop the broker.
    WAITS_MAX = 32


def select_messages(
    bytes entries, int64_t queue_offset, int32_t queue_id, bytes topic, FilterProgram program, Py_ssize_t most,
    Py_ssize_t bytes_max, Py_ssize_t examined_max, Py_ssize_t cost_max, int64_t limit, int64_t written_end,
    int64_t recent_start, bytearray recent, LogSources sources,
):
    cdef Bytes entry = <Bytes>PyBytes_AS_STRING(entries)
    cdef Bytes end = entry + PyBytes_GET_SIZE(entries), data
    cdef Wanted *wanted
    cdef const Wanted *record
    cdef const Wanted *later
    cdef Record parsed
    cdef Buffer answer, copied
    cdef unsigned char *place
    cdef bytes block = b""
    cdef Text name = text_of(topic)
    cdef int64_t log_offset, code, block_start = 0, block_bytes = sources.block_bytes
    cdef Py_ssize_t waits_max = sources.waits + WAITS_MAX
    cdef Py_ssize_t size, total = 0, count = 0, at, cost = 0, found = 0, examined = 0
    cdef Py_ssize_t small_end = 0  # Of the records from the present one on that are read with their bodies.
    cdef bint is_parsed, matches  # Whether a record was parsed without its body, and matches then.
    answer.data = copied.data = NULL
    answer.size = answer.room = copied.size = copied.room = 0
    wanted = <Wanted *>PyMem_Malloc(max(1, (end - entry) // ENTRY_BYTES) * sizeof(Wanted))
    if wanted == NULL:
        raise MemoryError
    try:
        while end - entry >= ENTRY_BYTES and total < examined_max:
            log_offset = <int64_t>big_64(entry)
            size = <int32_t>big_32(entry + 8)
            code = <int64_t>big_64(entry + 12)
            entry += ENTRY_BYTES
            if not is_hole(size, code):
                if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX or not 0 <= log_offset <= written_end - size:
                    return None
            if log_offset >= limit:
                break
            if not is_hole(size, code):
                wanted[count].start = log_offset
                wanted[count].queue_offset = queue_offset
                wanted[count].size = size
                total += size
                count += 1
            queue_offset += 1
        sources.piece = b""
        for at in range(count):
            record = wanted + at
            if found >= most or cost >= cost_max or sources.waits >= waits_max:
                queue_offset = wanted[at - 1].queue_offset + 1 if at else record.queue_offset
                break
            later = wanted + min(at + PREFETCHED, count - 1)
            if block_start <= later.start <= block_start + PyBytes_GET_SIZE(block) - later.size:
                prefetch_record(<Bytes>PyBytes_AS_STRING(block) + (later.start - block_start), later.size)
            else:
                sources.prefetch(later)
            data = NULL
            is_parsed = matches = False
            if record.start < recent_start:
                if not block_start <= record.start <= block_start + PyBytes_GET_SIZE(block) - record.size:
                    is_parsed = sources.read_ends(&copied, record, -1, &parsed)
                    cached = None if is_parsed else sources.blocks.get(record.start // block_bytes)
                    if cached is not None:
                        block, block_start = cached, record.start - record.start % block_bytes
                if is_parsed:
                    pass
                elif block_start <= record.start <= block_start + PyBytes_GET_SIZE(block) - record.size:
                    data = <Bytes>PyBytes_AS_STRING(block) + (record.start - block_start)
                elif record.size >= SPLIT_BYTES_MIN and sources.file_of(record) >= 0:
                    is_parsed = sources.read_ends(&copied, record, sources.file_of(record), &parsed)
            if is_parsed:
                if not is_record_of(&parsed, record, queue_id, name):
                    return None
                matches = program.matches_text(parsed.properties)
                if not matches:
                    cost += (1 + program.parts) * (RECORD_COST + parsed.properties.size)
                    examined += record.size
                    continue
            if data == NULL:
                reserve(&answer, record.size)
                data = place = answer.data + answer.size
                small_end = max(small_end, at + 1)
                while small_end < count and wanted[small_end].size < SPLIT_BYTES_MIN:
                    small_end += 1
                if not sources.fetch(place, record, wanted + small_end - 1, recent_start, recent, is_parsed):
                    return None
            if not (read_record(data, record.size, &parsed) and is_record_of(&parsed, record, queue_id, name)):
                return None
            if matches or program.matches_text(parsed.properties):
                if found and answer.size + record.size > bytes_max:
                    queue_offset = wanted[at - 1].queue_offset + 1
                    break
                if data != answer.data + answer.size:  # where it was read
                    append(&answer, data, record.size)
                else:
                    answer.size += record.size
                found += 1
            cost += (1 + program.parts) * (RECORD_COST + parsed.properties.size)
            examined += record.size
        return Selected(taken(&answer, 0) if found else b"", found, queue_offset, examined, cost)
    finally:
        PyMem_Free(wanted)
        PyMem_Free(answer.data)
        PyMem_Free(copied.data)
