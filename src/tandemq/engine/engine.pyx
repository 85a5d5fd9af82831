# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=False
"""The engine, compiled; `python/` describes each class and function. The parts are in the files included below.

Everything that a peer sent is read with a check of its bounds. What is unusual is left to the Python code: an unknown
field of another type, a number that is not written as Java writes it, a repeated name, text that is not UTF-8.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Size
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8, PyUnicode_GET_LENGTH
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strlen

from tandemq.codec.record.record import decode_host
from tandemq.codec.remoting.header import LANGUAGES
from tandemq.engine.python import (
    CHECKED_BYTES_MAX,
    EXAMINED_ENTRIES_MAX,
    LARGE_BODY_BYTES,
    SENT_PROPERTIES_MAX,
    TIMED_BYTES_MAX,
    UNUSUAL_PROPERTIES,
    CopiedRecord,
    Gathered,
    LinkedKeys,
    MovedRecords,
    ParsedRecords,
    RecordEntry,
    RecordProperties,
    Selected,
    StagedRecords,
    StoredMessages,
    TakenSends,
    VerifiedRecords,
    is_sent_topic,
)
from tandemq.engine.python.moves import copy_record as copy_record_in_python
from tandemq.errors import RecordTooLarge, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import LANGUAGE_SPOKEN, VERSION_SPOKEN
from tandemq.model.message import TAGS as TAGS_NAME
from tandemq.model.message import UNIQ_KEY as UNIQUE_KEY_NAME
from tandemq.model.message import Message, StoredMessage
from tandemq.model.property_rules import MEANINGS, TIMER_PREFIX, Meaning
from tandemq.model.topic import DELETION_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tandemq.not_cached import NotCached

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "crc32.h" nogil:
    void crc32_start()
    uint32_t crc32_of(const unsigned char *data, size_t size)
    uint32_t crc32_more(uint32_t crc, const unsigned char *data, size_t size)
    uint32_t crc32_join(uint32_t first, uint32_t second, uint64_t size)

cdef extern from "sha1.h" nogil:
    const uint32_t *sha1_begin
    void sha1_start()
    void sha1_blocks(uint32_t *hash, const unsigned char *data, size_t blocks)
    void sha1_finish(
        const uint32_t *begun, uint64_t before, const unsigned char *data, size_t size, unsigned char *digest
    )

cdef extern from *:
    """
    static inline uint16_t big_16(const unsigned char *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t big_32(const unsigned char *p)
    { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }
    static inline uint64_t big_64(const unsigned char *p) { return (uint64_t)big_32(p) << 32 | big_32(p + 4); }
    static inline void put_16(unsigned char *p, uint32_t v) { p[0] = (unsigned char)(v >> 8); p[1] = (unsigned char)v; }
    static inline void put_32(unsigned char *p, uint32_t v)
    { put_16(p, v >> 16); put_16(p + 2, v & 0xFFFF); }
    static inline void put_64(unsigned char *p, uint64_t v)
    { put_32(p, (uint32_t)(v >> 32)); put_32(p + 4, (uint32_t)v); }
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
sha1_start()

cdef enum:
    ENTRY_BYTES = 20
    KEY_BYTES = 20
    CRC_PROPERTY_BYTES = 20
    BLANK_BYTES_MIN = 8
    RECORD_BYTES_MIN = 91
    RECORD_BYTES_MAX = 64 << 20
    PROPERTIES_BYTES_MAX = 32767
    HOLE_SIZE_MIN = 0x40000000
    HOLE_SIZE_MAX = 0x7FFFFFFF
    GATHERED_BYTES_MAX = 64 << 10
    JOINED_BYTES_MAX = 1 << 20
    NAMES_MAX = 128
    SECOND_MS = 1000
    HOUR_MS = 3600000
    PARTS_MAX = 4096
    PULL_TARGETS_BYTES = 64 << 20
    HEADER_BYTES_MAX = 1 << 16
    BUFFER_BYTES_KEPT = 8 << 20
    LOCKED_BYTES_MAX = 64 << 10
    TRANSACTION_BITS = 0xC
    PREPARED = 0x4
    ROLLBACK = 0xC
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    COMPRESSED = 0x1
    UNUSUAL_FLAGS = 0xF0
    END_TRANSACTION = 37
    COMMIT = 8
    AT_ONCE = -1
    UNUSUAL_TIME = -2

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t BLANK_MAGIC = 0xCBD43194
cdef uint32_t CRC_MASK = 0x7FFFFFFF
cdef int64_t INT32_MAX_VALUE = 0x7FFFFFFF
cdef Bytes CRC_NAME = b"__CRC32#\x01"
cdef Bytes FALSE = b"false"
cdef Bytes HEX = b"0123456789ABCDEF"
cdef Bytes BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
cdef Bytes SIGNATURE_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef bytes SCHEDULE = SCHEDULE_TOPIC.encode()
cdef bytes DELETION = DELETION_TOPIC.encode()
cdef str SCHEDULE_NAME = SCHEDULE_TOPIC
cdef str TIMER_NAME = TIMER_TOPIC
cdef Py_ssize_t TIMED_BYTES = TIMED_BYTES_MAX
cdef bytes HALF = HALF_TOPIC.encode()
cdef str HALF_NAME = HALF_TOPIC
cdef Py_ssize_t CHECKED_BYTES = CHECKED_BYTES_MAX
cdef Py_ssize_t LARGE_BODY = LARGE_BODY_BYTES
cdef int VERSION = VERSION_SPOKEN
cdef int LANGUAGE = LANGUAGES.index(LANGUAGE_SPOKEN)
cdef int64_t ACK_MESSAGE = RequestCode.ACK_MESSAGE
cdef int64_t PULL_MESSAGE = RequestCode.PULL_MESSAGE
cdef int64_t LITE_PULL_MESSAGE = RequestCode.LITE_PULL_MESSAGE
cdef int64_t RETRY_IMMEDIATELY = ResponseCode.PULL_RETRY_IMMEDIATELY
cdef Py_ssize_t EXAMINED_ENTRIES = EXAMINED_ENTRIES_MAX

include "memory.pxi"
include "queue_tail.pxi"
include "property_meanings.pxi"
include "keys.pxi"
include "records.pxi"
include "mapped.pxi"
include "pulls.pxi"
include "messages.pxi"
include "filters.pxi"
include "budget.pxi"
include "signatures.pxi"
include "send_header.pxi"
include "send_properties.pxi"
include "send_engine.pxi"
include "acks.pxi"
include "pull_engine.pxi"
include "timers.pxi"
include "moves.pxi"
include "new_messages.pxi"
include "responses.pxi"
