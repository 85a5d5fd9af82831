# Rates that a user, a topic or a consumer group may use.

cdef class Budget:
    cdef readonly str name
    cdef readonly bint slows
    cdef public int64_t refused, slowed
    cdef int64_t message_rate, byte_rate, messages, bytes_, at_ms

    def __init__(self, str name, int64_t message_rate, int64_t byte_rate, *, bint slows=False):
        self.name = name
        self.slows = slows
        self.refused = self.slowed = 0
        self.message_rate = message_rate
        self.byte_rate = byte_rate
        self.messages = SECOND_MS * message_rate
        self.bytes_ = SECOND_MS * byte_rate
        self.at_ms = 0

    cpdef int64_t wait_ms(self, int64_t now_ms):
        cdef int64_t passed = min(max(now_ms - self.at_ms, 0), HOUR_MS), wait = 0
        self.at_ms = now_ms
        if self.message_rate:
            self.messages = min(self.messages + passed * self.message_rate, SECOND_MS * self.message_rate)
            if self.messages <= 0:
                wait = 1 - self.messages // self.message_rate
        if self.byte_rate:
            self.bytes_ = min(self.bytes_ + passed * self.byte_rate, SECOND_MS * self.byte_rate)
            if self.bytes_ <= 0:
                wait = max(wait, 1 - self.bytes_ // self.byte_rate)
        return wait

    cpdef use(self, int64_t messages, int64_t bytes_):
        self.messages -= SECOND_MS * messages
        self.bytes_ -= SECOND_MS * bytes_
