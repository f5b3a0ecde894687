/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/part/holders.h"

#include "base/mix/mix.h"

#include <stdlib.h>
#include <string.h>

static void batch_push(struct cgn_buf *b, uint64_t v)
{
	cgn_buf_add(b, &v, sizeof v);
}

size_t holders_chain(const struct trace *t, uint64_t i, struct cgn_buf *out)
{
	const struct trace_request *r = &t->requests[i % t->n];
	uint64_t round = i / t->n, first = t->ids[0];
	const uint64_t *ids = trace_ids(t, r);
	out->n = 0;
	for (uint32_t k = 0; k < r->n; k++)
		batch_push(out, mix_seeded(ids[k] == first ? ids[k] : ids[k] ^ round << 40));
	return out->n / sizeof(uint64_t);
}

static void batch_report(void *user, uint64_t digest)
{
	struct fleet *f = user;
	uint8_t tiers = (uint8_t)holdings_tiers(f->nodes[f->reporting].holds, digest);
	batch_push(&f->digests, digest);
	cgn_buf_add(&f->tiers, &tiers, 1);
}

CGN_RC holders_init(struct fleet *f, size_t n_nodes, size_t capacity, uint64_t seed, struct cgn_err *err)
{
	*f = (struct fleet){.n_nodes = n_nodes, .capacity = capacity, .rng = mix_seeded(seed) | 1};
	f->nodes = CGN_NEW_ARRAY(struct holders_node, n_nodes);
	for (size_t i = 0; i < n_nodes; i++) {
		f->nodes[i].holds = holdings_new(capacity, batch_report, f);
		f->nodes[i].ring = malloc(capacity * sizeof(uint64_t));
		if (f->nodes[i].ring == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for %zu nodes of %zu blocks", n_nodes,
				capacity);
	}
	return CGN_OK;
}

void holders_fini(struct fleet *f)
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

static CGN_RC node_hold(struct fleet *f, struct holders_node *node, uint64_t digest)
{
	if (holdings_tiers(node->holds, digest) != 0)
		return CGN_OK;
	if (node->used == f->capacity)
		(void)holdings_drop(node->holds, node->ring[node->at], BLOCK_GPU);
	else
		node->used++;
	CGN_TRY(holdings_add(node->holds, digest, BLOCK_GPU));
	node->ring[node->at] = digest;
	node->at = node->at + 1 < f->capacity ? node->at + 1 : 0;
	return CGN_OK;
}

CGN_RC holders_serve(struct fleet *f, const uint64_t *chain, size_t n, struct cgn_err *err)
{
	uint64_t x = mix_xorshift_star(&f->rng),
		 key = x % 10 == 0 ? x >> 8 : mix_seeded(chain[n > 1 ? 1 : 0]);
	size_t before = f->tiers.n;
	cgn_rc rc = CGN_OK;
	f->reporting = (uint32_t)(key % f->n_nodes);
	for (size_t i = 0; i < n && cgn_ok(rc); i++)
		rc = node_hold(f, &f->nodes[f->reporting], chain[i]);
	const struct holders_batch b = {f->reporting, (uint32_t)(f->tiers.n - before)};
	cgn_buf_add(&f->batches, &b, sizeof b);
	if (cgn_ok(rc) && (f->batches.bad || f->digests.bad || f->tiers.bad))
		rc = CGN_RC_OF(CGN_NO_MEMORY);
	return cgn_ok(rc) ? CGN_OK : CGN_FAIL_AS(err, rc.code, "no memory for the nodes' reports");
}
