/* SPDX-License-Identifier: Apache-2.0 */
/* file: a prompt's tokens, by the model's own template and tokenizer. A short rest is tokenized in the
 * worker's turn; a long one goes to the thread pool, since a megabyte of text would hold up the worker's
 * other requests. */
#include <stdatomic.h>
#include <stdlib.h>

#include "router/request/tokens/tokens_priv.h"

#define INLINE_BYTES ((size_t)16 * 1024) /* about two milliseconds */
/* Bytes of text of one worker that may be on the pool: more than its threads tokenize in about a second. */
#define POOLED_MAX ((size_t)32 << 20)
/* Steps of a template: some hundred per message, of 20 ns each */
#define STEPS_MAX  1000000
#define MEMORY_MAX ((size_t)128 << 20)

/* A job of the pool. It outlives a request that ends meanwhile. */
struct tokens_job {
	struct gw_req *r; /* NULL: the request has ended */
	struct gw_tokenizer_set *tokenizers;
	struct cgn_buf text;
	struct digest *media;
	struct encode e;
	struct prefix_tokens chain;      /* with digests in the request's arena */
	bool keeps_strings;              /* is_sglangs */
	bool pooled, done;               /* given to the pool; done there */
	_Atomic bool abandoned;          /* the request has ended: the pool skips the job */
	struct gw_tokens_worker *worker; /* NULL: the pool does not have the job */
	const char *lacks;               /* why there is no text; NULL: there is one */
	struct cgn_err err;
};

static void job_free(struct tokens_job *j)
{
	prompt_encode_close(&j->e);
	cgn_buf_fini(&j->text);
	free(j->media);
	gw_tokenizer_set_unref(&j->tokenizers);
	free(j);
}

void tokens_file_end(struct gw_req *r)
{
	struct tokens_job *j = r->prompt.tokenizing->job;
	r->prompt.tokenizing->job = NULL;
	if (j != NULL && j->pooled && !j->done) {
		j->r = NULL; /* on_pooled frees it */
		atomic_store_explicit(&j->abandoned, true, memory_order_relaxed);
	} else if (j != NULL) {
		job_free(j);
	}
}

/* ---- a worker's tokenizers ---- */

void tokens_encoders_close(struct gw_tokens_worker *t)
{
	for (size_t i = 0; i < t->n_encoders; i++) {
		tokenizer_work_free(&t->encoders[i].work);
		gw_tokenizer_set_unref(&t->encoders[i].tokenizers);
	}
	free(t->encoders);
	t->encoders = NULL;
	t->n_encoders = 0;
}

static bool set_is_current(const struct gw_rules *rules, const struct gw_tokenizer_set *tokenizers)
{
	for (size_t i = 0; i < rules->n_models; i++)
		if (rules->models[i].tokenizers == tokenizers)
			return true;
	return false;
}

/* Drop the encoders of tokenizer sets that a reload replaced. */
static void encoders_sweep(struct gw_worker *w)
{
	struct gw_tokens_worker *t = w->tokens;
	size_t n = 0;
	for (size_t i = 0; i < t->n_encoders; i++) {
		if (set_is_current(w->rules, t->encoders[i].tokenizers)) {
			t->encoders[n++] = t->encoders[i];
			continue;
		}
		tokenizer_work_free(&t->encoders[i].work);
		gw_tokenizer_set_unref(&t->encoders[i].tokenizers);
	}
	t->n_encoders = n;
}

static struct tokenizer_work *encoder_get(struct gw_worker *w, struct gw_tokenizer_set *tokenizers)
{
	struct gw_tokens_worker *t = w->tokens;
	for (size_t i = 0; i < t->n_encoders; i++)
		if (t->encoders[i].tokenizers == tokenizers)
			return t->encoders[i].work;
	encoders_sweep(w);
	t->encoders = CGN_GROWN(t->encoders, t->n_encoders + 1);
	struct tokens_encoder *v = &t->encoders[t->n_encoders++];
	*v = (struct tokens_encoder){.tokenizers = tokenizers,
		.work = tokenizer_work_new(tokenizers->tokenizer)};
	gw_tokenizer_set_ref(tokenizers);
	return v->work;
}

/* ---- text ---- */

/* Render the chat template into j->text. Returns NULL, or why there is no text. */
static const char *prompt_render(struct gw_req *r, struct tokens_job *j)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	const struct gw_tokenizer_set *k = j->tokenizers;
	const struct gw_template *t =
		p->p.tools.raw.p != NULL && k->tools.compiled != NULL ? &k->tools : &k->chat;
	struct cgn_err why;
	const struct template_ask ask = {
		.messages = p->p.messages,
		.tools = p->p.tools,
		.documents = p->p.documents,
		.kwargs = p->p.kwargs,
		.bos_token = k->bos,
		.eos_token = k->eos,
		.unk_token = k->unk,
		.pad_token = k->pad,
		.add_generation_prompt = p->p.add_generation_prompt,
		.continue_final_message = p->p.continue_final_message,
		.now = (int64_t)(cgn_clock_wall_ms() / 1000),
		.max_steps = STEPS_MAX,
		.max_output = 4 * r->prompt.facts.json.raw.n + ((size_t)1 << 20),
		.max_memory = MEMORY_MAX,
	};
	cgn_rc rc = template_render(t->compiled, &ask, &j->text, &why);
	return cgn_ok(rc)                  ? NULL
		: rc.code == CGN_INVALID   ? "template"
		: rc.code == CGN_TOO_LARGE ? "too_large"
					   : PROMPT_LACKS_MEMORY;
}

/* Check whether the model's engines give a template strings where clients wrote strings, also one that takes parts.
 * Engines of several kinds: that of the first node counts. */
static bool is_sglangs(const struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	return m != NULL && m->n_ready > 0 && m->kinds[0] != NULL && m->kinds[0]->kind == ENGINE_SGLANG;
}

/* Read the prompt. A template that takes content as parts gets parts. */
static const char *prompt_parse(struct gw_req *r, const struct gw_tokenizer_set *k)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	struct json_val tools = {0}, tool;
	const char *lacks = NULL;
	bool with_tools = k->tools.compiled != NULL && json_get(r->prompt.facts.json, "tools", &tools) &&
		tools.type == JSON_ARRAY;
	struct json_iter it = with_tools ? json_iter_of(tools) : (struct json_iter){0};
	/* an empty list of tools does not count as a list */
	with_tools = with_tools && json_next_elem(&it, &tool);
	enum prompt_format format = with_tools ? k->tools.format : k->chat.format;
	const struct prompt_ask ask = {
		.api = prompt_api_of(r->client.target),
		.format = format == PROMPT_PARTS && p->job->keeps_strings ? PROMPT_KEPT : format,
		.max_ids = ROUTE_MAX_BLOCKS * (size_t)p->block_tokens,
	};
	if (!prompt_read(&ask, r->prompt.facts.json, &p->p, &lacks))
		return lacks;
	return p->p.kind == PROMPT_IS_CHAT && k->chat.compiled == NULL ? "no_template" : NULL;
}

static const char *prompt_text(struct gw_req *r, struct tokens_job *j)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	if (p->p.kind == PROMPT_IS_CHAT)
		return prompt_render(r, j);
	cgn_buf_str(&j->text, p->p.text);
	return j->text.bad ? PROMPT_LACKS_MEMORY : NULL;
}

/* ---- tokens ---- */

static const char *encode_plan(struct gw_req *r, struct tokens_job *j)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	size_t most = j->text.n / p->block_tokens + (p->p.n_media * PREFIX_FOREIGN_IDS) / p->block_tokens + 2;
	size_t cap = most < ROUTE_MAX_BLOCKS ? most : ROUTE_MAX_BLOCKS; /* a token has at least one byte */
	uint64_t *digests = cgn_arena_get(&r->scratch, cap * sizeof *digests);
	j->media = malloc((p->p.n_media + 1) * sizeof *j->media);
	if (digests == NULL || j->media == NULL)
		return PROMPT_LACKS_MEMORY;
	memcpy(j->media, p->p.media, p->p.n_media * sizeof *j->media);
	prefix_tokens_start(&j->chain, &p->root, p->block_tokens, digests, cap);
	const struct prompt_encode_ask ask = {
		.tokenizer = j->tokenizers->tokenizer,
		.root = tokens_cache_root(p, j->tokenizers->fingerprint),
		.text = cgn_buf_view(&j->text),
		.specials = p->p.add_specials,
		.media = j->media,
		.n_media = p->p.n_media,
		.max_ids = cap * p->block_tokens,
	};
	prompt_encode_open(&j->e, &ask);
	return NULL;
}

static void encode_end(struct gw_req *r, struct tokens_job *j)
{
	if (j->err.code != CGN_FINE) {
		tokens_fall_back(r, j->err.code == CGN_TOO_LARGE ? "too_large" : PROMPT_LACKS_MEMORY);
		return;
	}
	prompt_encode_finish(&j->e, r->w->tokens->cache, &j->chain);
	tokens_take_chain(r, &j->chain);
}

static void on_pool(void *arg)
{
	struct tokens_job *j = arg;
	if (atomic_load_explicit(&j->abandoned, memory_order_relaxed))
		return;
	struct tokenizer_work *work = tokenizer_work_new(j->tokenizers->tokenizer);
	if (cgn_ok(prompt_encode_run(&j->e, work, &j->err)))
		j->err.code = CGN_FINE;
	tokenizer_work_free(&work);
}

static void on_pooled(void *arg)
{
	struct tokens_job *j = arg;
	j->done = true;
	j->worker->pooled -= j->text.n;
	if (j->r != NULL)
		gw_wake(j->r);
	else
		job_free(j);
}

static void encode_here(struct gw_req *r, struct tokens_job *j)
{
	if (cgn_ok(prompt_encode_run(&j->e, encoder_get(r->w, j->tokenizers), &j->err)))
		j->err.code = CGN_FINE;
	encode_end(r, j);
}

static void encode_start(struct gw_req *r, struct tokens_job *j)
{
	size_t left = prompt_encode_resume(&j->e, r->w->tokens->cache, &j->chain);
	if (left <= INLINE_BYTES) {
		encode_here(r, j);
		return;
	}
	struct gw_tokens_worker *t = r->w->tokens;
	if (j->text.n > POOLED_MAX - t->pooled) {
		tokens_fall_back(r, "busy");
		return;
	}
	j->r = r;
	j->worker = t;
	j->pooled = true;
	t->pooled += j->text.n;
	cgn_loop_work(r->w->loop, on_pool, on_pooled, j);
	gw_goto(r, GW_TOKENS);
}

/* Read the prompt and write its text. Any thread. */
static void file_run(struct gw_req *r)
{
	struct tokens_job *j = r->prompt.tokenizing->job;
	r->prompt.tokenizing->root = prefix_root(r->prompt.model, r->prompt.salt, r->prompt.facts.json);
	j->lacks = prompt_parse(r, j->tokenizers);
	if (j->lacks == NULL && r->prompt.tokenizing->p.kind != PROMPT_IS_IDS)
		j->lacks = prompt_text(r, j);
}

static void file_then(struct gw_req *r)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	struct tokens_job *j = p->job;
	if (j->lacks == NULL && p->p.kind == PROMPT_IS_IDS) {
		tokens_take(r, p->p.ids, p->p.n_ids, NULL);
		return;
	}
	if (j->lacks == NULL)
		j->lacks = encode_plan(r, j);
	if (j->lacks == NULL)
		encode_start(r, j);
	else
		tokens_fall_back(r, j->lacks);
}

void tokens_file_start(struct gw_req *r, struct gw_tokenizer_set *tokenizers)
{
	struct tokens_job *j = r->prompt.tokenizing->job = CGN_NEW(struct tokens_job);
	j->tokenizers = tokenizers;
	j->keeps_strings = is_sglangs(r);
	gw_tokenizer_set_ref(tokenizers);
	gw_body_work(r, file_run, file_then);
}

enum gw_step tokens_file_step(struct gw_req *r)
{
	struct tokens_job *j = r->prompt.tokenizing->job;
	cgn_nsec waited = cgn_since(cgn_clock_now(), r->prompt.tokenizing->began),
		 limit = r->w->rules->timeout.tokenize;
	if (j->done)
		encode_end(r, j);
	else if (waited < limit)
		return gw_park(r, WAIT_TOKENS, limit - waited);
	else
		tokens_fall_back(r, "timeout");
	tokens_leave(r);
	return STEP_AGAIN;
}
