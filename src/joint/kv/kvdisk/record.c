/* SPDX-License-Identifier: Apache-2.0 */
/* The format on disk, to and from bytes. Pure. */
#include "joint/kv/kvdisk/record_priv.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

#define RECORD_MAGIC 0x52564b43U /* "CKVR" */
#define FILE_MAGIC   0x46564b43U /* "CKVF" */
#define FLAG_STRUCK  1U

static void le_put16(uint8_t *p, size_t v)
{
	uint16_t le = htole16((uint16_t)v);
	memcpy(p, &le, sizeof le);
}

static void le_put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof v);
}

static void le_put64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof v);
}

static uint16_t le_get16(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return le16toh(v);
}

static uint32_t le_get32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return le32toh(v);
}

static uint64_t le_get64(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return le64toh(v);
}

/* ---- places ---- */
kvdisk_place place_pack(struct place p)
{
	CGN_MUST(p.file < 1U << 27 && p.at < 1U << 20 && p.len > 0 && p.len < 1U << 16);
	return (uint64_t)p.small << 63 | (uint64_t)p.file << 36 | (uint64_t)p.at << 16 | p.len;
}

struct place place_of(kvdisk_place packed)
{
	return (struct place){.small = packed >> 63,
		.file = packed >> 36 & ((1U << 27) - 1),
		.at = packed >> 16 & ((1U << 20) - 1),
		.len = packed & 0xffff};
}

uint64_t place_bytes(kvdisk_place packed)
{
	struct place p = place_of(packed);
	return (uint64_t)p.len * (p.small ? KVDISK_ROW : KVDISK_UNIT);
}

/* ---- texts: model, name, tenant; their lengths are three u16 in a row ---- */
static bool texts_fit(const struct block_meta *m)
{
	return m->model.n <= BLOCK_MAX_MODEL && m->name.n <= BLOCK_MAX_NAME &&
		m->tenant.n <= BLOCK_MAX_TENANT;
}

static size_t texts_bytes(const struct block_meta *m)
{
	return m->model.n + m->name.n + m->tenant.n;
}

static size_t texts_write(const struct block_meta *m, uint8_t *lengths, uint8_t *p)
{
	const struct cgn_str texts[] = {m->model, m->name, m->tenant};
	for (size_t i = 0; i < CGN_COUNT(texts); i++) {
		le_put16(lengths + 2 * i, texts[i].n);
		if (texts[i].n > 0)
			memcpy(p, texts[i].p, texts[i].n);
		p += texts[i].n;
	}
	return texts_bytes(m);
}

/* Read the lengths, and set the texts to the bytes at |p|, which need not be there yet. */
static bool texts_read(struct block_meta *m, const uint8_t *lengths, const uint8_t *p)
{
	struct cgn_str *const texts[] = {&m->model, &m->name, &m->tenant};
	for (size_t i = 0; i < CGN_COUNT(texts); i++) {
		*texts[i] = (struct cgn_str){(const char *)p, le_get16(lengths + 2 * i)};
		p += texts[i]->n;
	}
	return texts_fit(m);
}

/* ---- records ---- */
size_t record_head_bytes(const struct block_meta *meta)
{
	return KVDISK_HEAD + texts_bytes(meta);
}

uint64_t record_bytes(const struct block_meta *meta, uint64_t size, bool small)
{
	if (small)
		return (record_head_bytes(meta) + size + KVDISK_ROW - 1) / KVDISK_ROW * KVDISK_ROW;
	return KVDISK_UNIT + (size + KVDISK_UNIT - 1) / KVDISK_UNIT * KVDISK_UNIT;
}

static uint64_t head_checksum(const uint8_t *p, size_t n_texts)
{
	return XXH3_64bits(p, 120) ^ XXH3_64bits_withSeed(p + KVDISK_HEAD, n_texts, 120);
}

size_t record_write(const struct record *r, uint8_t out[RECORD_MAX_HEAD])
{
	const struct kvdisk_entry *e = &r->entry;
	CGN_MUST(texts_fit(&e->meta));
	memset(out, 0, KVDISK_HEAD);
	le_put32(out, RECORD_MAGIC);
	le_put16(out + 4, KVDISK_FORMAT);
	le_put16(out + 6, r->struck ? FLAG_STRUCK : 0);
	le_put64(out + 8, r->store);
	le_put64(out + 16, e->place);
	le_put64(out + 24, r->seq);
	memcpy(out + 32, e->key.digest.b, DIGEST_BYTES);
	le_put32(out + 64, e->key.segment);
	le_put32(out + 68, e->meta.tokens);
	le_put64(out + 72, e->size);
	le_put64(out + 80, e->checksum);
	le_put64(out + 88, e->meta.created_unix_ms);
	le_put64(out + 96, e->meta.expires_unix_ms);
	le_put64(out + 104, r->stored_ms);
	size_t n = texts_write(&e->meta, out + 112, out + KVDISK_HEAD);
	le_put64(out + 120, head_checksum(out, n));
	return KVDISK_HEAD + n;
}

bool record_read(const uint8_t *p, size_t n, struct record *out)
{
	if (n < KVDISK_HEAD || le_get32(p) != RECORD_MAGIC || le_get16(p + 4) != KVDISK_FORMAT ||
		le_get16(p + 6) > FLAG_STRUCK || le_get16(p + 118) != 0)
		return false;
	struct block_meta texts = {.tokens = 0};
	if (!texts_read(&texts, p + 112, p + KVDISK_HEAD) || n - KVDISK_HEAD < texts_bytes(&texts) ||
		head_checksum(p, texts_bytes(&texts)) != le_get64(p + 120))
		return false;
	struct kvdisk_entry *e = &out->entry;
	*out = (struct record){.struck = le_get16(p + 6) == FLAG_STRUCK,
		.store = le_get64(p + 8),
		.seq = le_get64(p + 24),
		.stored_ms = le_get64(p + 104)};
	e->place = le_get64(p + 16);
	memcpy(e->key.digest.b, p + 32, DIGEST_BYTES);
	e->key.segment = le_get32(p + 64);
	e->size = le_get64(p + 72);
	e->checksum = le_get64(p + 80);
	e->meta = texts;
	e->meta.tokens = le_get32(p + 68);
	e->meta.created_unix_ms = le_get64(p + 88);
	e->meta.expires_unix_ms = le_get64(p + 96);
	/* A header with impossible values was not written by a store. */
	return e->size <= BLOCK_MAX_BYTES &&
		record_bytes(&e->meta, e->size, place_of(e->place).small) == place_bytes(e->place);
}

/* ---- the index ---- */
void index_key_write(const struct block_key *k, uint8_t out[INDEX_KEY])
{
	uint32_t be = htobe32(k->segment);
	memcpy(out, k->digest.b, DIGEST_BYTES);
	memcpy(out + DIGEST_BYTES, &be, sizeof be);
}

bool index_key_read(const uint8_t *p, size_t n, struct block_key *out)
{
	uint32_t be;
	if (n != INDEX_KEY)
		return false;
	memcpy(out->digest.b, p, DIGEST_BYTES);
	memcpy(&be, p + DIGEST_BYTES, sizeof be);
	out->segment = be32toh(be);
	return true;
}

/* The key is part of the checksum, so an entry under another key is invalid. */
static uint32_t index_checksum(const struct block_key *k, const uint8_t *p, size_t n_texts)
{
	uint64_t seed = digest_short(&k->digest) + k->segment;
	return (uint32_t)(XXH3_64bits_withSeed(p, 68, seed) ^
		XXH3_64bits_withSeed(p + INDEX_HEAD, n_texts, seed));
}

size_t index_write(const struct record *r, uint8_t out[INDEX_MAX])
{
	const struct kvdisk_entry *e = &r->entry;
	CGN_MUST(texts_fit(&e->meta));
	memset(out, 0, INDEX_HEAD);
	le_put16(out, KVDISK_FORMAT);
	le_put64(out + 8, e->place);
	le_put64(out + 16, r->seq);
	le_put64(out + 24, e->size);
	le_put64(out + 32, e->checksum);
	le_put64(out + 40, e->meta.created_unix_ms);
	le_put64(out + 48, e->meta.expires_unix_ms);
	le_put64(out + 56, r->stored_ms);
	le_put32(out + 64, e->meta.tokens);
	size_t n = texts_write(&e->meta, out + 2, out + INDEX_HEAD);
	le_put32(out + 68, index_checksum(&e->key, out, n));
	return INDEX_HEAD + n;
}

bool index_read(const struct block_key *k, const uint8_t *p, size_t n, struct record *out)
{
	struct block_meta texts = {.tokens = 0};
	if (n < INDEX_HEAD || le_get16(p) != KVDISK_FORMAT || !texts_read(&texts, p + 2, p + INDEX_HEAD))
		return false;
	if (n != INDEX_HEAD + texts_bytes(&texts) ||
		index_checksum(k, p, texts_bytes(&texts)) != le_get32(p + 68))
		return false;
	struct kvdisk_entry *e = &out->entry;
	*out = (struct record){.entry = {.key = *k,
				       .place = le_get64(p + 8),
				       .size = le_get64(p + 24),
				       .checksum = le_get64(p + 32),
				       .meta = texts},
		.seq = le_get64(p + 16),
		.stored_ms = le_get64(p + 56)};
	e->meta.created_unix_ms = le_get64(p + 40);
	e->meta.expires_unix_ms = le_get64(p + 48);
	e->meta.tokens = le_get32(p + 64);
	return e->size <= BLOCK_MAX_BYTES &&
		record_bytes(&e->meta, e->size, place_of(e->place).small) == place_bytes(e->place);
}

/* ---- files ---- */
void file_head_write(const struct file_head *h, uint8_t out[FILE_HEAD])
{
	memset(out, 0, FILE_HEAD);
	le_put32(out, FILE_MAGIC);
	le_put32(out + 4, KVDISK_FORMAT);
	le_put64(out + 8, h->store);
	le_put64(out + 16, h->bytes);
	le_put32(out + 24, h->id);
	le_put64(out + 32, XXH3_64bits(out, 32));
}

bool file_head_read(const uint8_t *p, size_t n, struct file_head *out)
{
	if (n < FILE_HEAD || le_get32(p) != FILE_MAGIC || le_get32(p + 4) != KVDISK_FORMAT ||
		le_get32(p + 28) != 0 || XXH3_64bits(p, 32) != le_get64(p + 32))
		return false;
	*out = (struct file_head){.store = le_get64(p + 8),
		.bytes = le_get64(p + 16),
		.id = le_get32(p + 24)};
	return true;
}
