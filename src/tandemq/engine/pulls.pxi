# Pulls: records of queue entries, gathered from memory and files.

cdef enum:
    FEW_CODES_MAX = 16
    SMALL_BYTES_MAX = 8192
    # Size from which on what lies before and behind a body is read without the body.
    SPLIT_BYTES_MIN = 4096
    # The cost of a block, in reads of records that are saved.
    SMALL_READS = 128
    # Records of one queue in a block from which on the block is read at once, and in how many this is seen.
    DENSE_COUNT = 48
    DENSE_SAMPLE = 8
    # How many records ahead one is brought into the processor's cache.
    PREFETCHED = 6
    # Topic and properties with their lengths.
    TAIL_BYTES_MAX = 2 + 65535 + 2 + 32767
    COUNTED_BLOCKS_MAX = 8192


cdef struct Wanted:
    # A record that is part of the answer.
    int64_t start
    int64_t queue_offset
    Py_ssize_t size


cdef inline bint is_record_of(const Record *record, const Wanted *wanted, int32_t queue_id, Text topic) noexcept:
    """Whether a parsed record is the wanted one."""
    return (
        record.size == wanted.size
        and record.log_offset == wanted.start
        and record.queue_offset == wanted.queue_offset
        and record.queue_id == queue_id
        and is_same(record.topic, topic)
    )


cdef int copy_cached(
    unsigned char *to, int64_t start, Py_ssize_t size, dict blocks, int64_t block_bytes, int64_t recent_start,
    bytearray recent,
) except -1:
    """Copy bytes of the log that are in memory; return 0 if some are not."""
    cdef PyObject *found
    cdef Py_ssize_t at, part
    if start >= recent_start:
        at = start - recent_start
        if at + size > PyByteArray_GET_SIZE(recent):
            return 0
        memcpy(to, PyByteArray_AS_STRING(recent) + at, size)
        return 1
    while size:
        found = PyDict_GetItem(blocks, start // block_bytes)
        if found == NULL:
            return 0
        at = start % block_bytes
        part = min(size, block_bytes - at)
        if at + part > PyBytes_GET_SIZE(<bytes?><object>found):
            return 0
        memcpy(to, PyBytes_AS_STRING(<object>found) + at, part)
        to += part
        start += part
        size -= part
    return 1


cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/uio.h>
    #endif
    #include <errno.h>
    #include <unistd.h>

    /* Read exactly `size` bytes that need no wait for a device; return whether that was possible. */
    static inline int read_held(int fd, unsigned char *to, size_t size, int64_t at)
    {
    #if defined(RWF_NOWAIT) && defined(__GLIBC__)
        struct iovec part = {to, size};
        ssize_t got = preadv2(fd, &part, 1, at, RWF_NOWAIT);
        if (got < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
            got = pread(fd, to, size, at);
        return got == (ssize_t)size;
    #else
        return pread(fd, to, size, at) == (ssize_t)size;
    #endif
    }

    /* Have the head of a record, and most properties, in the processor's cache soon. */
    static inline void prefetch_record(const unsigned char *record, size_t size)
    {
        __builtin_prefetch(record);
        __builtin_prefetch(record + 64);
        for (size_t back = 1; back <= 256 && back < size; back += 64)
            __builtin_prefetch(record + size - back);
    }
    """
    void prefetch_record(Bytes record, size_t size) noexcept
    bint read_held(int fd, unsigned char *to, size_t size, int64_t at) noexcept


def read_cached(int descriptor, Py_ssize_t size, int64_t position):
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    return data if read_held(descriptor, <unsigned char *>PyBytes_AS_STRING(data), size, position) else None


cdef int64_t near_end(const Wanted *record, const Wanted *last) noexcept:
    """The end of the records from `record` on that one read can serve: at least half of its bytes are wanted."""
    cdef int64_t start = record.start, end = start + record.size
    cdef Py_ssize_t wanted = record.size
    while record < last:
        record += 1
        wanted += record.size
        if record.start < end or record.start + record.size - start > min(2 * wanted, JOINED_BYTES_MAX):
            break
        end = record.start + record.size
    return end


cdef class LogSources:
    cdef readonly Py_ssize_t bytes_read, bytes_mapped
    cdef Py_ssize_t waits  # Reads that would have had to wait for a device.
    cdef int64_t block_bytes, segment_bytes
    cdef dict blocks, reads, descriptors
    cdef dict maps  # Files of `descriptors` that are mapped.
    cdef MappedFile map  # The one that was read last, and its number.
    cdef int64_t map_number
    cdef list unmapped  # Files that are not read any more, to be unmapped piece by piece.
    cdef Py_ssize_t touched_bytes, touched_bytes_max  # Of mapped files: memory by which the process grows, and its limit.
    cdef object load
    # What the last call of `load` returned, and its place in the log.
    cdef bytes piece
    cdef int64_t piece_start

    def __init__(self, dict blocks, int64_t block_bytes, int64_t segment_bytes, load):
        self.blocks, self.block_bytes, self.segment_bytes, self.load = blocks, block_bytes, segment_bytes, load
        self.reads = {}
        self.descriptors = {}
        self.maps = {}
        self.map_number = -1
        self.unmapped = []
        self.touched_bytes, self.touched_bytes_max = 0, TOUCHED_BYTES_MAX
        self.piece = b""

    def limit_memory(self, Py_ssize_t bytes_max):
        self.touched_bytes_max = min(bytes_max, TOUCHED_BYTES_MAX)
        if self.touched_bytes > self.touched_bytes_max:
            self.release_files()

    def add_file(self, int64_t start, int descriptor):
        cdef MappedFile file = mapped_file(descriptor, self.segment_bytes)
        self.descriptors[start // self.segment_bytes] = descriptor
        if file is not None:
            self.maps[start // self.segment_bytes] = file
            self.map_number = -1

    def forget(self, int64_t log_start):
        for number in sorted(self.maps, reverse=True):
            if number * self.segment_bytes >= log_start:
                self.unmapped.append(self.maps[number])
        del self.unmapped[:max(0, len(self.unmapped) - UNMAPPED_FILES_MAX)]
        self.maps.clear()
        self.map, self.map_number = None, -1
        self.touched_bytes = 0
        self.descriptors.clear()
        self.reads.clear()

    def age(self):
        cdef MappedFile file
        for file in self.maps.values():
            file.age()
        if self.unmapped:
            file = self.unmapped[len(self.unmapped) - 1]
            if file.unmap_some():
                self.unmapped.pop()

    cdef inline MappedFile map_of(self, int64_t start):
        """Return the mapped file with a log offset; None if there is none."""
        cdef int64_t number = start // self.segment_bytes
        if number != self.map_number:
            self.map, self.map_number = self.maps.get(number), number
        return self.map

    cdef bint copy_mapped(self, unsigned char *to, int64_t start, Py_ssize_t size) except -1:
        """Copy bytes of the log that the page cache has of a mapped file; False if that is not possible."""
        cdef MappedFile file = self.map_of(start)
        cdef Py_ssize_t before
        if file is None:
            return False
        before = file.touched_bytes
        if not file.copy(to, start % self.segment_bytes, size):
            return False
        if file.touched_bytes != before:
            self.touched_bytes += file.touched_bytes - before
            if self.touched_bytes > self.touched_bytes_max:
                self.release_files()
        self.bytes_read += size
        self.bytes_mapped += size
        return True

    cdef int release_files(self) except -1:
        """Give back the memory of the pages of all mapped files."""
        cdef MappedFile file
        for file in self.maps.values():
            file.release()
        self.touched_bytes = 0
        return 0

    cdef void prefetch(self, const Wanted *record) noexcept:
        """Have a record of the file that was read last in the processor's cache soon; a hint, which cannot fail."""
        cdef int64_t within = record.start % self.segment_bytes
        if self.map is not None and record.start // self.segment_bytes == self.map_number:
            if within + record.size <= self.map.size:
                prefetch_record(self.map.data + within, record.size)

    cdef bint wants_block(self, const Wanted *record, const Wanted *last) except -1:
        """Whether it is cheaper to read the block in which a record begins than its records alone."""
        cdef int64_t number = record.start // self.block_bytes
        cdef int64_t start = record.start, end = start + record.size, block_end = (number + 1) * self.block_bytes
        cdef int count = 1
        if record.size > SMALL_BYTES_MAX:
            return False
        while record < last and count < DENSE_COUNT:
            record += 1
            if record.start < end or record.start + record.size > block_end:
                break
            end = record.start + record.size
            count += 1
        if count >= DENSE_SAMPLE and count * self.block_bytes >= DENSE_COUNT * (end - start):
            return True
        if len(self.reads) >= COUNTED_BLOCKS_MAX:
            self.reads.clear()
        reads = <int>self.reads.get(number, 0) + 1
        self.reads[number] = reads % SMALL_READS
        return reads >= SMALL_READS

    cdef int fetch(
        self, unsigned char *to, const Wanted *record, const Wanted *last, int64_t recent_start, bytearray recent,
        bint is_mapped,
    ) except -1:
        """Copy a record, by reading it if necessary; return 0 if that is not possible.

        `last`: of those still wanted; `is_mapped`: whether a mapped file may have it.
        """
        cdef Py_ssize_t at = record.start - self.piece_start
        cdef int64_t end = record.start + record.size
        cdef bint wants_block
        if 0 <= at <= PyBytes_GET_SIZE(self.piece) - record.size:
            memcpy(to, PyBytes_AS_STRING(self.piece) + at, record.size)
            return 1
        if copy_cached(to, record.start, record.size, self.blocks, self.block_bytes, recent_start, recent):
            return 1
        if is_mapped and self.copy_mapped(to, record.start, record.size):
            return 1
        run_end = near_end(record, last)
        wants_block = run_end > end or self.wants_block(record, last)
        if self.copy_mapped(to, record.start, record.size) if wants_block else self.read_file(to, record):
            return 1
        loaded = self.load(record.start, end, run_end, wants_block)
        if loaded is None:
            return copy_cached(to, record.start, record.size, self.blocks, self.block_bytes, recent_start, recent)
        self.piece, self.piece_start = loaded, record.start
        if PyBytes_GET_SIZE(self.piece) < record.size:
            return 0
        memcpy(to, PyBytes_AS_STRING(self.piece), record.size)
        return 1

    cdef int read_file(self, unsigned char *to, const Wanted *record) except -1:
        """Read a record that the page cache has; return 0 if it has not, or if the file is not known."""
        cdef int descriptor = self.file_of(record)
        if descriptor < 0:
            return 0
        if not self.read_part(to, record.start, record.size, descriptor):
            self.waits += 1
            return 0
        return 1

    cdef inline int file_of(self, const Wanted *record) except -2:
        """Return the descriptor of the file that has the whole record, or -1."""
        cdef PyObject *found = PyDict_GetItem(self.descriptors, record.start // self.segment_bytes)
        if found == NULL or record.start % self.segment_bytes + record.size > self.segment_bytes:
            return -1
        return <int><object>found

    cdef int read_part(self, unsigned char *to, int64_t start, Py_ssize_t size, int descriptor) except -1:
        """Copy bytes of the log from the file with a descriptor, or if it is -1, from a mapped one; return 0 if not."""
        if descriptor < 0:
            return self.copy_mapped(to, start, size)
        if not read_held(descriptor, to, size, start % self.segment_bytes):
            return 0
        self.bytes_read += size
        return 1

    cdef int read_ends(self, Buffer *to, const Wanted *wanted, int descriptor, Record *record) except -1:
        """Parse a record without its body, see `read_part`; return 0 if that is not possible."""
        cdef Py_ssize_t head, tail, part = min(HEAD_BYTES_MAX, wanted.size)
        to.size = 0
        reserve(to, HEAD_BYTES_MAX)
        if not self.read_part(to.data, wanted.start, part, descriptor):
            return 0
        head = read_head(to.data, wanted.size, record)
        if not head or record.size != wanted.size:
            return 0
        tail = wanted.size - head - record.body_size
        if tail > TAIL_BYTES_MAX:
            return 0
        reserve(to, HEAD_BYTES_MAX + tail)
        if not self.read_part(to.data + HEAD_BYTES_MAX, wanted.start + wanted.size - tail, tail, descriptor):
            return 0
        return read_tail(to.data + HEAD_BYTES_MAX, tail, record)


cdef inline bint is_hole(int32_t size, int64_t code):
    """Whether an entry is that of a hole: see `tandemq.codec.record.entries`."""
    return size >= HOLE_SIZE_MIN and (size == HOLE_SIZE_MAX or size == code)


cdef inline bint is_wanted(int64_t code, object codes, const int64_t *few, Py_ssize_t few_count) except -1:
    """Whether a tags code is one of `codes`; `few`: all of them, if they are few."""
    cdef Py_ssize_t at
    if not few_count:
        return code in codes
    for at in range(few_count):
        if few[at] == code:
            return True
    return False


cdef struct Choice:
    # What is wanted of a queue's entries, and what was chosen of them.
    Py_ssize_t most
    Py_ssize_t bytes_max
    int64_t limit
    int64_t written_end
    Wanted *wanted
    Py_ssize_t count
    Py_ssize_t size  # Of all chosen records.
    int64_t next_offset


cdef bint choose_records(Bytes entry, Bytes end, int64_t queue_offset, codes, Choice *choice) except -1:
    """Choose records by their entries; False if an entry is unusual. `choice.wanted` has room for all of them."""
    cdef int64_t few[FEW_CODES_MAX]
    cdef Py_ssize_t few_count = 0, size
    cdef int64_t log_offset, code
    cdef Wanted *record
    choice.count = choice.size = 0
    if codes is not None and len(codes) <= FEW_CODES_MAX:
        for number in codes:
            few[few_count] = number
            few_count += 1
    while end - entry >= ENTRY_BYTES:
        log_offset = <int64_t>big_64(entry)
        size = <int32_t>big_32(entry + 8)
        code = <int64_t>big_64(entry + 12)
        entry += ENTRY_BYTES
        if not is_hole(size, code):
            if not RECORD_BYTES_MIN <= size <= GATHERED_BYTES_MAX or not 0 <= log_offset <= choice.written_end - size:
                return False
        if log_offset >= choice.limit:
            break
        if is_hole(size, code) or (codes is not None and not is_wanted(code, codes, few, few_count)):
            queue_offset += 1
            continue
        if choice.count and (choice.count >= choice.most or choice.size + size > choice.bytes_max):
            break
        record = choice.wanted + choice.count
        record.start = log_offset
        record.queue_offset = queue_offset
        record.size = size
        choice.size += size
        choice.count += 1
        queue_offset += 1
    choice.next_offset = queue_offset
    return True


cdef bint copy_records(
    unsigned char *to, const Choice *choice, int32_t queue_id, Text topic, int64_t recent_start, bytearray recent,
    LogSources sources,
) except -1:
    """Copy the chosen records, one behind the other; False if one is not held or is another than its entry says."""
    cdef const Wanted *record = choice.wanted
    cdef const Wanted *last = record + choice.count - 1
    cdef Record parsed
    sources.piece = b""
    while record <= last:
        sources.prefetch(min(record + PREFETCHED, last))
        if not sources.fetch(to, record, last, recent_start, recent, True):
            return False
        if not (read_record(to, record.size, &parsed) and is_record_of(&parsed, record, queue_id, topic)):
            return False
        to += record.size
        record += 1
    return True


def gather_messages(
    bytes entries, int64_t queue_offset, int32_t queue_id, bytes topic, codes, Py_ssize_t most, Py_ssize_t bytes_max,
    int64_t limit, int64_t written_end, int64_t recent_start, bytearray recent, LogSources sources,
):
    cdef Bytes entry = <Bytes>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(entries)
    cdef Choice choice
    cdef bytes answer
    cdef Text name
    name.data = <Bytes>PyBytes_AS_STRING(topic)
    name.size = PyBytes_GET_SIZE(topic)
    choice.most = most
    choice.bytes_max = bytes_max
    choice.limit = limit
    choice.written_end = written_end
    choice.wanted = <Wanted *>PyMem_Malloc(max(1, size // ENTRY_BYTES) * sizeof(Wanted))
    if choice.wanted == NULL:
        raise MemoryError
    try:
        if not choose_records(entry, entry + size, queue_offset, codes, &choice):
            return None
        answer = PyBytes_FromStringAndSize(NULL, choice.size)
        if not copy_records(
            <unsigned char *>PyBytes_AS_STRING(answer), &choice, queue_id, name, recent_start, recent, sources
        ):
            return None
        return Gathered(answer, choice.count, choice.next_offset)
    finally:
        PyMem_Free(choice.wanted)
