/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/live/playback.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/core/err.h"
#include "base/mix/mix.h"

#define WORD 5 /* Letters. */

void playback_fini(struct played *p)
{
	trace_fini(&p->trace);
	free(p->nodes);
	*p = (struct played){0};
}

/* Append the first |n| words of block |id|. */
static void put_block(uint64_t id, uint32_t n, struct cgn_buf *out)
{
	uint64_t s = trace_digest(id) | 1;
	char *at = cgn_buf_room(out, (size_t)n * (WORD + 1));
	for (uint32_t i = 0; at != NULL && i < n; i++) {
		uint64_t letters = mix_xorshift(&s) >> 8;
		*at++ = ' ';
		for (int k = 0; k < WORD; k++, letters /= 26)
			*at++ = (char)('a' + letters % 26);
	}
	if (at != NULL)
		cgn_buf_grew(out, (size_t)n * (WORD + 1));
}

void playback_prompt(const struct played *p, size_t i, struct cgn_buf *out)
{
	const struct trace_request *r = &p->trace.requests[i];
	const uint64_t *ids = trace_ids(&p->trace, r);
	uint32_t left = r->input;
	for (uint32_t k = 0; k < r->n; k++) {
		uint32_t n = left < p->trace.block_tokens ? left : p->trace.block_tokens;
		put_block(ids[k], n, out);
		left -= n;
	}
}

cgn_nsec playback_due(const struct played *p, size_t i)
{
	return (cgn_nsec)((double)p->trace.requests[i].at / p->speed);
}

static struct playback_node *node_of(struct played *p, struct cgn_str name)
{
	for (size_t i = 0; i < p->n_nodes; i++)
		if (cgn_str_is(name, p->nodes[i].name))
			return &p->nodes[i];
	if (name.n == 0 || name.n >= sizeof p->nodes[0].name || p->n_nodes == PLAYBACK_MAX_NODES)
		return NULL;
	struct playback_node *v = reallocarray(p->nodes, p->n_nodes + 1, sizeof *v);
	if (v == NULL)
		return NULL;
	p->nodes = v;
	v[p->n_nodes] = (struct playback_node){0};
	(void)cgn_str_copyz(v[p->n_nodes].name, sizeof v[0].name, name);
	return &v[p->n_nodes++];
}

void playback_note(struct played *p, struct cgn_str node, const struct usage *u)
{
	struct playback_node *n = node_of(p, node);
	if (n != NULL) {
		n->requests++;
		n->answer_tokens += u->completion_tokens;
	}
	if (!u->has_prompt || !u->has_cached)
		return;
	p->counted++;
	p->prompt_tokens += u->prompt_tokens;
	p->cached_tokens += u->cached_tokens;
}

static double playback_hit_ratio(const struct played *p)
{
	return p->prompt_tokens > 0 ? (double)p->cached_tokens / (double)p->prompt_tokens : 0;
}

static double playback_imbalance(const struct played *p, bool by_tokens)
{
	double most = 0, sum = 0;
	for (size_t i = 0; i < p->n_nodes; i++) {
		double v = (double)(by_tokens ? p->nodes[i].answer_tokens : p->nodes[i].requests);
		most = v > most ? v : most;
		sum += v;
	}
	return sum > 0 ? most * (double)p->n_nodes / sum : 1;
}

static double share_of(const struct played *p, const struct playback_node *n)
{
	uint64_t all = 0;
	for (size_t i = 0; i < p->n_nodes; i++)
		all += p->nodes[i].requests;
	return all > 0 ? (double)n->requests / (double)all : 0;
}

void playback_json(const struct played *p, struct json_out *o)
{
	json_key_f64(o, "speed", p->speed);
	json_key_f64(o, "hit_ratio", playback_hit_ratio(p));
	json_key_u64(o, "prompt_tokens", p->prompt_tokens);
	json_key_u64(o, "cached_tokens", p->cached_tokens);
	json_key_u64(o, "with_usage", p->counted);
	json_key_f64(o, "imbalance", playback_imbalance(p, true));
	json_key_f64(o, "imbalance_requests", playback_imbalance(p, false));
	json_key_open(o, "nodes", '[');
	for (size_t i = 0; i < p->n_nodes; i++) {
		json_open(o, '{');
		json_key_z(o, "node", p->nodes[i].name);
		json_key_u64(o, "requests", p->nodes[i].requests);
		json_key_u64(o, "answer_tokens", p->nodes[i].answer_tokens);
		json_key_f64(o, "share", share_of(p, &p->nodes[i]));
		json_close(o, '}');
	}
	json_close(o, ']');
}

void playback_text(const struct played *p, struct cgn_buf *out)
{
	if (p->counted > 0)
		cgn_buf_fmt(out, "%-22s %.2f %% of %" PRIu64 " prompt tokens\n", "found in cache",
			100 * playback_hit_ratio(p), p->prompt_tokens);
	else
		cgn_buf_putz(out, "no answer reported cached prompt tokens\n");
	for (size_t i = 0; i < p->n_nodes; i++)
		cgn_buf_fmt(out, "%-22s %.1f %% (%" PRIu64 " requests)\n", p->nodes[i].name,
			100 * share_of(p, &p->nodes[i]), p->nodes[i].requests);
}
