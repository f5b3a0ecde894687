/* SPDX-License-Identifier: Apache-2.0 */
/* The format on disk: places, records, index entries, heads of files. Pure. All numbers are little-endian. */
#pragma once
#include "joint/kv/kvdisk/kvdisk.h"

#define KVDISK_UNIT   4096U /* records of slab files begin and end at multiples of it */
#define KVDISK_ROW    64U   /* the unit of small records */
#define KVDISK_HEAD   128U  /* header of a record; model and name follow */
#define KVDISK_FORMAT 1U

struct place {
	bool small;
	uint32_t file; /* 27 bits */
	uint32_t at;   /* 20 bits: offset in units; small values: number in the file */
	uint32_t len;  /* 16 bits: units; small: rows */
};
kvdisk_place place_pack(struct place p);
struct place place_of(kvdisk_place packed);
uint64_t place_bytes(kvdisk_place packed);

/* Header of a record: 0 magic, 4 format, 6 flags, 8 store, 16 place, 24 sequence, 32 digest, 64 segment, 68
 * tokens, 72 size, 80 checksum, 88 created, 96 expires, 104 stored, 112 lengths of model, name and tenant, 118
 * zero, 120 XXH3-64 of the 120 bytes and the texts; 128 the texts. The value of a slab record begins at the next
 * unit, the value of a small record right behind the texts. */
struct record {
	struct kvdisk_entry entry;
	uint64_t store, seq, stored_ms; /* stored_ms: by the store's own clock */
	bool struck;                    /* removed or replaced */
};
/* Before tenants were recorded, the bytes of their length were zero, so such a record has no tenant. A program of that
 * time takes a record with a tenant for an invalid one, and drops it. */
#define RECORD_MAX_HEAD (KVDISK_HEAD + BLOCK_MAX_MODEL + BLOCK_MAX_NAME + BLOCK_MAX_TENANT)
size_t record_head_bytes(const struct block_meta *meta);
/* Return the size of the record, a multiple of its unit. */
uint64_t record_bytes(const struct block_meta *meta, uint64_t size, bool small);
size_t record_write(const struct record *r, uint8_t out[RECORD_MAX_HEAD]); /* returns record_head_bytes */
/* Returns false when there is no valid header. Texts are borrowed from |p|. */
bool record_read(const uint8_t *p, size_t n, struct record *out);
/* Value of an index entry: 0 format, 2 lengths of model, name and tenant, 8 place, 16 sequence, 24 size, 32 checksum, 40
 * created, 48 expires, 56 stored, 64 tokens, 68 low half of the XXH3 over everything else; 72 the texts. */
#define INDEX_KEY  36U
#define INDEX_HEAD 72U
#define INDEX_MAX  (INDEX_HEAD + BLOCK_MAX_MODEL + BLOCK_MAX_NAME + BLOCK_MAX_TENANT)
void index_key_write(const struct block_key *k, uint8_t out[INDEX_KEY]);
bool index_key_read(const uint8_t *p, size_t n, struct block_key *out);
size_t index_write(const struct record *r, uint8_t out[INDEX_MAX]);
bool index_read(const struct block_key *k, const uint8_t *p, size_t n, struct record *out);
/* Head of a slab file, and of the file that marks the directory. */
#define FILE_HEAD 40U
struct file_head {
	uint64_t store, bytes;
	uint32_t id;
};
void file_head_write(const struct file_head *h, uint8_t out[FILE_HEAD]);
bool file_head_read(const uint8_t *p, size_t n, struct file_head *out);
