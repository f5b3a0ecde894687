/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/replay/federation_priv.h"

#define PROGRESS_EVERY 4096 /* Messages. */

/* ---- messages ---- */

struct federation_message federation_to(enum federation_kind kind, uint32_t from, uint32_t to, cgn_nsec at)
{
	return (struct federation_message){.kind = kind, .from = (uint8_t)from, .to = (uint8_t)to, .at = at};
}

static bool message_is_before(const struct federation_message *a, const struct federation_message *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static bool heap_reserve(struct federation *f)
{
	if (f->n < f->cap)
		return true;
	size_t cap = f->cap > 0 ? 2 * f->cap : 256;
	struct federation_message *heap = reallocarray(f->heap, cap, sizeof *heap);
	if (heap == NULL)
		return false;
	f->heap = heap;
	f->cap = cap;
	return true;
}

void federation_push(struct federation *f, struct federation_message m)
{
	if (m.at == UINT64_MAX || !heap_reserve(f)) {
		f->no_memory |= m.at != UINT64_MAX;
		cgn_buf_fini(&m.body);
		return;
	}
	m.order = f->order++;
	size_t i = f->n++;
	for (; i > 0 && message_is_before(&m, &f->heap[(i - 1) / 2]); i = (i - 1) / 2)
		f->heap[i] = f->heap[(i - 1) / 2];
	f->heap[i] = m;
}

static struct federation_message heap_take(struct federation *f)
{
	struct federation_message first = f->heap[0], m = f->heap[--f->n];
	size_t i = 0;
	for (;;) {
		size_t k = 2 * i + 1;
		if (k + 1 < f->n && message_is_before(&f->heap[k + 1], &f->heap[k]))
			k++;
		if (k >= f->n || !message_is_before(&f->heap[k], &m))
			break;
		f->heap[i] = f->heap[k];
		i = k;
	}
	f->heap[i] = m;
	return first;
}

/* ---- time ---- */

static bool federation_is_over(const struct federation *f)
{
	for (uint32_t i = 0; i < f->cfg->clusters; i++)
		if (!replay_is_over(&f->v[i].r))
			return false;
	return f->open == 0;
}

static bool memory_is_out(const struct federation *f)
{
	bool out = f->no_memory;
	for (uint32_t i = 0; i < f->cfg->clusters; i++)
		out |= f->v[i].r.no_memory;
	return out;
}

/* Play the next message or event. Messages go before events of the same time. */
static void federation_turn(struct federation *f)
{
	struct replay *next = &f->v[0].r;
	cgn_nsec at = replay_next_at(next);
	for (uint32_t i = 1; i < f->cfg->clusters; i++) {
		cgn_nsec t = replay_next_at(&f->v[i].r);
		if (t >= at)
			continue;
		at = t;
		next = &f->v[i].r;
	}
	if (f->n == 0 || f->heap[0].at > at) {
		replay_turn(next);
		return;
	}
	struct federation_message m = heap_take(f);
	f->now = m.at;
	if (m.kind <= FEDERATION_TIMEOUT)
		fedcall_receive(f, &m);
	else
		fedpeer_receive(f, &m);
	cgn_buf_fini(&m.body);
}

static void progress_tell(const struct federation *f, const struct federation_trace *t)
{
	const struct replay_cfg *c = f->cfg->replay;
	uint64_t came = 0;
	for (uint32_t i = 0; i < f->cfg->clusters; i++)
		came += f->v[i].r.next;
	if (c->progress != NULL)
		c->progress(c->user, (double)came / (double)t->all.n);
}

static void federation_play(struct federation *f, const struct federation_trace *t)
{
	for (uint64_t i = 0; !federation_is_over(f) && !memory_is_out(f); i++) {
		if (i % PROGRESS_EVERY == 0)
			progress_tell(f, t);
		federation_turn(f);
	}
}

/* ---- the clusters ---- */

static bool trace_take(const struct federation_trace *t, uint32_t cluster, struct trace *out)
{
	*out = t->all;
	out->n = 0;
	out->requests = calloc(t->all.n, sizeof *out->requests);
	for (size_t i = 0; out->requests != NULL && i < t->all.n; i++)
		if (t->region[i] == cluster)
			out->requests[out->n++] = t->all.requests[i];
	return out->requests != NULL;
}

static CGN_RC clusters_open(struct federation *f, const struct federation_trace *t, struct cgn_err *err)
{
	for (uint32_t i = 0; i < f->cfg->clusters; i++) {
		struct federation_cluster *x = &f->v[i];
		if (!trace_take(t, i, &x->trace))
			return CGN_FAIL(err, NO_MEMORY, "no memory for the traces of %u clusters",
				f->cfg->clusters);
		x->r = (struct replay){.trace = &x->trace,
			.cfg = f->cfg->replay,
			.result = &x->result,
			.hooks = &f->hooks};
		for (size_t k = 0; k < t->all.n; k++)
			x->r.longest =
				t->all.requests[k].n > x->r.longest ? t->all.requests[k].n : x->r.longest;
		CGN_TRY(replay_open(&x->r, err));
	}
	return CGN_OK;
}

static void clusters_close(struct federation *f)
{
	for (uint32_t i = 0; i < f->cfg->clusters; i++) {
		struct federation_cluster *x = &f->v[i];
		if (x->r.trace != NULL)
			replay_close(&x->r);
		replay_result_fini(&x->result);
		free(x->trace.requests);
	}
	while (f->n > 0)
		cgn_buf_fini(&f->heap[--f->n].body);
	cgn_list_each_safe (l, &f->calls)
		free(CGN_CONTAINER(l, struct federation_call, all));
	free(f->heap);
	free(f->v);
}

static void samples_join(struct samples *to, const struct samples *from)
{
	const uint64_t *v = (const uint64_t *)(const void *)from->ns.p;
	for (size_t i = 0; i < samples_count(from); i++)
		samples_add(to, v[i]);
	to->lost += from->lost;
}

static void clusters_sum_up(struct federation *f)
{
	struct federation_result *out = f->out;
	for (uint32_t i = 0; i < f->cfg->clusters; i++) {
		const struct replay_result *r = &f->v[i].result;
		out->requests += r->requests;
		out->done += r->done;
		out->refused += r->refused_full + r->refused_late + r->refused_too_large + r->refused_power;
		out->waited += r->waited;
		out->prompt_blocks += r->prompt_blocks;
		out->cached_blocks += r->cached_blocks;
		out->evicted_blocks += r->evicted_blocks;
		samples_join(&out->ttft, &r->ttft);
		samples_join(&out->itl, &r->itl);
		out->ended = f->v[i].r.now > out->ended ? f->v[i].r.now : out->ended;
	}
	out->block_mean = out->summaries > 0 ? f->blocks_told / (double)out->summaries : 0;
}

double federation_kbit_per_million(const struct federation_result *r, const struct federation_cfg *cfg)
{
	const double ways = (double)cfg->clusters * (cfg->clusters - 1), seconds = (double)r->ended / 1e9;
	if (!(r->block_mean > 0) || !(seconds > 0))
		return 0;
	return (double)r->summary_bytes * 8 / 1000 / seconds / ways / (r->block_mean / 1e6);
}

static CGN_RC settings_check(const struct federation_cfg *c, struct cgn_err *err)
{
	if (c->clusters < 2 || c->clusters > FEDERATION_CLUSTERS)
		return CGN_FAIL(err, INVALID, "%u clusters: 2 to %d are allowed", c->clusters,
			FEDERATION_CLUSTERS);
	if (c->replay->blocks == 0 || c->replay->gpu != NULL || c->replay->prefill_nodes > 0 ||
		c->replay->quotes || c->replay->scales)
		return CGN_FAIL(err, INVALID,
			"several clusters are played with 1 block or more on each node, nodes of both roles, and without quotes");
	if (c->n_ways == 0 || c->loss < 0 || c->loss >= 0.5)
		return CGN_FAIL(err, INVALID, "loss %g: 0 and more, below 0.5; %zu round trips: at least one",
			c->loss, c->n_ways);
	for (size_t i = 0; i < c->n_cuts; i++)
		if (c->cuts[i].a >= c->clusters || c->cuts[i].b >= c->clusters ||
			c->cuts[i].a == c->cuts[i].b || c->cuts[i].from >= c->cuts[i].to)
			return CGN_FAIL(err, INVALID,
				"a cut is between two of %u clusters, and ends after it begins", c->clusters);
	return c->n_cuts <= FEDERATION_CUTS ? CGN_OK
					    : CGN_FAIL(err, INVALID, "more than %d cuts", FEDERATION_CUTS);
}

CGN_RC federation_run(const struct federation_trace *t, const struct federation_cfg *cfg,
	struct federation_result *out, struct cgn_err *err)
{
	struct federation_result result = {0};
	struct federation f = {.cfg = cfg, .out = &result, .wan = {cfg, cfg->replay->seed}};
	CGN_TRY(settings_check(cfg, err));
	cgn_list_init(&f.calls);
	f.hooks = fedcall_hooks(&f);
	f.v = calloc(cfg->clusters, sizeof *f.v);
	if (f.v == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %u clusters", cfg->clusters);
	cgn_rc rc = clusters_open(&f, t, err);
	if (cgn_ok(rc)) {
		fedpeer_begin(&f);
		federation_play(&f, t);
		clusters_sum_up(&f);
		fedpeer_end(&f);
	}
	if (cgn_ok(rc) && memory_is_out(&f))
		rc = CGN_FAIL(err, NO_MEMORY, "no memory to replay %u clusters", cfg->clusters);
	clusters_close(&f);
	if (cgn_ok(rc))
		*out = result;
	else
		federation_result_fini(&result);
	return rc;
}

void federation_result_fini(struct federation_result *r)
{
	samples_fini(&r->ttft);
	samples_fini(&r->itl);
	*r = (struct federation_result){0};
}
