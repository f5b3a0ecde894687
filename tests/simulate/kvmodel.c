/* SPDX-License-Identifier: Apache-2.0 */
/* kvmodel: histories of commands, and the search for an order that explains them. */
#include "kvmodel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../world/world.h"
#include "base/core/err.h"

#define OPS_MOST  56U /* The most commands of one key between two barriers */
#define SEEN_SIZE 65536U

struct versions {
	uint64_t bits[KV_VERSIONS / 64];
};
struct model_key {
	struct kv_op ops[OPS_MOST];
	unsigned n, last; /* |last|: the newest version */
	struct versions now, safe, since;
	bool changed; /* Since it settled */
};
static struct model_key model[KV_KEYS];
static unsigned n_keys;
static uint64_t written;

static void versions_add(struct versions *v, unsigned version)
{
	v->bits[version / 64] |= UINT64_C(1) << version % 64;
}

static bool versions_have(const struct versions *v, unsigned version)
{
	return v->bits[version / 64] >> version % 64 & 1;
}

static struct versions versions_both(struct versions a, struct versions b)
{
	for (size_t i = 0; i < CGN_COUNT(a.bits); i++)
		a.bits[i] |= b.bits[i];
	return a;
}

void kv_model_begin(unsigned keys)
{
	memset(model, 0, sizeof model);
	n_keys = keys;
	written = 0;
	for (unsigned k = 0; k < keys; k++) {
		versions_add(&model[k].now, 0);
		versions_add(&model[k].safe, 0);
	}
}

/* ---- recording ---- */

static bool is_write(enum kv_kind kind)
{
	return kind == KV_WRITE || kind == KV_WRITE_NEW || kind == KV_SWAP;
}

struct kv_op *kv_begin(enum kv_kind kind, unsigned want)
{
	for (unsigned i = 0; i < n_keys; i++) {
		struct model_key *m = &model[(want + i) % n_keys];
		if (m->n == OPS_MOST || (is_write(kind) && m->last + 1 == KV_VERSIONS))
			continue;
		struct kv_op *op = &m->ops[m->n++];
		*op = (struct kv_op){.kind = kind,
			.key = (want + i) % n_keys,
			.from = world_now(),
			.to = UINT64_MAX};
		if (is_write(kind)) {
			op->version = ++m->last;
			written += kv_value_size(op->key, op->version);
		}
		return op;
	}
	return NULL;
}

void kv_end(struct kv_op *op, enum kv_end end, unsigned result)
{
	static const char *const kinds[] = {"read", "write", "write if new", "swap", "remove", "look"};
	static const char *const ends[] = {"no answer", "done", "refused"};
	op->end = end;
	op->result = result;
	op->to = end == KV_DONE ? world_now() : UINT64_MAX;
	world_note("op", op->key * 8 + op->kind, (uint64_t)end << 32 | result);
	world_tell("key %u: %s %u from %.6f: %s %u", op->key, kinds[op->kind], op->version,
		(double)op->from / 1e9, ends[end], result);
}

/* ---- the search ---- */

struct search {
	const struct model_key *m;
	bool vanishes;
	struct versions out;
	struct seen {
		uint64_t mask;
		unsigned state, round;
	} *seen;
	size_t n_seen;
};
static struct seen seen[SEEN_SIZE];
static unsigned rounds;

/* True the first time. */
static bool is_new(struct search *s, uint64_t mask, unsigned state)
{
	uint64_t h = (mask ^ state * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
	for (size_t i = h >> 48;; i++) {
		struct seen *e = &seen[i % SEEN_SIZE];
		if (e->round != rounds) {
			*e = (struct seen){mask, state, rounds};
			return ++s->n_seen < SEEN_SIZE / 2;
		}
		if (e->mask == mask && e->state == state)
			return false;
	}
}

/* Apply the command to the state. False: its answer does not fit. */
static bool op_apply(const struct kv_op *op, unsigned *state)
{
	unsigned was = *state;
	bool known = op->end == KV_DONE;
	switch (op->kind) {
	case KV_READ:
		return !known || op->result == was;
	case KV_WRITE:
		*state = op->version;
		return true;
	case KV_WRITE_NEW:
		*state = was == 0 ? op->version : was;
		return !known || op->result == (was == 0);
	case KV_SWAP:
		*state = op->version;
		return !known || op->result == was;
	case KV_REMOVE:
		*state = 0;
		return !known || op->result == (was != 0);
	case KV_LOOK:
		return !known || op->result == (was != 0);
	}
	return false;
}

static void search_from(struct search *s, uint64_t mask, unsigned state)
{
	if (!is_new(s, mask, state))
		return;
	uint64_t first = UINT64_MAX;
	for (unsigned i = 0; i < s->m->n; i++)
		if (!(mask >> i & 1) && s->m->ops[i].end == KV_DONE && s->m->ops[i].to < first)
			first = s->m->ops[i].to;
	if (first == UINT64_MAX)
		versions_add(&s->out, state);
	for (unsigned i = 0; i < s->m->n; i++) {
		unsigned next = state;
		const struct kv_op *op = &s->m->ops[i];
		if (mask >> i & 1 || op->end == KV_REFUSED || op->from > first || !op_apply(op, &next))
			continue;
		search_from(s, mask | UINT64_C(1) << i, next);
	}
	if (s->vanishes && state != 0)
		search_from(s, mask, 0);
}

static void key_tell(unsigned k)
{
	const struct model_key *m = &model[k];
	static const char *const kinds[] = {"read", "write", "write if new", "swap", "remove", "look"};
	for (unsigned i = 0; i < m->n; i++)
		printf("  %.6f to %.6f: %s %u, end %d, result %u\n", (double)m->ops[i].from / 1e9,
			m->ops[i].to == UINT64_MAX ? -1 : (double)m->ops[i].to / 1e9, kinds[m->ops[i].kind],
			m->ops[i].version, (int)m->ops[i].end, m->ops[i].result);
	printf("  before them it may have had the versions");
	for (unsigned v = 0; v < KV_VERSIONS; v++)
		if (versions_have(&m->now, v))
			printf(" %u", v);
	printf("\n");
}

static void key_check(unsigned k, bool vanishes)
{
	struct model_key *m = &model[k];
	struct search s = {.m = m, .vanishes = vanishes};
	static const struct versions none;
	rounds++;
	for (unsigned v = 0; v <= m->last; v++)
		if (versions_have(&m->now, v))
			search_from(&s, 0, v);
	if (s.n_seen >= SEEN_SIZE / 2)
		world_fail("kvmodel: too many orders to search for key %u", k);
	if (memcmp(&s.out, &none, sizeof none) == 0) {
		key_tell(k);
		world_fail("key %u: no order of these commands explains their answers", k);
	}
	for (unsigned i = 0; i < m->n; i++) {
		const struct kv_op *op = &m->ops[i];
		if (op->end == KV_REFUSED || op->kind == KV_READ || op->kind == KV_LOOK)
			continue;
		m->changed = true;
		versions_add(&m->since, op->kind == KV_REMOVE ? 0 : op->version);
	}
	m->now = s.out;
	m->n = 0;
}

void kv_barrier(bool may_vanish)
{
	for (unsigned k = 0; k < n_keys; k++)
		key_check(k, may_vanish);
}

void kv_settled(bool may_lack)
{
	for (unsigned k = 0; k < n_keys; k++) {
		struct model_key *m = &model[k];
		m->safe = m->now;
		if (may_lack)
			versions_add(&m->safe, 0);
		m->since = (struct versions){0};
		m->changed = false;
	}
}

void kv_lost(bool keeps, bool may_lack, bool may_return)
{
	for (unsigned k = 0; k < n_keys; k++) {
		struct model_key *m = &model[k];
		if (!keeps)
			m->now = m->safe = m->since = (struct versions){0};
		else
			m->now = versions_both(m->safe, m->since);
		for (unsigned v = 1; keeps && may_return && v <= m->last; v++)
			versions_add(&m->now, v);
		if (!keeps || m->changed || may_lack)
			versions_add(&m->now, 0);
		if (!keeps)
			versions_add(&m->safe, 0);
	}
}

int kv_certain(unsigned key)
{
	int found = -1;
	for (unsigned v = 0; v < KV_VERSIONS; v++)
		if (versions_have(&model[key].now, v)) {
			if (found >= 0)
				return -1;
			found = (int)v;
		}
	return found;
}

uint64_t kv_written(void)
{
	return written;
}

/* ---- values ---- */

static uint64_t bits_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

size_t kv_value_size(unsigned key, unsigned version)
{
	uint64_t r = bits_mix(UINT64_C(0x9e3779b97f4a7c15) * (key * KV_VERSIONS + version + 1));
	switch (r % 8) {
	case 0:
	case 1:
		return 16 + (r >> 8) % 500;
	case 2:
	case 3:
	case 4:
		return 1024 + (r >> 8) % 30000;
	case 5:
		return 32760 + (r >> 8) % 16; /* Around the border between small and large values */
	default:
		return 32768 + (r >> 8) % (version % 8 == 0 ? 300000 : 60000);
	}
}

void kv_value_make(unsigned key, unsigned version, char *out)
{
	size_t n = kv_value_size(key, version);
	uint64_t z = key * UINT64_C(1000003) + version;
	uint32_t head[4] = {key, version, (uint32_t)n, 0x4b56U};
	for (size_t i = 0; i < n; i += 8) {
		uint64_t word = z += UINT64_C(0x9e3779b97f4a7c15);
		memcpy(out + i, &word, n - i < 8 ? n - i : 8);
	}
	memcpy(out, head, sizeof head);
}

unsigned kv_value_version(unsigned key, const char *p, size_t n)
{
	uint32_t head[4];
	if (n < sizeof head)
		world_fail("key %u: a value of %zu bytes that nobody has written", key, n);
	memcpy(head, p, sizeof head);
	if (head[0] != key || head[1] == 0 || head[1] > model[key].last || head[2] != n ||
		kv_value_size(key, head[1]) != n)
		world_fail("key %u: a value that nobody has written: key %u version %u, %u bytes, got %zu",
			key, head[0], head[1], head[2], n);
	char *want = CGN_NEW_ARRAY(char, n);
	kv_value_make(key, head[1], want);
	size_t at = 0;
	while (at < n && p[at] == want[at])
		at++;
	free(want);
	if (at < n)
		world_fail("key %u version %u: byte %zu of %zu is wrong", key, head[1], at, n);
	return head[1];
}
