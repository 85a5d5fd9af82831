# Signed sends: the user of a connection, and whether it signed a request.

cdef enum:
    LISTED_MAX = 40
    KEY_BLOCK_BYTES = 64
    SIGNATURE_CHARACTERS = 28
    DIGEST_BYTES = 20


cdef struct NamedText:
    Text name
    Text value
    bint has_escapes

cdef struct Listed:
    int count
    NamedText fields[LISTED_MAX]
    unsigned char order[LISTED_MAX]  # places of the fields, by name


cdef class SigningUser:
    cdef readonly str access_key
    cdef readonly object topics
    cdef readonly object pops
    cdef readonly object pulls
    cdef bytes encoded_key
    cdef uint32_t inner[5]  # hashes of the first block of the HMAC, inside and outside
    cdef uint32_t outer[5]

    def __init__(self, str access_key, str secret_key, topics, pops, pulls):
        cdef bytes key = secret_key.encode()
        cdef unsigned char block[KEY_BLOCK_BYTES]
        cdef int at
        self.access_key = access_key
        self.encoded_key = access_key.encode()
        self.topics = topics
        self.pops = pops
        self.pulls = pulls
        memset(block, 0, KEY_BLOCK_BYTES)
        if len(key) > KEY_BLOCK_BYTES:
            sha1_finish(sha1_begin, 0, <Bytes>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), block)
        else:
            memcpy(block, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        memcpy(self.inner, sha1_begin, sizeof(self.inner))
        memcpy(self.outer, sha1_begin, sizeof(self.outer))
        for at in range(KEY_BLOCK_BYTES):
            block[at] ^= 0x36
        sha1_blocks(self.inner, block, 1)
        for at in range(KEY_BLOCK_BYTES):
            block[at] ^= 0x36 ^ 0x5C
        sha1_blocks(self.outer, block, 1)


cdef bint may_send(SigningUser sender, name) except -1:
    """Whether a user may send to a topic; whoever is not checked may."""
    return sender is None or sender.topics is None or name in <set?>sender.topics


cdef bint list_field(Listed *listed, Text name, Text value, bint has_escapes) noexcept:
    """Add a header field in the order of names; False if its name is repeated, or is not ASCII, or there is no room."""
    cdef int place = listed.count, at = place, order
    cdef Py_ssize_t byte
    cdef const Text *before
    for byte in range(name.size):
        if name.data[byte] >= 0x80:
            return False
    if place == LISTED_MAX:
        return False
    while at:
        before = &listed.fields[listed.order[at - 1]].name
        if before.size and name.size and before.data[0] != name.data[0]:
            order = <int>before.data[0] - <int>name.data[0]
        else:
            order = memcmp(before.data, name.data, min(before.size, name.size))
        if not order and before.size == name.size:
            return False
        if order < 0 or (not order and before.size < name.size):
            break
        listed.order[at] = listed.order[at - 1]
        at -= 1
    listed.order[at] = <unsigned char>place
    listed.fields[place].name = name
    listed.fields[place].value = value
    listed.fields[place].has_escapes = has_escapes
    listed.count += 1
    return True


cdef bint has_signed(SigningUser sender, const Listed *listed, Bytes body, Py_ssize_t body_bytes, Buffer *content) except -1:
    """Whether a request has the signature of a user; False too if it has to be looked at otherwise."""
    cdef const NamedText *field
    cdef Text signature
    cdef int at
    cdef bint is_of_user = False
    cdef unsigned char digest[DIGEST_BYTES]
    cdef Py_ssize_t size = body_bytes
    signature.size = 0
    content.size = 0
    for at in range(listed.count):
        size += listed.fields[at].value.size
    reserve(content, size + 1)  # more than enough: escapes only shrink
    for at in range(listed.count):
        field = &listed.fields[listed.order[at]]
        if is_named(field.name.data, field.name.size, b"Signature", 9):
            signature = field.value
            continue
        if is_named(field.name.data, field.name.size, b"AccessKey", 9):
            is_of_user = is_named(
                field.value.data, field.value.size, <const char *>PyBytes_AS_STRING(sender.encoded_key),
                PyBytes_GET_SIZE(sender.encoded_key),
            )
        elif is_named(field.name.data, field.name.size, b"_UNIQUE_KEY_QUERY", 17):
            return False  # old clients do not sign it
        elif is_named(field.name.data, field.name.size, b"onBehalfOf", 10):
            return False  # it counts for another user
        if not field.has_escapes:
            memcpy(content.data + content.size, field.value.data, field.value.size)
            content.size += field.value.size
        elif not unescape(field.value, content):
            return False
    if not is_of_user or signature.size != SIGNATURE_CHARACTERS:
        return False
    if body_bytes:
        memcpy(content.data + content.size, body, body_bytes)
        content.size += body_bytes
    sha1_finish(sender.inner, KEY_BLOCK_BYTES, content.data, content.size, digest)
    sha1_finish(sender.outer, KEY_BLOCK_BYTES, digest, DIGEST_BYTES, digest)
    return is_base64_of(signature.data, digest)


cdef bint is_base64_of(Bytes text, Bytes digest) noexcept:
    """Whether a text of 28 characters is the Base64 form of a digest, in the same time for each."""
    cdef Py_ssize_t at, to = 0
    cdef uint32_t bits
    cdef unsigned char differs = text[SIGNATURE_CHARACTERS - 1] ^ 61
    for at in range(0, DIGEST_BYTES, 3):
        bits = <uint32_t>digest[at] << 16 | <uint32_t>digest[at + 1] << 8
        if at + 2 < DIGEST_BYTES:
            bits |= digest[at + 2]
        differs |= text[to] ^ SIGNATURE_BASE64[bits >> 18]
        differs |= text[to + 1] ^ SIGNATURE_BASE64[bits >> 12 & 63]
        differs |= text[to + 2] ^ SIGNATURE_BASE64[bits >> 6 & 63]
        if at + 2 < DIGEST_BYTES:
            differs |= text[to + 3] ^ SIGNATURE_BASE64[bits & 63]
        to += 4
    return differs == 0
