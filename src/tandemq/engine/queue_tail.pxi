# Queue tails: the entries of consume queues that are not in files yet.

cdef class QueueTail:
    cdef Buffer entries
    cdef public int64_t tail_start
    cdef public int64_t max_offset
    cdef public int64_t next_offset
    cdef public int64_t last_log_end
    cdef public int64_t min_offset
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

    cdef void unstage(self, int64_t queue_offset):
        """Drop the staged entries from a queue offset on."""
        self.next_offset = max(queue_offset, self.max_offset)
        self.entries.size = min(self.entries.size, (self.next_offset - self.tail_start) * ENTRY_BYTES)

    def drop_staged(self):
        self.unstage(self.max_offset)

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


def waiting_messages(dict queues, dict offsets, int64_t number):
    cdef dict found = {}
    cdef PyObject *there
    cdef int64_t waiting, queue_id
    for key, queue in queues.items():
        queue_id = key
        if queue_id >= number:
            continue
        waiting = (<QueueTail?>queue).max_offset
        there = PyDict_GetItem(offsets, key)
        if there != NULL:
            waiting -= <object>there
        if waiting > 0:
            found[key] = waiting
    return found
