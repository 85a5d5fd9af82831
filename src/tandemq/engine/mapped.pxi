# Files of the log, mapped for reading: what the page cache has of them costs no system call.
#
# A page that cannot be read, as behind the end of a file that was made shorter, or on a bad sector, raises SIGBUS. So
# only `copy_guarded` reads mapped bytes: it returns false instead, and the caller reads the file, which reports the
# error. Source: docs/decisions/0021-mapped-reads.md.

cdef extern from *:
    """
    enum { PART_BYTES = 32 << 10, GROUP_PARTS = 8, PAGE_BYTES_MIN = 4096 };

    #if defined(__linux__) && UINTPTR_MAX > 0xFFFFFFFFu
    #include <setjmp.h>
    #include <signal.h>
    #include <sys/mman.h>
    #include <sys/resource.h>

    static __thread struct { sigjmp_buf *leave; uintptr_t start, end; } guarded;
    static struct sigaction unguarded;

    /* Leave `copy_guarded`; other errors are those of the action that was there before. */
    static void on_bus_error(int number, siginfo_t *info, void *context)
    {
        uintptr_t at = (uintptr_t)info->si_addr;
        (void)context;
        if (guarded.leave && info->si_code > 0 && at >= guarded.start && at < guarded.end)
            siglongjmp(*guarded.leave, 1);
        sigaction(SIGBUS, &unguarded, NULL);
        if (info->si_code <= 0)
            raise(number);  /* sent by a process: nothing fails again by itself */
    }

    static int is_guarding(void)
    {
        static int is_installed;
        struct sigaction action;
        if (is_installed)
            return !sigaction(SIGBUS, NULL, &action) && action.sa_sigaction == on_bus_error;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_bus_error;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;  /* `siglongjmp` restores no mask */
        is_installed = !sigaction(SIGBUS, &action, &unguarded);
        return is_installed;
    }

    __attribute__((noinline)) static int copy_guarded(unsigned char *to, const unsigned char *from, size_t size)
    {
        sigjmp_buf leave;
        if (sigsetjmp(leave, 0)) {
            guarded.leave = NULL;
            return 0;
        }
        guarded.start = (uintptr_t)from & ~(uintptr_t)(PAGE_BYTES_MIN - 1);
        guarded.end = (uintptr_t)from + size;
        guarded.leave = &leave;
        __asm__ volatile("" ::: "memory");
        memcpy(to, from, size);
        __asm__ volatile("" ::: "memory");
        guarded.leave = NULL;
        return 1;
    }

    /* Map a file; NULL if it cannot be, or if address space is limited, which other memory may need. */
    static const unsigned char *map_file(int fd, size_t size)
    {
        struct rlimit space;
        void *data;
        if (getrlimit(RLIMIT_AS, &space) || space.rlim_cur != RLIM_INFINITY || !is_guarding())
            return NULL;
        data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            return NULL;
        madvise(data, size, MADV_RANDOM);
        return (const unsigned char *)data;
    }

    static void unmap(const unsigned char *data, size_t size) { munmap((void *)data, size); }

    /* No longer count the pages that were read as memory of this process; the page cache keeps them. */
    static void release_pages(const unsigned char *data, size_t size) { madvise((void *)data, size, MADV_DONTNEED); }

    /* Write for each part of a group, which begins at `data`, whether the page cache has all its pages. */
    static void find_held(const unsigned char *data, size_t size, unsigned char *held)
    {
        unsigned char pages[GROUP_PARTS * (PART_BYTES / PAGE_BYTES_MIN)];
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        size_t at, part, end;
        memset(held, 0, GROUP_PARTS);
        if (mincore((void *)data, size, pages))
            return;
        memset(held, 1, GROUP_PARTS);
        for (at = 0; at < size; at += page) {
            end = at + page < size ? at + page : size;
            for (part = at / PART_BYTES; !(pages[at / page] & 1) && part * PART_BYTES < end; part++)
                held[part] = 0;
        }
    }
    #else
    static int copy_guarded(unsigned char *to, const unsigned char *from, size_t size)
    { (void)to; (void)from; (void)size; return 0; }
    static const unsigned char *map_file(int fd, size_t size) { (void)fd; (void)size; return NULL; }
    static void unmap(const unsigned char *data, size_t size) { (void)data; (void)size; }
    static void release_pages(const unsigned char *data, size_t size) { (void)data; (void)size; }
    static void find_held(const unsigned char *data, size_t size, unsigned char *held)
    { (void)data; (void)size; memset(held, 0, GROUP_PARTS); }
    #endif
    """
    enum: PART_BYTES, GROUP_PARTS
    bint copy_guarded(unsigned char *to, Bytes data, size_t size) noexcept
    Bytes map_file(int descriptor, size_t size) noexcept
    void unmap(Bytes data, size_t size) noexcept
    void release_pages(Bytes data, size_t size) noexcept
    void find_held(Bytes data, size_t size, unsigned char *held) noexcept


cdef enum:
    UNMAPPED_BYTES = 256 << 20  # Of a file, in a step.
    UNMAPPED_FILES_MAX = 64

cdef Py_ssize_t TOUCHED_BYTES_MAX = <Py_ssize_t>2 << 30

cdef enum PartState:
    UNKNOWN_PART, HELD, MISSING
    TOUCHED = 4  # A bit: pages of the part are mapped, and count as memory of the process.


cdef class MappedFile:
    # A file of the log. Of each part of PART_BYTES it is known for a second whether the page cache has it.
    cdef Bytes data
    cdef Py_ssize_t size, touched_bytes  # `touched_bytes`: of the parts with mapped pages.
    cdef bytearray parts
    cdef bytearray groups_read  # Whether a part of the group, of GROUP_PARTS, has been read.

    cdef bint holds(self, int64_t at, Py_ssize_t size) noexcept:
        """Whether the page cache has bytes of the file, as far as is known."""
        cdef unsigned char *states = <unsigned char *>PyByteArray_AS_STRING(self.parts)
        cdef Py_ssize_t part
        cdef bint is_held = True
        if size <= 0 or at < 0 or at + size > self.size:
            return False
        for part in range(at // PART_BYTES, (at + size - 1) // PART_BYTES + 1):
            if states[part] & ~TOUCHED == UNKNOWN_PART:
                self.find_out(part // GROUP_PARTS)
            if states[part] == HELD:
                states[part] |= TOUCHED
                self.touched_bytes += PART_BYTES
            is_held = is_held and states[part] == HELD | TOUCHED
        return is_held

    cdef void find_out(self, Py_ssize_t group) noexcept:
        """Find out which parts of a group the page cache has, at the second read: the question costs more than a read."""
        cdef unsigned char *states = <unsigned char *>PyByteArray_AS_STRING(self.parts)
        cdef char *groups_read = PyByteArray_AS_STRING(self.groups_read)
        cdef unsigned char[GROUP_PARTS] held
        cdef Py_ssize_t first = group * GROUP_PARTS, part
        if not groups_read[group]:
            groups_read[group] = True
            return
        find_held(self.data + first * PART_BYTES, min(GROUP_PARTS * PART_BYTES, self.size - first * PART_BYTES), held)
        for part in range(first, min(first + GROUP_PARTS, PyByteArray_GET_SIZE(self.parts))):
            states[part] = (HELD if held[part - first] else MISSING) | (states[part] & TOUCHED)

    cdef bint copy(self, unsigned char *to, int64_t at, Py_ssize_t size) noexcept:
        """Copy bytes that the page cache has; False if that is not possible."""
        cdef unsigned char *states
        if not self.holds(at, size):
            return False
        if copy_guarded(to, self.data + at, size):
            return True
        states = <unsigned char *>PyByteArray_AS_STRING(self.parts)
        states[at // PART_BYTES] = states[(at + size - 1) // PART_BYTES] = MISSING | TOUCHED
        return False

    cdef void release(self) noexcept:
        """Give back the memory of the pages that were read."""
        if self.touched_bytes:
            release_pages(self.data, self.size)
            self.keep(HELD | MISSING)
            self.touched_bytes = 0

    cdef void age(self) noexcept:
        """Forget what the page cache has."""
        self.keep(TOUCHED)
        memset(PyByteArray_AS_STRING(self.groups_read), 0, PyByteArray_GET_SIZE(self.groups_read))

    cdef void keep(self, unsigned char bits) noexcept:
        """Keep these bits of the state of each part."""
        cdef unsigned char *states = <unsigned char *>PyByteArray_AS_STRING(self.parts)
        cdef Py_ssize_t part
        for part in range(PyByteArray_GET_SIZE(self.parts)):
            states[part] &= bits

    cdef bint unmap_some(self) noexcept:
        """Unmap a piece, as a whole file takes milliseconds; return whether nothing is left."""
        cdef Py_ssize_t rest = max(0, self.size - UNMAPPED_BYTES)
        unmap(self.data + rest, self.size - rest)
        self.size = rest
        return rest == 0

    def __dealloc__(self):
        if self.size:
            unmap(self.data, self.size)


cdef MappedFile mapped_file(int descriptor, Py_ssize_t size):
    """Return a file that is mapped now; None if that is not possible."""
    cdef Bytes data = map_file(descriptor, size)
    cdef MappedFile file
    if data == NULL:
        return None
    file = MappedFile.__new__(MappedFile)
    file.data, file.size = data, size
    file.parts = bytearray((size + PART_BYTES - 1) // PART_BYTES)
    file.groups_read = bytearray((size + GROUP_PARTS * PART_BYTES - 1) // (GROUP_PARTS * PART_BYTES))
    return file
