/* CRC-32 (polynomial 0xEDB88320, as zlib's) of the fastest kind that the processor has, chosen by crc32_start().

   x86-64  carry-less multiplication: 64 bytes are folded at a time, then reduced (Gopal et al., "Fast CRC Computation
           for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009)
   ARMv8   the CRC instructions
   others  eight tables, eight bytes at a time
*/
#ifndef TANDEMQ_CRC32_H
#define TANDEMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define CRC32_FOLDS 1
#elif defined(__aarch64__) && defined(__GNUC__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define CRC32_ARM 1
#endif

static uint32_t crc32_table[8][256];
static uint32_t crc32_power[64];
static int crc32_is_fast;

/* All functions below take and return the register, whose complement is the checksum. */

static uint32_t crc32_by_table(uint32_t crc, const unsigned char *data, size_t size)
{
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        low ^= crc;
        crc = crc32_table[7][low & 255] ^ crc32_table[6][low >> 8 & 255] ^ crc32_table[5][low >> 16 & 255]
            ^ crc32_table[4][low >> 24] ^ crc32_table[3][data[4]] ^ crc32_table[2][data[5]]
            ^ crc32_table[1][data[6]] ^ crc32_table[0][data[7]];
    }
    for (; size; size--, data++)
        crc = crc >> 8 ^ crc32_table[0][(crc ^ *data) & 255];
    return crc;
}

#ifdef CRC32_FOLDS
#define CRC32_FAST_MIN 64

/* Powers of x modulo the polynomial, bit-reflected: the distances over which 128 bits are folded. */
#define CRC32_FOLD(value, by) \
    _mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11))

__attribute__((target("pclmul,sse4.1")))
static uint32_t crc32_fast(uint32_t crc, const unsigned char *data, size_t size)
{
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low_32 = _mm_set_epi32(0, 0, 0, -1);
    const __m128i *at = (const __m128i *)data;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(at), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(at + 1), c = _mm_loadu_si128(at + 2), d = _mm_loadu_si128(at + 3);
    for (at += 4, size -= 64; size >= 64; at += 4, size -= 64) {
        a = _mm_xor_si128(CRC32_FOLD(a, by_512), _mm_loadu_si128(at));
        b = _mm_xor_si128(CRC32_FOLD(b, by_512), _mm_loadu_si128(at + 1));
        c = _mm_xor_si128(CRC32_FOLD(c, by_512), _mm_loadu_si128(at + 2));
        d = _mm_xor_si128(CRC32_FOLD(d, by_512), _mm_loadu_si128(at + 3));
    }
    a = _mm_xor_si128(CRC32_FOLD(a, by_128), b);
    a = _mm_xor_si128(CRC32_FOLD(a, by_128), c);
    a = _mm_xor_si128(CRC32_FOLD(a, by_128), d);
    for (; size >= 16; at++, size -= 16)
        a = _mm_xor_si128(CRC32_FOLD(a, by_128), _mm_loadu_si128(at));
    /* 128 bits to 96, to 64, and by Barrett's reduction to 32. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_64, 0x00));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_32), barrett, 0x00);
    crc = (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
    return crc32_by_table(crc, (const unsigned char *)at, size);
}

static int crc32_has_fast(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

#elif defined(CRC32_ARM)
#define CRC32_FAST_MIN 8

__attribute__((target("+crc")))
static uint32_t crc32_fast(uint32_t crc, const unsigned char *data, size_t size)
{
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32d(crc, word);
    }
    for (; size; size--, data++)
        crc = __crc32b(crc, *data);
    return crc;
}

static int crc32_has_fast(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

#else
#define CRC32_FAST_MIN ((size_t)-1)

static uint32_t crc32_fast(uint32_t crc, const unsigned char *data, size_t size)
{
    return crc32_by_table(crc, data, size);
}

static int crc32_has_fast(void)
{
    return 0;
}
#endif

/* The product of two polynomials modulo that of the CRC; the highest bit is the coefficient of x^0. */
static uint32_t crc32_times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u)
            product ^= b;
        b = b >> 1 ^ (b & 1 ? 0xEDB88320u : 0);
    }
    return product;
}

/* Fill the tables, and choose; a fast kind that computes something else than the tables is not used. */
static void crc32_start(void)
{
    unsigned char sample[251];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc32_table[0][byte] = crc;
    }
    for (int byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            uint32_t before = crc32_table[table - 1][byte];
            crc32_table[table][byte] = before >> 8 ^ crc32_table[0][before & 255];
        }
    crc32_power[0] = 0x00800000u; /* x^8: a step of one byte; each other is the square of the one before */
    for (int bit = 1; bit < 64; bit++)
        crc32_power[bit] = crc32_times(crc32_power[bit - 1], crc32_power[bit - 1]);
    for (size_t at = 0; at < sizeof sample; at++)
        sample[at] = (unsigned char)(at * 37 + 11);
    crc32_is_fast = crc32_has_fast();
    for (size_t size = 64; crc32_is_fast && size <= sizeof sample; size++)
        crc32_is_fast = crc32_fast(0xFFFFFFFFu, sample, size) == crc32_by_table(0xFFFFFFFFu, sample, size);
}

/* The checksum of what has the checksum `crc` (0: nothing), with more data behind it. */
static inline uint32_t crc32_more(uint32_t crc, const unsigned char *data, size_t size)
{
    if (crc32_is_fast && size >= CRC32_FAST_MIN)
        return ~crc32_fast(~crc, data, size);
    return ~crc32_by_table(~crc, data, size);
}

static inline uint32_t crc32_of(const unsigned char *data, size_t size)
{
    return crc32_more(0, data, size);
}

/* The checksum of two parts, the second of `size` bytes, from theirs: some hundred steps for any size. */
static inline uint32_t crc32_join(uint32_t first, uint32_t second, uint64_t size)
{
    for (int bit = 0; size; bit++, size >>= 1)
        if (size & 1)
            first = crc32_times(crc32_power[bit], first);
    return first ^ second;
}

#endif
