/* SPDX-License-Identifier: Apache-2.0 */
/* What lies on disk, as bytes. Pure. */
#include "joint/kvdisk/kvdisk_priv.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

#define RECORD_MAGIC 0x52564b43U /* "CKVR" */
#define FILE_MAGIC   0x46564b43U /* "CKVF" */
#define FLAG_STRUCK  1U

static void put16(uint8_t *p, size_t v)
{
	uint16_t le = htole16((uint16_t)v);
	memcpy(p, &le, sizeof le);
}

static void put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof v);
}

static void put64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof v);
}

static uint16_t get16(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return le16toh(v);
}

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return le32toh(v);
}

static uint64_t get64(const uint8_t *p)
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

/* ---- texts: model, then name ---- */
static bool texts_fit(const struct block_meta *m)
{
	return m->model.n <= BLOCK_MAX_MODEL && m->name.n <= BLOCK_MAX_NAME;
}

static size_t texts_write(const struct block_meta *m, uint8_t *p)
{
	if (m->model.n > 0)
		memcpy(p, m->model.p, m->model.n);
	if (m->name.n > 0)
		memcpy(p + m->model.n, m->name.p, m->name.n);
	return m->model.n + m->name.n;
}

static void texts_read(struct block_meta *m, const uint8_t *p, size_t n_model, size_t n_name)
{
	m->model = (struct cgn_str){(const char *)p, n_model};
	m->name = (struct cgn_str){(const char *)p + n_model, n_name};
}

/* ---- records ---- */
size_t record_head_bytes(const struct block_meta *meta)
{
	return KVDISK_HEAD + meta->model.n + meta->name.n;
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
	put32(out, RECORD_MAGIC);
	put16(out + 4, KVDISK_FORMAT);
	put16(out + 6, r->struck ? FLAG_STRUCK : 0);
	put64(out + 8, r->store);
	put64(out + 16, e->place);
	put64(out + 24, r->seq);
	memcpy(out + 32, e->key.digest.b, DIGEST_BYTES);
	put32(out + 64, e->key.segment);
	put32(out + 68, e->meta.tokens);
	put64(out + 72, e->size);
	put64(out + 80, e->checksum);
	put64(out + 88, e->meta.created_unix_ms);
	put64(out + 96, e->meta.expires_unix_ms);
	put64(out + 104, r->stored_ms);
	put16(out + 112, e->meta.model.n);
	put16(out + 114, e->meta.name.n);
	size_t n = texts_write(&e->meta, out + KVDISK_HEAD);
	put64(out + 120, head_checksum(out, n));
	return KVDISK_HEAD + n;
}

bool record_read(const uint8_t *p, size_t n, struct record *out)
{
	if (n < KVDISK_HEAD || get32(p) != RECORD_MAGIC || get16(p + 4) != KVDISK_FORMAT ||
		get16(p + 6) > FLAG_STRUCK || get32(p + 116) != 0)
		return false;
	size_t n_model = get16(p + 112), n_name = get16(p + 114);
	if (n_model > BLOCK_MAX_MODEL || n_name > BLOCK_MAX_NAME || n - KVDISK_HEAD < n_model + n_name)
		return false;
	if (head_checksum(p, n_model + n_name) != get64(p + 120))
		return false;
	struct kvdisk_entry *e = &out->entry;
	*out = (struct record){.struck = get16(p + 6) == FLAG_STRUCK,
		.store = get64(p + 8),
		.seq = get64(p + 24),
		.stored_ms = get64(p + 104)};
	e->place = get64(p + 16);
	memcpy(e->key.digest.b, p + 32, DIGEST_BYTES);
	e->key.segment = get32(p + 64);
	e->size = get64(p + 72);
	e->checksum = get64(p + 80);
	e->meta.tokens = get32(p + 68);
	e->meta.created_unix_ms = get64(p + 88);
	e->meta.expires_unix_ms = get64(p + 96);
	texts_read(&e->meta, p + KVDISK_HEAD, n_model, n_name);
	/* One that says of itself what can't be was not written by us. */
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

/* Bound to its key: an entry under another one is none. */
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
	put16(out, KVDISK_FORMAT);
	put16(out + 2, e->meta.model.n);
	put16(out + 4, e->meta.name.n);
	put64(out + 8, e->place);
	put64(out + 16, r->seq);
	put64(out + 24, e->size);
	put64(out + 32, e->checksum);
	put64(out + 40, e->meta.created_unix_ms);
	put64(out + 48, e->meta.expires_unix_ms);
	put64(out + 56, r->stored_ms);
	put32(out + 64, e->meta.tokens);
	size_t n = texts_write(&e->meta, out + INDEX_HEAD);
	put32(out + 68, index_checksum(&e->key, out, n));
	return INDEX_HEAD + n;
}

bool index_read(const struct block_key *k, const uint8_t *p, size_t n, struct record *out)
{
	if (n < INDEX_HEAD || get16(p) != KVDISK_FORMAT || get16(p + 6) != 0)
		return false;
	size_t n_model = get16(p + 2), n_name = get16(p + 4);
	if (n_model > BLOCK_MAX_MODEL || n_name > BLOCK_MAX_NAME || n != INDEX_HEAD + n_model + n_name)
		return false;
	if (index_checksum(k, p, n_model + n_name) != get32(p + 68))
		return false;
	struct kvdisk_entry *e = &out->entry;
	*out = (struct record){.entry = {.key = *k,
				       .place = get64(p + 8),
				       .size = get64(p + 24),
				       .checksum = get64(p + 32)},
		.seq = get64(p + 16),
		.stored_ms = get64(p + 56)};
	e->meta.created_unix_ms = get64(p + 40);
	e->meta.expires_unix_ms = get64(p + 48);
	e->meta.tokens = get32(p + 64);
	texts_read(&e->meta, p + INDEX_HEAD, n_model, n_name);
	return e->size <= BLOCK_MAX_BYTES &&
		record_bytes(&e->meta, e->size, place_of(e->place).small) == place_bytes(e->place);
}

/* ---- files ---- */
void file_head_write(const struct file_head *h, uint8_t out[FILE_HEAD])
{
	memset(out, 0, FILE_HEAD);
	put32(out, FILE_MAGIC);
	put32(out + 4, KVDISK_FORMAT);
	put64(out + 8, h->store);
	put64(out + 16, h->bytes);
	put32(out + 24, h->id);
	put64(out + 32, XXH3_64bits(out, 32));
}

bool file_head_read(const uint8_t *p, size_t n, struct file_head *out)
{
	if (n < FILE_HEAD || get32(p) != FILE_MAGIC || get32(p + 4) != KVDISK_FORMAT || get32(p + 28) != 0 ||
		XXH3_64bits(p, 32) != get64(p + 32))
		return false;
	*out = (struct file_head){.store = get64(p + 8), .bytes = get64(p + 16), .id = get32(p + 24)};
	return true;
}
