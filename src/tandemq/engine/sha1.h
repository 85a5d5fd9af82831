/* SHA-1 (FIPS 180-4) of short texts, for the signatures of requests, of the kind that the processor has, chosen by
   sha1_start(): with the SHA instructions of x86-64, else in C.

   A hash is five words; its owner begins with SHA1_BEGIN, adds blocks of 64 bytes, and ends with sha1_finish().
*/
#ifndef TANDEMQ_SHA1_H
#define TANDEMQ_SHA1_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define SHA1_INSTRUCTIONS 1
#endif

#define SHA1_BLOCK 64

static const uint32_t sha1_begin[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};
static int sha1_is_fast;

static inline uint32_t sha1_turned(uint32_t word, int bits)
{
    return word << bits | word >> (32 - bits);
}

static void sha1_in_c(uint32_t hash[5], const unsigned char *data, size_t blocks)
{
    for (; blocks; blocks--, data += SHA1_BLOCK) {
        uint32_t words[80], a = hash[0], b = hash[1], c = hash[2], d = hash[3], e = hash[4];
        for (int at = 0; at < 16; at++)
            words[at] = (uint32_t)data[4 * at] << 24 | (uint32_t)data[4 * at + 1] << 16
                | (uint32_t)data[4 * at + 2] << 8 | data[4 * at + 3];
        for (int at = 16; at < 80; at++)
            words[at] = sha1_turned(words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16], 1);
        for (int round = 0; round < 80; round++) {
            uint32_t mixed, next;
            if (round < 20)
                mixed = (d ^ (b & (c ^ d))) + 0x5A827999u;
            else if (round < 40)
                mixed = (b ^ c ^ d) + 0x6ED9EBA1u;
            else if (round < 60)
                mixed = ((b & c) | (d & (b | c))) + 0x8F1BBCDCu;
            else
                mixed = (b ^ c ^ d) + 0xCA62C1D6u;
            next = sha1_turned(a, 5) + mixed + e + words[round];
            e = d;
            d = c;
            c = sha1_turned(b, 30);
            b = a;
            a = next;
        }
        hash[0] += a;
        hash[1] += b;
        hash[2] += c;
        hash[3] += d;
        hash[4] += e;
    }
}

#ifdef SHA1_INSTRUCTIONS
/* Four rounds. `words` has four words in each element; the instructions take the first word from the highest lane. */
#define SHA1_ROUNDS(at, kind) \
    do { \
        if (at >= 4) \
            words[at] = _mm_sha1msg2_epu32( \
                _mm_xor_si128(_mm_sha1msg1_epu32(words[at - 4], words[at - 3]), words[at - 2]), words[at - 1]); \
        next = at ? _mm_sha1nexte_epu32(e, words[at]) : _mm_add_epi32(e, words[at]); \
        e = abcd; \
        abcd = _mm_sha1rnds4_epu32(abcd, next, kind); \
    } while (0)
#define SHA1_TWENTY_ROUNDS(kind) \
    SHA1_ROUNDS((5 * kind), kind); SHA1_ROUNDS((5 * kind + 1), kind); SHA1_ROUNDS((5 * kind + 2), kind); \
    SHA1_ROUNDS((5 * kind + 3), kind); SHA1_ROUNDS((5 * kind + 4), kind)

__attribute__((target("sha,sse4.1")))
static void sha1_fast(uint32_t hash[5], const unsigned char *data, size_t blocks)
{
    const __m128i turned = _mm_set_epi64x(0x0001020304050607, 0x08090A0B0C0D0E0F);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)hash), 0x1B);
    __m128i e = _mm_set_epi32((int)hash[4], 0, 0, 0), words[20], next;
    for (; blocks; blocks--, data += SHA1_BLOCK) {
        const __m128i abcd_before = abcd, e_before = e;
        for (int at = 0; at < 4; at++)
            words[at] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + at), turned);
        SHA1_TWENTY_ROUNDS(0);
        SHA1_TWENTY_ROUNDS(1);
        SHA1_TWENTY_ROUNDS(2);
        SHA1_TWENTY_ROUNDS(3);
        e = _mm_sha1nexte_epu32(e, e_before);
        abcd = _mm_add_epi32(abcd, abcd_before);
    }
    _mm_storeu_si128((__m128i *)hash, _mm_shuffle_epi32(abcd, 0x1B));
    hash[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

static int sha1_has_fast(void)
{
    unsigned int a, b, c, d;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

#else

static void sha1_fast(uint32_t hash[5], const unsigned char *data, size_t blocks)
{
    sha1_in_c(hash, data, blocks);
}

static int sha1_has_fast(void)
{
    return 0;
}
#endif

/* Choose; instructions that compute something else than C are not used. */
static void sha1_start(void)
{
    unsigned char sample[5 * SHA1_BLOCK];
    for (size_t at = 0; at < sizeof sample; at++)
        sample[at] = (unsigned char)(at * 37 + 11);
    sha1_is_fast = sha1_has_fast();
    for (size_t blocks = 1; sha1_is_fast && blocks <= 5; blocks++) {
        uint32_t fast[5], slow[5];
        memcpy(fast, sha1_begin, sizeof fast);
        memcpy(slow, sha1_begin, sizeof slow);
        sha1_fast(fast, sample, blocks);
        sha1_in_c(slow, sample, blocks);
        sha1_is_fast = memcmp(fast, slow, sizeof fast) == 0;
    }
}

static inline void sha1_blocks(uint32_t hash[5], const unsigned char *data, size_t blocks)
{
    if (sha1_is_fast)
        sha1_fast(hash, data, blocks);
    else
        sha1_in_c(hash, data, blocks);
}

/* Add the rest of a text; `before`: bytes of it that are in the hash, whole blocks. */
static void sha1_finish(
    const uint32_t begun[5], uint64_t before, const unsigned char *data, size_t size, unsigned char digest[20])
{
    unsigned char end[2 * SHA1_BLOCK] = {0};
    const size_t whole = size / SHA1_BLOCK, rest = size % SHA1_BLOCK, ends = rest < SHA1_BLOCK - 8 ? 1 : 2;
    const uint64_t bits = 8 * (before + size);
    uint32_t hash[5];
    memcpy(hash, begun, sizeof hash);
    sha1_blocks(hash, data, whole);
    if (rest)
        memcpy(end, data + SHA1_BLOCK * whole, rest);
    end[rest] = 0x80;
    for (int at = 0; at < 8; at++)
        end[ends * SHA1_BLOCK - 1 - at] = (unsigned char)(bits >> 8 * at);
    sha1_blocks(hash, end, ends);
    for (int at = 0; at < 20; at++)
        digest[at] = (unsigned char)(hash[at / 4] >> (24 - 8 * (at % 4)));
}

#endif
