/* SPDX-License-Identifier: Apache-2.0 */
/* keys: the set of all keys. Keys lie packed in one block of memory, and a hash table finds them. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "auth_priv.h"
#include "base/crypto/crypto.h"
#include "base/mix/mix.h"

#define KEYS_TAG   0xa074e401U
#define TIME_BYTES 20 /* 2026-01-31T08:00:00Z */

/* A key as the set keeps it; the text is id, tenant, name, role, models and limits without terminators. */
struct packed_key {
	uint8_t hash[AUTH_HASH_BYTES];
	uint8_t scopes, n_id, n_tenant, n_name, n_role;
	uint8_t n_models[2], n_limits[2]; /* Unaligned, as the next two. */
	uint8_t expires[8], locked[8];    /* Unix seconds. */
	char created[TIME_BYTES];
	char text[];
};

/* Open addressing with linear probing; at most half of the slots are used. A slot has the index of a key, plus 1,
 * and above it bits of the hash, so that other keys are rarely compared; 0: free. */
struct key_table {
	uint32_t *slots;
	size_t mask;
};
#define INDEX_BITS 23
#define INDEX_MASK ((UINT32_C(1) << INDEX_BITS) - 1)
static_assert(AUTH_MAX_KEYS < INDEX_MASK, "a slot holds each index");

struct auth_keys {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct digest seed;
	char *packed;
	size_t packed_bytes;
	uint32_t *at;           /* Offset of each key in |packed|. */
	_Atomic uint32_t *used; /* Unix seconds of each key's last use; 0: not known. */
	_Atomic uint64_t uses;
	size_t n, cap;
	struct key_table by_hash, by_id;
};

/* State of the parser. */
struct parse {
	struct auth_keys *k;
	struct auth_place at;
};

static const struct packed_key *packed_at(const struct auth_keys *k, size_t i)
{
	return (const struct packed_key *)(const void *)(k->packed + k->at[i]);
}

/* Return the key of a slot that is not free. */
static const struct packed_key *slot_key(const struct auth_keys *k, uint32_t slot)
{
	return packed_at(k, (slot & INDEX_MASK) - 1);
}

static bool table_make(struct key_table *t, size_t n_keys)
{
	size_t slots = 16;
	while (slots < 2 * n_keys)
		slots *= 2;
	t->mask = slots - 1;
	t->slots = calloc(slots, sizeof *t->slots);
	return t->slots != NULL;
}

/* Return the hash that places an API key: who does not know the seed learns nothing from the place. */
static uint64_t place_of_hash(const struct auth_keys *k, const uint8_t hash[AUTH_HASH_BYTES])
{
	struct digest d = k->seed;
	uint64_t place;
	digest_chain_run(&d, hash, AUTH_HASH_BYTES, 1, &place);
	return place;
}

/* Ids need not be secret. */
static uint64_t place_of_id(const struct auth_keys *k, struct cgn_str id)
{
	return mix64(mix_fnv1a(digest_short(&k->seed), id.p, id.n));
}

static uint32_t slot_make(uint64_t place, size_t index)
{
	return ((uint32_t)(place >> 32) & ~INDEX_MASK) | ((uint32_t)index + 1);
}

static bool slot_may_be(uint32_t slot, uint64_t place)
{
	return ((slot ^ (uint32_t)(place >> 32)) & ~INDEX_MASK) == 0;
}

/* Return the slot of the key with |hash|, or the free slot where it belongs. Each comparison takes a time that
 * does not depend on the bytes. */
static uint32_t *slot_by_hash(const struct auth_keys *k, uint64_t place, const uint8_t hash[AUTH_HASH_BYTES])
{
	const struct key_table *t = &k->by_hash;
	size_t i = (size_t)place & t->mask;
	for (; t->slots[i] != 0; i = (i + 1) & t->mask)
		if (slot_may_be(t->slots[i], place) &&
			crypto_equal(slot_key(k, t->slots[i])->hash, hash, AUTH_HASH_BYTES))
			break;
	return &t->slots[i];
}

static uint32_t *slot_by_id(const struct auth_keys *k, uint64_t place, struct cgn_str id)
{
	const struct key_table *t = &k->by_id;
	size_t i = (size_t)place & t->mask;
	for (; t->slots[i] != 0; i = (i + 1) & t->mask) {
		if (!slot_may_be(t->slots[i], place))
			continue;
		const struct packed_key *key = slot_key(k, t->slots[i]);
		if (cgn_str_eq(id, (struct cgn_str){key->text, key->n_id}))
			break;
	}
	return &t->slots[i];
}

static void text_add(struct auth_keys *k, const char *text, size_t n)
{
	memcpy(k->packed + k->packed_bytes, text, n);
	k->packed_bytes += n;
}

/* Append |key| to the packed ones. There is room: a packed key is shorter than its line. */
static void key_pack(struct auth_keys *k, const struct auth_key *key)
{
	struct packed_key head = {.scopes = (uint8_t)key->scopes,
		.n_id = (uint8_t)strlen(key->id),
		.n_tenant = (uint8_t)strlen(key->tenant),
		.n_name = (uint8_t)strlen(key->name),
		.n_role = (uint8_t)strlen(key->role)};
	uint16_t n_models = (uint16_t)strlen(key->models), n_limits = (uint16_t)strlen(key->limits);
	memcpy(head.n_models, &n_models, sizeof n_models);
	memcpy(head.n_limits, &n_limits, sizeof n_limits);
	memcpy(head.expires, &key->expires, sizeof head.expires);
	memcpy(head.locked, &key->locked, sizeof head.locked);
	memcpy(head.hash, key->hash, sizeof head.hash);
	memcpy(head.created, key->created, sizeof head.created);
	k->at[k->n++] = (uint32_t)k->packed_bytes;
	text_add(k, (const char *)&head, sizeof head);
	text_add(k, key->id, head.n_id);
	text_add(k, key->tenant, head.n_tenant);
	text_add(k, key->name, head.n_name);
	text_add(k, key->role, head.n_role);
	text_add(k, key->models, n_models);
	text_add(k, key->limits, n_limits);
}

static CGN_RC key_add(struct parse *p, const struct auth_key *key, struct cgn_err *err)
{
	struct auth_keys *k = p->k;
	if (k->n == k->cap)
		return CGN_FAIL(err, INVALID, "%s:%u: more than %d keys", p->at.file, p->at.line,
			AUTH_MAX_KEYS);
	struct cgn_str id = cgn_str_of(key->id);
	uint64_t id_place = place_of_id(k, id), place = place_of_hash(k, key->hash);
	uint32_t *by_id = slot_by_id(k, id_place, id);
	if (*by_id != 0)
		return CGN_FAIL(err, INVALID, "%s:%u: a second key with the id %s", p->at.file, p->at.line,
			key->id);
	*by_id = slot_make(id_place, k->n);
	/* The last of several keys with one secret counts. */
	*slot_by_hash(k, place, key->hash) = slot_make(place, k->n);
	key_pack(k, key);
	return CGN_OK;
}

static size_t lines_count(struct cgn_str text)
{
	size_t n = 0;
	for (struct cgn_str rest = text; rest.p != NULL; n++)
		(void)cgn_str_split(&rest, '\n');
	return n;
}

/* Allocate for every line of the file; memory that is not written takes no room. */
static bool keys_allocate(struct parse *p, struct cgn_str text)
{
	struct auth_keys *k = p->k;
	size_t lines = lines_count(text);
	k->cap = lines < AUTH_MAX_KEYS ? lines : AUTH_MAX_KEYS;
	k->packed = malloc(text.n + 1);
	k->at = malloc((k->cap + 1) * sizeof *k->at);
	return k->packed != NULL && k->at != NULL && table_make(&k->by_hash, k->cap) &&
		table_make(&k->by_id, k->cap);
}

/* Give back what comments and the longer lines of the file would have needed. */
static void keys_shrink(struct auth_keys *k)
{
	char *packed = realloc(k->packed, k->packed_bytes + 1);
	uint32_t *at = realloc(k->at, (k->n + 1) * sizeof *at);
	k->packed = packed != NULL ? packed : k->packed;
	k->at = at != NULL ? at : k->at;
}

static CGN_RC lines_parse(struct parse *p, struct cgn_str text, struct cgn_err *err)
{
	for (struct cgn_str rest = text; rest.p != NULL;) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (line.n > 0 && line.p[line.n - 1] == '\r')
			line.n--;
		line = cgn_str_trim(line);
		p->at.line++;
		if (line.n == 0 || line.p[0] == '#')
			continue;
		struct auth_key key;
		CGN_TRY(auth_line_parse(p->at, line, &key, err));
		CGN_TRY(key_add(p, &key, err));
	}
	return CGN_OK;
}

CGN_RC auth_keys_parse(const char *file_name, struct cgn_str text, const struct digest *seed,
	struct auth_keys **out, struct cgn_err *err)
{
	CGN_ON_EXIT(auth_keys_unref) struct auth_keys *k = CGN_NEW(struct auth_keys);
	k->tag = KEYS_TAG;
	k->seed = *seed;
	atomic_init(&k->refs, 1);
	struct parse p = {.k = k, .at = {.file = file_name}};
	cgn_rc rc = text.n > AUTH_MAX_FILE
		? CGN_FAIL(err, INVALID, "%s: more than %d bytes", file_name, AUTH_MAX_FILE)
		: keys_allocate(&p, text) ? lines_parse(&p, text, err)
					  : CGN_FAIL(err, NO_MEMORY, "%s: out of memory", file_name);
	CGN_TRY(rc);
	keys_shrink(k);
	k->used = calloc(k->n + 1, sizeof *k->used);
	if (k->used == NULL)
		return CGN_FAIL(err, NO_MEMORY, "%s: out of memory", file_name);
	*out = CGN_TAKE(&k);
	return CGN_OK;
}

void auth_keys_ref(struct auth_keys *k)
{
	CGN_LIVE(k, KEYS_TAG);
	atomic_fetch_add_explicit(&k->refs, 1, memory_order_relaxed);
}

void auth_keys_unref(struct auth_keys **take)
{
	struct auth_keys *k = CGN_TAKE_LIVE(take, KEYS_TAG);
	if (k == NULL)
		return;
	if (atomic_fetch_sub_explicit(&k->refs, 1, memory_order_acq_rel) != 1)
		return;
	k->tag = 0;
	free(k->packed);
	free(k->at);
	free(k->used);
	free(k->by_hash.slots);
	free(k->by_id.slots);
	free(k);
}

size_t auth_keys_count(const struct auth_keys *k)
{
	CGN_LIVE(k, KEYS_TAG);
	return k->n;
}

size_t auth_keys_bytes(const struct auth_keys *k)
{
	CGN_LIVE(k, KEYS_TAG);
	return sizeof *k + k->packed_bytes + k->n * (sizeof *k->at + sizeof *k->used) +
		(k->by_hash.mask + k->by_id.mask + 2) * sizeof *k->by_hash.slots;
}

void auth_keys_at(const struct auth_keys *k, size_t i, struct auth_key *out)
{
	CGN_LIVE(k, KEYS_TAG);
	CGN_MUST(i < k->n);
	const struct packed_key *from = packed_at(k, i);
	const char *tenant = from->text + from->n_id, *name = tenant + from->n_tenant;
	uint16_t n_models, n_limits;
	*out = (struct auth_key){.scopes = from->scopes};
	memcpy(&n_models, from->n_models, sizeof n_models);
	memcpy(&n_limits, from->n_limits, sizeof n_limits);
	memcpy(&out->expires, from->expires, sizeof out->expires);
	memcpy(&out->locked, from->locked, sizeof out->locked);
	memcpy(out->hash, from->hash, sizeof out->hash);
	memcpy(out->created, from->created, sizeof from->created);
	memcpy(out->id, from->text, from->n_id);
	memcpy(out->tenant, tenant, from->n_tenant);
	memcpy(out->name, name, from->n_name);
	memcpy(out->role, name + from->n_name, from->n_role);
	memcpy(out->models, name + from->n_name + from->n_role, n_models);
	memcpy(out->limits, name + from->n_name + from->n_role + n_models, n_limits);
}

bool auth_keys_by_id(const struct auth_keys *k, struct cgn_str id, struct auth_key *out)
{
	CGN_LIVE(k, KEYS_TAG);
	uint32_t slot = *slot_by_id(k, place_of_id(k, id), id);
	if (slot != 0)
		auth_keys_at(k, (slot & INDEX_MASK) - 1, out);
	return slot != 0;
}

/* Return the slot of the key that is shown; 0: there is none. */
static uint32_t slot_shown(const struct auth_keys *k, struct cgn_str presented)
{
	CGN_LIVE(k, KEYS_TAG);
	if (presented.n == 0)
		return 0;
	struct sha256 hash = crypto_sha256(presented);
	return *slot_by_hash(k, place_of_hash(k, hash.b), hash.b);
}

bool auth_keys_find(const struct auth_keys *k, struct cgn_str presented, struct auth_key *out)
{
	uint32_t slot = slot_shown(k, presented);
	if (slot != 0)
		auth_keys_at(k, (slot & INDEX_MASK) - 1, out);
	return slot != 0;
}

/* ---- last use ---- */

bool auth_keys_use(struct auth_keys *k, struct cgn_str presented, uint64_t now, struct auth_key *out)
{
	uint32_t slot = slot_shown(k, presented);
	if (slot == 0)
		return false;
	size_t i = (slot & INDEX_MASK) - 1;
	auth_keys_at(k, i, out);
	/* Other cores read the line too, so a key that is used all the time is noted now and then only. */
	if (atomic_load_explicit(&k->used[i], memory_order_relaxed) + (uint64_t)AUTH_USE_EVERY <= now) {
		atomic_store_explicit(&k->used[i], (uint32_t)now, memory_order_relaxed);
		atomic_fetch_add_explicit(&k->uses, 1, memory_order_relaxed);
	}
	return true;
}

uint64_t auth_keys_used_at(const struct auth_keys *k, size_t i)
{
	CGN_LIVE(k, KEYS_TAG);
	CGN_MUST(i < k->n);
	return atomic_load_explicit(&k->used[i], memory_order_relaxed);
}

uint64_t auth_keys_uses(const struct auth_keys *k)
{
	CGN_LIVE(k, KEYS_TAG);
	return atomic_load_explicit(&k->uses, memory_order_relaxed);
}

void auth_keys_used_put(const struct auth_keys *k, struct cgn_buf *out)
{
	for (size_t i = 0; i < k->n; i++) {
		uint64_t at = auth_keys_used_at(k, i);
		const struct packed_key *key = packed_at(k, i);
		if (at > 0)
			cgn_buf_fmt(out, "%.*s %llu\n", (int)key->n_id, key->text, (unsigned long long)at);
	}
}

static void used_line_read(struct auth_keys *k, struct cgn_str line)
{
	struct cgn_str at = line, id = cgn_str_split(&at, ' ');
	uint64_t when;
	uint32_t slot = id.n > 0 ? *slot_by_id(k, place_of_id(k, id), id) : 0;
	if (slot == 0 || !cgn_str_u64(at, &when) || when > UINT32_MAX)
		return;
	_Atomic uint32_t *used = &k->used[(slot & INDEX_MASK) - 1];
	if (when > atomic_load_explicit(used, memory_order_relaxed))
		atomic_store_explicit(used, (uint32_t)when, memory_order_relaxed);
}

void auth_keys_used_read(struct auth_keys *k, struct cgn_str lines)
{
	CGN_LIVE(k, KEYS_TAG);
	for (struct cgn_str rest = lines; rest.p != NULL;)
		used_line_read(k, cgn_str_split(&rest, '\n'));
}
