/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: which blocks a prompt has, and their metrics. A prompt whose tokens are not there within
 * router.tokenize_timeout has blocks of bytes instead, which is counted. Routing never fails for lack of
 * tokens. */
#include <stdlib.h>

#include "router/request/tokens/tokens_priv.h"

#define TOKENS_TAG 0x64704e02U
#define MAX_MODELS 512 /* Models of one worker with state of their own */

const char *gw_tokens_text(enum gw_tokens_mode mode)
{
	static const char *const texts[GW_TOKENS_MODES] =
		{[GW_BYTES] = "bytes", [GW_ENGINE] = "engine", [GW_FILE] = "file"};
	return texts[mode];
}

enum gw_tokens_mode gw_tokens_mode_of(const struct gw_model *row, const struct view_model *m)
{
	int asked = row != NULL ? row->tokens : TOKENS_AUTO;
	if (row != NULL && row->tokenizers != NULL)
		return GW_FILE;
	bool engine = m != NULL &&
		((asked == TOKENS_ENGINE && m->may_tokenize) || (asked == TOKENS_AUTO && m->tokenizes));
	return engine ? GW_ENGINE : GW_BYTES;
}

/* ---- state of a worker ---- */

CGN_RC gw_tokens_open(struct gw_worker *w, size_t cache_bytes, struct cgn_err *err)
{
	struct gw_tokens_worker *t = CGN_NEW(struct gw_tokens_worker);
	w->tokens = t;
	t->tag = TOKENS_TAG;
	t->telemetry = w->shared->telemetry;
	t->hits = METRIC_OF(t->telemetry, PROMPT_CACHE, "hit");
	t->misses = METRIC_OF(t->telemetry, PROMPT_CACHE, "miss");
	t->evictions = METRIC_ONE(t->telemetry, PROMPT_CACHE_EVICTED);
	t->bytes = METRIC_ONE(t->telemetry, PROMPT_CACHE_BYTES);
	for (unsigned i = 0; i < GW_TOKENS_MODES; i++)
		t->seconds[i] =
			METRIC_OF(t->telemetry, PROMPT_SECONDS, gw_tokens_text((enum gw_tokens_mode)i));
	t->cache = promptcache_new(cache_bytes);
	if (t->cache == NULL)
		return CGN_FAIL(err, NO_MEMORY, "router.prompt_cache: no memory for a cache of %zu bytes",
			cache_bytes);
	return CGN_OK;
}

void gw_tokens_close(struct gw_worker *w)
{
	struct gw_tokens_worker *t = w->tokens;
	w->tokens = NULL;
	if (t == NULL)
		return;
	CGN_LIVE(t, TOKENS_TAG);
	metric_shift(t->bytes, -(int64_t)t->shown.bytes);
	promptcache_free(&t->cache);
	tokens_encoders_close(t);
	for (size_t i = 0; i < t->n_models; i++)
		free((void *)(uintptr_t)t->models[i].name.p);
	free(t->models);
	t->tag = 0;
	free(t);
}

static void model_cells(const struct gw_tokens_worker *t, struct tokens_model *m, const char *label)
{
	for (unsigned i = 0; i < GW_TOKENS_MODES; i++)
		m->chains[i] =
			METRIC_OF(t->telemetry, PROMPT_CHAIN, label, gw_tokens_text((enum gw_tokens_mode)i));
}

static struct tokens_model *tokens_model_new(struct gw_tokens_worker *t, struct cgn_str name)
{
	char *copy = cgn_str_dupz(name);
	t->models = CGN_GROWN(t->models, t->n_models + 1);
	struct tokens_model *m = &t->models[t->n_models++];
	*m = (struct tokens_model){.name = {copy, name.n}};
	model_cells(t, m, copy);
	return m;
}

static struct tokens_model *tokens_model_other(struct gw_tokens_worker *t)
{
	if (t->other.chains[0] == NULL)
		model_cells(t, &t->other, "other");
	t->other.failures = 0;
	t->other.quiet_until = 0;
	return &t->other;
}

/* Only known models come here, so there are few: a scan beats hashing. */
struct tokens_model *tokens_model_of(struct gw_worker *w, struct cgn_str name)
{
	struct gw_tokens_worker *t = w->tokens;
	CGN_LIVE(t, TOKENS_TAG);
	for (size_t i = 0; i < t->n_models; i++)
		if (cgn_str_eq(t->models[i].name, name))
			return &t->models[i];
	return t->n_models < MAX_MODELS ? tokens_model_new(t, name) : tokens_model_other(t);
}

void gw_tokens_forget(struct gw_worker *w, struct cgn_str model)
{
	struct gw_tokens_worker *t = w->tokens;
	CGN_LIVE(t, TOKENS_TAG);
	for (size_t i = 0; i < t->n_models; i++) {
		if (!cgn_str_eq(t->models[i].name, model))
			continue;
		free((void *)(uintptr_t)t->models[i].name.p);
		t->models[i] = t->models[--t->n_models];
		return;
	}
}

static void cache_show(struct gw_tokens_worker *t)
{
	struct promptcache_stats now = promptcache_stats(t->cache);
	metric_add(t->hits, now.hits - t->shown.hits);
	metric_add(t->misses, now.misses - t->shown.misses);
	metric_add(t->evictions, now.evictions - t->shown.evictions);
	metric_shift(t->bytes, (int64_t)now.bytes - (int64_t)t->shown.bytes);
	t->shown = now;
}

/* ---- ends ---- */

static void prompt_free(struct gw_req *r)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	r->prompt.tokenizing = NULL;
	if (p == NULL)
		return;
	CGN_LIVE(p, PROMPT_TAG);
	prompt_fini(&p->p);
	p->tag = 0;
	free(p);
}

void gw_tokens_end(struct gw_req *r)
{
	if (r->prompt.tokenizing == NULL)
		return;
	CGN_LIVE(r->prompt.tokenizing, PROMPT_TAG);
	tokens_ask_end(r);
	tokens_file_end(r);
	prompt_free(r);
}

static void chain_done(struct gw_req *r, enum gw_tokens_mode mode)
{
	r->prompt.unit = gw_tokens_text(mode);
	metric_add(tokens_model_of(r->w, r->prompt.model)->chains[mode], 1);
	if (r->prompt.tokenizing != NULL)
		r->prompt.media = r->prompt.tokenizing->p.n_media > 0;
	if (r->prompt.tokenizing != NULL)
		metric_observe(r->w->tokens->seconds[mode],
			cgn_since(cgn_clock_now(), r->prompt.tokenizing->began));
	if (mode != GW_BYTES)
		cache_show(r->w->tokens);
	gw_tokens_end(r);
}

/* Make the chain of bytes. Any thread. */
static void bytes_run(struct gw_req *r)
{
	const struct prefix_params params = {
		.model = r->prompt.model,
		.salt = r->prompt.salt,
		.block_bytes = r->prompt.block_bytes,
		.max_blocks = ROUTE_MAX_BLOCKS,
	};
	r->prompt.chain = prefix_chain_make(&params, r->prompt.facts.json, &r->scratch);
}

static void bytes_then(struct gw_req *r)
{
	r->prompt.block_tokens = 0;
	r->prompt.tokens = 0;
	chain_done(r, GW_BYTES);
}

void tokens_leave(struct gw_req *r)
{
	if (r->state == GW_TOKENS)
		gw_goto(r, GW_ROUTE);
}

void tokens_fall_back(struct gw_req *r, const char *reason)
{
	CGN_LIVE(r->prompt.tokenizing, PROMPT_TAG);
	if (reason != NULL)
		metric_add(METRIC_OF(r->w->shared->telemetry, PROMPT_FALLBACK, r->prompt.model.p, reason), 1);
	tokens_leave(r);
	gw_body_work(r, bytes_run, bytes_then);
}

/* Start a chain of at most |blocks| digests. False: out of memory, and the request has blocks of bytes
 * now. */
static bool chain_start(struct gw_req *r, size_t blocks, struct prefix_tokens *c)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	CGN_LIVE(p, PROMPT_TAG);
	size_t cap = blocks < ROUTE_MAX_BLOCKS ? blocks : ROUTE_MAX_BLOCKS;
	uint64_t *digests = cgn_arena_get(&r->scratch, (cap + 1) * sizeof *digests);
	if (digests == NULL)
		tokens_fall_back(r, PROMPT_LACKS_MEMORY);
	else
		prefix_tokens_start(c, &p->root, p->block_tokens, digests, cap);
	return digests != NULL;
}

void tokens_take_chain(struct gw_req *r, const struct prefix_tokens *c)
{
	r->prompt.chain = (struct prefix_chain){c->short_digests, c->n};
	r->prompt.block_tokens = c->block_tokens;
	r->prompt.tokens = c->n_tokens;
	chain_done(r, r->prompt.tokenizing->mode);
}

struct digest tokens_cache_root(const struct gw_tokenizing *p, uint64_t fingerprint)
{
	const uint64_t parts[] = {p->block_tokens, fingerprint};
	return digest_keyed(&p->root, (struct cgn_str){(const char *)parts, sizeof parts});
}

void tokens_take_cached(struct gw_req *r, const struct promptcache_entry *e)
{
	struct prefix_tokens c;
	if (!chain_start(r, promptcache_blocks(e), &c))
		return;
	promptcache_load(e, &c);
	tokens_take_chain(r, &c);
}

void tokens_take(struct gw_req *r, const uint32_t *ids, size_t n, const struct promptcache_key *key)
{
	struct prefix_tokens c;
	if (!chain_start(r, n / r->prompt.tokenizing->block_tokens, &c))
		return;
	prefix_tokens_add(&c, ids, n);
	c.n_tokens = n; /* the tokens behind the last full block count too */
	if (key != NULL)
		(void)promptcache_put(r->w->tokens->cache, key, NULL, &c);
	tokens_take_chain(r, &c);
}

/* ---- beginnings ---- */

static void prompt_new(struct gw_req *r, const struct gw_model *row, enum gw_tokens_mode mode)
{
	struct gw_tokenizing *p = CGN_NEW(struct gw_tokenizing);
	p->tag = PROMPT_TAG;
	p->mode = mode;
	p->guess = row != NULL && row->tokens == TOKENS_ENGINE;
	p->block_tokens = row != NULL ? row->block_tokens : GW_BLOCK_TOKENS;
	if (r->client.route->kind == GW_COUNT)
		p->block_tokens = TOKENS_BLOCK_MAX; /* so that the longest prompt is counted to its end */
	p->began = cgn_clock_now();
	r->prompt.tokenizing = p;
}

/* True if an engine may count the prompt's tokens itself, which is exact. */
static bool engine_counts(const struct gw_req *r, const struct view_model *m)
{
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (!view_lacks(m, i, r->client.target))
			return true;
	return false;
}

void gw_tokens_start(struct gw_req *r, const struct gw_model *row)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	enum gw_tokens_mode mode = gw_tokens_mode_of(row, m);
	enum prompt_api api = mode != GW_BYTES ? prompt_api_of(r->client.target) : PROMPT_NONE;
	bool counts = r->client.route->kind == GW_COUNT;
	if (counts && (mode == GW_BYTES || (mode == GW_ENGINE && engine_counts(r, m))))
		return; /* the engine is asked for the count */
	if (mode != GW_BYTES && api == PROMPT_NONE)
		return; /* the route has no prompt that an engine would cache */
	r->prompt.block_bytes = row != NULL ? row->block_bytes : GW_BLOCK_BYTES;
	if (mode == GW_BYTES) {
		gw_body_work(r, bytes_run, bytes_then);
		return;
	}
	prompt_new(r, row, mode);
	if (mode == GW_FILE)
		tokens_file_start(r, row->tokenizers);
	else
		tokens_ask_start(r);
}

enum gw_step gw_tokens(struct gw_req *r)
{
	CGN_LIVE(r->prompt.tokenizing, PROMPT_TAG);
	return r->prompt.tokenizing->mode == GW_FILE ? tokens_file_step(r) : tokens_ask_step(r);
}
