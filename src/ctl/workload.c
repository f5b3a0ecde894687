/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/workload.h"

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "io/disk/disk.h"

#define MAX_CHAIN 250
#define RECENT    4000 /* conversations that may come back */

static uint64_t rng_next(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static void push(struct cgn_buf *b, uint64_t v)
{
	cgn_buf_add(b, &v, sizeof v);
}

static uint64_t at(const struct cgn_buf *b, size_t i)
{
	uint64_t v;
	memcpy(&v, b->p + i * sizeof v, sizeof v);
	return v;
}

static void end_request(struct workload *w)
{
	push(&w->ends, w->blocks.n / sizeof(uint64_t));
}

/* ---- a trace ---- */

static CGN_RC read_line(struct cgn_str line, size_t number, const char *path, struct workload *w, struct cgn_err *err)
{
	struct json_val root, ids, id;
	struct cgn_err why = {0};
	size_t before = w->blocks.n;
	uint64_t v;
	if (!cgn_ok(json_parse(line, &root, NULL, &why)))
		return CGN_FAIL(err, INVALID, "%s line %zu is not JSON: %.200s", path, number, why.msg);
	if (!json_get(root, "hash_ids", &ids) || ids.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "%s line %zu has no array \"hash_ids\"", path, number);
	struct json_iter it = json_iter_of(ids);
	while (json_next_elem(&it, &id)) {
		if (!json_u64(id, &v))
			return CGN_FAIL(err, INVALID, "%s line %zu: \"hash_ids\" holds %.*s, not a number from 0", path, number, (int)(id.raw.n < 40 ? id.raw.n : 40), id.raw.p);
		push(&w->blocks, v);
	}
	if (w->blocks.n > before)
		end_request(w);
	return CGN_OK;
}

CGN_RC workload_read(const char *path, struct workload *out, struct cgn_err *err)
{
	struct cgn_buf text = {0};
	struct workload w = {0};
	cgn_rc rc = disk_read_file(path, (size_t)4 << 30, &text, err);
	struct cgn_str rest = cgn_buf_view(&text);
	for (size_t number = 1; cgn_ok(rc) && rest.n > 0; number++) {
		struct cgn_str line = cgn_str_trim(cgn_str_split(&rest, '\n'));
		if (line.n > 0)
			rc = read_line(line, number, path, &w, err);
	}
	cgn_buf_fini(&text);
	if (cgn_ok(rc) && (w.blocks.bad || w.ends.bad))
		rc = CGN_FAIL(err, NO_MEMORY, "no memory for the requests of %s", path);
	if (cgn_ok(rc) && workload_count(&w) == 0)
		rc = CGN_FAIL(err, INVALID, "%s holds no request", path);
	if (cgn_ok(rc))
		*out = w;
	else
		workload_fini(&w);
	return rc;
}

/* ---- made up ---- */

/* From 1, about |mean| on average, few large. */
static size_t some_blocks(uint64_t *rng, size_t mean)
{
	size_t n = 1;
	while (n < MAX_CHAIN && rng_next(rng) % mean != 0)
		n++;
	return n;
}

static void add_request(struct workload *w, const uint64_t *before, size_t n_before, size_t n_new, uint64_t *next)
{
	cgn_buf_add(&w->blocks, before, n_before * sizeof *before);
	for (size_t i = n_before; i < n_before + n_new && i < MAX_CHAIN; i++)
		push(&w->blocks, i == 0 ? 0 : (*next)++);
	end_request(w);
}

CGN_RC workload_make(uint64_t seed, size_t n, struct workload *out, struct cgn_err *err)
{
	struct workload w = {0};
	uint64_t rng = mix(seed) | 1, next = 1, before[MAX_CHAIN];
	for (size_t i = 0; i < n; i++) {
		size_t n_before = 0, mean = 18;
		if (i > 0 && rng_next(&rng) % 100 < 45) { /* a conversation comes back; its last block was not full */
			size_t back = (size_t)(rng_next(&rng) % (i < RECENT ? i : RECENT)), of = i - 1 - back;
			size_t from = of > 0 ? at(&w.ends, of - 1) : 0;
			n_before = at(&w.ends, of) - from - 1;
			memcpy(before, w.blocks.p + from * sizeof before[0], n_before * sizeof before[0]);
			mean = 8;
		}
		add_request(&w, before, n_before, some_blocks(&rng, mean), &next);
		if (w.blocks.bad || w.ends.bad)
			break;
	}
	if (!w.blocks.bad && !w.ends.bad) {
		*out = w;
		return CGN_OK;
	}
	workload_fini(&w);
	return CGN_FAIL(err, NO_MEMORY, "no memory for %zu requests", n);
}

void workload_fini(struct workload *w)
{
	cgn_buf_fini(&w->blocks);
	cgn_buf_fini(&w->ends);
}

size_t workload_count(const struct workload *w)
{
	return w->ends.n / sizeof(uint64_t);
}

size_t workload_chain(const struct workload *w, uint64_t i, struct cgn_buf *out)
{
	size_t k = (size_t)(i % workload_count(w)), from = k > 0 ? at(&w->ends, k - 1) : 0, to = at(&w->ends, k);
	uint64_t round = i / workload_count(w), first = at(&w->blocks, 0);
	out->n = 0;
	for (; from < to; from++) {
		uint64_t id = at(&w->blocks, from);
		push(out, mix(id == first ? id : id ^ round << 40));
	}
	return out->n / sizeof(uint64_t);
}

/* ---- nodes ---- */

static void report(void *user, uint64_t digest)
{
	struct fleet *f = user;
	uint8_t tiers = (uint8_t)holdings_tiers(f->nodes[f->reporting].holds, digest);
	push(&f->digests, digest);
	cgn_buf_add(&f->tiers, &tiers, 1);
}

CGN_RC fleet_init(struct fleet *f, size_t n_nodes, size_t capacity, uint64_t seed, struct cgn_err *err)
{
	*f = (struct fleet){.n_nodes = n_nodes, .capacity = capacity, .rng = mix(seed) | 1};
	f->nodes = calloc(n_nodes, sizeof *f->nodes);
	for (size_t i = 0; f->nodes != NULL && i < n_nodes; i++) {
		CGN_TRY(holdings_new(capacity, report, f, &f->nodes[i].holds, err));
		f->nodes[i].ring = malloc(capacity * sizeof(uint64_t));
		if (f->nodes[i].ring == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for %zu nodes of %zu blocks", n_nodes, capacity);
	}
	return f->nodes != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for %zu nodes", n_nodes);
}

void fleet_fini(struct fleet *f)
{
	for (size_t i = 0; f->nodes != NULL && i < f->n_nodes; i++) {
		holdings_free(&f->nodes[i].holds);
		free(f->nodes[i].ring);
	}
	free(f->nodes);
	cgn_buf_fini(&f->batches);
	cgn_buf_fini(&f->digests);
	cgn_buf_fini(&f->tiers);
	*f = (struct fleet){0};
}

static CGN_RC hold(struct fleet *f, struct fleet_node *node, uint64_t digest)
{
	if (holdings_tiers(node->holds, digest) != 0)
		return CGN_OK;
	if (node->used == f->capacity)
		(void)holdings_drop(node->holds, node->ring[node->at], KV_GPU);
	else
		node->used++;
	CGN_TRY(holdings_add(node->holds, digest, KV_GPU));
	node->ring[node->at] = digest;
	node->at = node->at + 1 < f->capacity ? node->at + 1 : 0;
	return CGN_OK;
}

CGN_RC fleet_serve(struct fleet *f, const uint64_t *chain, size_t n, struct cgn_err *err)
{
	uint64_t x = rng_next(&f->rng), key = x % 10 == 0 ? x >> 8 : mix(chain[n > 1 ? 1 : 0]);
	size_t before = f->tiers.n;
	cgn_rc rc = CGN_OK;
	f->reporting = (uint32_t)(key % f->n_nodes);
	for (size_t i = 0; i < n && cgn_ok(rc); i++)
		rc = hold(f, &f->nodes[f->reporting], chain[i]);
	const struct fleet_batch b = {f->reporting, (uint32_t)(f->tiers.n - before)};
	cgn_buf_add(&f->batches, &b, sizeof b);
	if (cgn_ok(rc) && (f->batches.bad || f->digests.bad || f->tiers.bad))
		rc = CGN_RC_OF(CGN_NO_MEMORY);
	return cgn_ok(rc) ? CGN_OK : CGN_FAIL_AS(err, rc.code, "no memory for what the nodes report");
}
