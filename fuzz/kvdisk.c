/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz kvdisk: for any bytes on disk, an accepted header or index entry writes back as the same bytes, and is
 * refused with one bit changed. */
#include <stdlib.h>
#include <string.h>

#include "joint/kv/kvdisk/kvdisk_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_record(const uint8_t *data, size_t n)
{
	uint8_t out[RECORD_MAX_HEAD], bent[RECORD_MAX_HEAD];
	struct record r, other;
	if (!record_read(data, n, &r))
		return;
	size_t len = record_write(&r, out);
	CGN_MUST(len <= n && memcmp(out, data, len) == 0);
	CGN_MUST(len == record_head_bytes(&r.entry.meta) && !record_read(out, len - 1, &other));
	CGN_MUST(place_pack(place_of(r.entry.place)) == r.entry.place);
	memcpy(bent, out, len);
	bent[r.seq % len] ^= (uint8_t)(1U << r.entry.meta.tokens % 8);
	CGN_MUST(!record_read(bent, len, &other));
}

static void read_entry(const uint8_t *data, size_t n)
{
	uint8_t out[INDEX_MAX], key[INDEX_KEY];
	struct block_key k;
	struct record r;
	if (n < INDEX_KEY || !index_key_read(data, INDEX_KEY, &k))
		return;
	index_key_write(&k, key);
	CGN_MUST(memcmp(key, data, INDEX_KEY) == 0);
	if (!index_read(&k, data + INDEX_KEY, n - INDEX_KEY, &r))
		return;
	CGN_MUST(index_write(&r, out) == n - INDEX_KEY && memcmp(out, data + INDEX_KEY, n - INDEX_KEY) == 0);
}

static void read_file(const uint8_t *data, size_t n)
{
	uint8_t out[FILE_HEAD];
	struct file_head h;
	if (!file_head_read(data, n, &h))
		return;
	file_head_write(&h, out);
	CGN_MUST(memcmp(out, data, FILE_HEAD) == 0);
}

/* Write a made-up value and read it back. */
static void write_and_read(const uint8_t *data, size_t n)
{
	struct record r = {.entry = {.meta = {.model = {(const char *)data, n % (BLOCK_MAX_MODEL + 1)}}},
			      .store = n,
			      .seq = 7},
		      back;
	uint8_t out[RECORD_MAX_HEAD], index[INDEX_MAX];
	if (n < sizeof r.entry.key || n < r.entry.meta.model.n)
		return;
	memcpy(r.entry.key.digest.b, data, DIGEST_BYTES);
	r.entry.size = (uint64_t)data[0] << 12;
	bool small = data[1] % 2 != 0 && data[0] < 64;
	uint64_t bytes = record_bytes(&r.entry.meta, r.entry.size, small);
	r.entry.place = place_pack(
		(struct place){small, 5, 6, (uint32_t)(bytes / (small ? KVDISK_ROW : KVDISK_UNIT))});
	size_t len = record_write(&r, out);
	CGN_MUST(record_read(out, len, &back) && block_key_eq(&back.entry.key, &r.entry.key) &&
		cgn_str_eq(back.entry.meta.model, r.entry.meta.model));
	out[data[2] % len] ^= 1;
	CGN_MUST(!record_read(out, len, &back));
	len = index_write(&r, index);
	CGN_MUST(index_read(&r.entry.key, index, len, &back) && back.entry.place == r.entry.place);
	index[data[2] % len] ^= 1;
	CGN_MUST(!index_read(&r.entry.key, index, len, &back));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	read_record(data, n);
	read_entry(data, n);
	read_file(data, n);
	write_and_read(data, n);
	return 0;
}
