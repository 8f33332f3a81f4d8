/* The payload header of loadgen's messages, little endian: u32 run tag, u32 stream, u64 sequence,
 * u64 intended ns (CLOCK_MONOTONIC), f32 sent - intended in ns, u32 CRC-32 of body and then bytes
 * 0 to 28. Here the header is the whole payload. */
#ifndef PAYLOAD_H
#define PAYLOAD_H

#include "common.h"

enum { STREAM_AT = 4, SEQUENCE_AT = 8, INTENDED_AT = 16, OFFSET_AT = 24, CRC_AT = 28 };

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the payload header is little endian, and so must the host be"
#endif

static uint32_t crc_tables[8][256];

static inline void make_crc_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
        crc_tables[0][i] = value;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int n = 1; n < 8; n++)
            crc_tables[n][i] = crc_tables[0][crc_tables[n - 1][i] & 0xFF] ^ crc_tables[n - 1][i] >> 8;
}

/* Eight bytes at a time. */
static inline uint32_t crc32_of(const uint8_t *data, size_t length)
{
    uint32_t value = 0xFFFFFFFFu;
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= value;
        value = 0;
        for (int n = 0; n < 8; n++)
            value ^= crc_tables[7 - n][word >> 8 * n & 0xFF];
    }
    while (length--)
        value = crc_tables[0][(value ^ *data++) & 0xFF] ^ value >> 8;
    return ~value;
}

static inline void stamp(uint8_t *header, uint64_t sequence, uint64_t intended, uint64_t sent)
{
    float offset = (float)(sent - intended);
    uint32_t crc;
    memcpy(header + SEQUENCE_AT, &sequence, 8);
    memcpy(header + INTENDED_AT, &intended, 8);
    memcpy(header + OFFSET_AT, &offset, 4);
    crc = crc32_of(header, CRC_AT);
    memcpy(header + CRC_AT, &crc, 4);
}

static inline bool is_intact(const uint8_t *header)
{
    uint32_t crc;
    memcpy(&crc, header + CRC_AT, 4);
    return crc == crc32_of(header, CRC_AT);
}

#endif
