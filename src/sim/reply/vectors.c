/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/reply/vectors.h"

#include <math.h>
#include <stdlib.h>

#include "base/codec/codec.h"
#include "base/mix/mix.h"
#include "sim/reply/reply.h"
#include "sim/request/render.h"

#define DIMENSIONS     384
#define DIMENSIONS_MAX 4096
#define INPUTS_MAX     2048
#define DOCUMENTS_MAX  4096

static void put_model(const struct sim_vector_call *v, unsigned model, struct cgn_buf *out)
{
	sim_put_string(out, cgn_str_of(v->env->cfg->models[model]));
}

/* Generate a unit vector as a function of |digest|. */
static void make_vector(uint64_t digest, float *out, uint32_t n)
{
	double square = 0;
	for (uint32_t i = 0; i < n; i++) {
		out[i] = (float)((double)(mix64(digest + i) >> 11) * 0x1p-52 - 1.0);
		square += (double)out[i] * (double)out[i];
	}
	double scale = square > 0 ? 1.0 / sqrt(square) : 0;
	for (uint32_t i = 0; i < n; i++)
		out[i] = (float)((double)out[i] * scale);
}

static void put_vector(const float *vec, uint32_t n, bool base64, struct cgn_buf *out)
{
	if (base64) {
		cgn_buf_char(out, '"');
		/* Little-endian, as all supported hosts. */
		base64_put(out, (struct cgn_str){(const char *)vec, n * sizeof *vec});
		cgn_buf_char(out, '"');
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		cgn_buf_fmt(out, "%c%.8g", i > 0 ? ',' : '[', (double)vec[i]);
	cgn_buf_char(out, ']');
}

struct embed {
	const struct sim_vector_call *v;
	unsigned model;
	uint32_t dimensions, n;
	bool base64;
	uint64_t tokens;
	float vec[DIMENSIONS_MAX];
};

static bool embed_one(struct embed *e, struct json_val input, struct cgn_buf *out, struct sim_refusal *no)
{
	const struct sim_cfg *cfg = e->v->env->cfg;
	struct sim_chain chain;
	sim_chain_init(&chain,
		&(struct sim_chain_cfg){.block_tokens = cfg->block_tokens, .max_tokens = cfg->max_model_len});
	bool ok = sim_render_prompt(e->v->env, input, true, &chain, no) &&
		sim_check_context(cfg, chain.n_tokens, 0, no);
	uint64_t digest = sim_chain_digest(&chain);
	e->tokens += chain.n_tokens;
	sim_chain_fini(&chain);
	if (!ok)
		return false;
	if (e->n == INPUTS_MAX)
		return sim_refuse(no, 400, "invalid_value", "input", "input: at most %d", INPUTS_MAX);
	make_vector(digest, e->vec, e->dimensions);
	cgn_buf_fmt(out, "%s{\"index\":%u,\"object\":\"embedding\",\"embedding\":", e->n > 0 ? "," : "",
		e->n);
	put_vector(e->vec, e->dimensions, e->base64, out);
	cgn_buf_char(out, '}');
	e->n++;
	return true;
}

static bool embed_all(struct embed *e, struct json_val input, struct cgn_buf *out, struct sim_refusal *no)
{
	struct json_val each;
	if (!sim_is_prompts(input))
		return embed_one(e, input, out, no);
	struct json_iter it = json_iter_of(input);
	while (json_next_elem(&it, &each)) {
		if (!embed_one(e, each, out, no))
			return false;
	}
	return true;
}

bool sim_embeddings(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no)
{
	struct sim_fields f;
	struct json_val input = {0};
	struct embed e = {.v = v};
	if (!sim_body_parse(v->body, &f, no) || !sim_model_find(v->env, &f, &e.model, no))
		return false;
	if (!sim_field(&f, SIM_KEY_INPUT, &input))
		return sim_refuse(no, 400, "missing", "input", "input: field required");
	uint64_t dimensions = json_get_u64(f.root, "dimensions", DIMENSIONS);
	if (dimensions < 1 || dimensions > DIMENSIONS_MAX)
		return sim_refuse(no, 400, "invalid_value", "dimensions", "dimensions must be from 1 to %d",
			DIMENSIONS_MAX);
	e.dimensions = (uint32_t)dimensions;
	e.base64 = cgn_str_is(json_get_str(f.root, "encoding_format", v->env->arena), "base64");
	cgn_buf_fmt(out, "{\"id\":\"embd-%s\",\"object\":\"list\",\"created\":%llu,\"model\":", v->id,
		(unsigned long long)v->now);
	put_model(v, e.model, out);
	cgn_buf_putz(out, ",\"data\":[");
	if (!embed_all(&e, input, out, no))
		return false;
	cgn_buf_fmt(out,
		"],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,\"completion_tokens\":0,\"prompt_tokens_details\":null}}",
		(unsigned long long)e.tokens, (unsigned long long)e.tokens);
	return true;
}

/* Similarity of two texts: the share of the first text's tokens that the second one has, without regard to
 * case and spaces. */
#define BAG_BITS 4096U
struct bag {
	uint64_t bits[BAG_BITS / 64];
};

static uint32_t bag_slot(struct cgn_str token)
{
	uint64_t h = 0;
	for (size_t i = 0; i < token.n; i++)
		h = token.p[i] == ' ' ? h : mix64(h ^ (uint8_t)(token.p[i] | 0x20));
	return (uint32_t)(h % BAG_BITS);
}

static uint64_t bag_fill(struct bag *bag, struct cgn_str text)
{
	uint64_t n = 0;
	uint32_t id = 0;
	for (; text.n > 0; n++) {
		uint32_t slot = bag_slot(sim_token_cut(&text, &id));
		bag->bits[slot / 64] |= 1ULL << slot % 64;
	}
	return n;
}

static double text_similarity(struct cgn_str query, const struct bag *document)
{
	uint64_t n = 0, hits = 0;
	uint32_t id = 0;
	for (; query.n > 0; n++) {
		uint32_t slot = bag_slot(sim_token_cut(&query, &id));
		hits += document->bits[slot / 64] >> slot % 64 & 1;
	}
	return n > 0 ? (double)hits / (double)n : 0;
}

/* Read a string, or an object with "text". */
static bool text_of(struct json_val value, struct cgn_arena *a, struct cgn_str *out)
{
	if (value.type == JSON_OBJECT && !json_get(value, "text", &value))
		return false;
	if (value.type != JSON_STRING)
		return false;
	*out = json_str(value, a);
	return true;
}

struct ranked {
	struct cgn_str text;
	double score;
	uint32_t index;
};

static int by_score(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	if (x->score != y->score)
		return x->score < y->score ? 1 : -1;
	return x->index < y->index ? -1 : 1;
}

/* Score each text of |list| (or the single text) against |query|, into a new array in the arena. */
static struct ranked *rank_all(const struct sim_vector_call *v, struct cgn_str query, struct json_val list,
	uint32_t *n, uint64_t *tokens)
{
	struct ranked *all = cgn_arena_get(v->env->arena, DOCUMENTS_MAX * sizeof *all);
	struct json_val each = list;
	struct json_iter it = list.type == JSON_ARRAY ? json_iter_of(list) : (struct json_iter){0};
	*n = 0;
	while (all != NULL && *n < DOCUMENTS_MAX &&
		(list.type != JSON_ARRAY ? *n == 0 : json_next_elem(&it, &each))) {
		struct bag bag = {0};
		struct bag asked = {0};
		struct ranked *r = &all[*n];
		if (!text_of(each, v->env->arena, &r->text))
			return NULL;
		*tokens += bag_fill(&bag, r->text) + bag_fill(&asked, query);
		r->score = text_similarity(query, &bag);
		r->index = (*n)++;
	}
	return all;
}

bool sim_rerank(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no)
{
	struct sim_fields f;
	struct json_val query, documents;
	struct cgn_str asked;
	unsigned model = 0;
	uint32_t n = 0;
	uint64_t tokens = 0;
	if (!sim_body_parse(v->body, &f, no) || !sim_model_find(v->env, &f, &model, no))
		return false;
	if (!json_get(f.root, "query", &query) || !text_of(query, v->env->arena, &asked))
		return sim_refuse(no, 400, "missing", "query", "query: a string is required");
	struct ranked *all =
		json_get(f.root, "documents", &documents) ? rank_all(v, asked, documents, &n, &tokens) : NULL;
	if (all == NULL)
		return sim_refuse(no, 400, "missing", "documents",
			"documents: a list of strings is required");
	qsort(all, n, sizeof *all, by_score);
	uint64_t top = json_get_u64(f.root, "top_n", 0);
	cgn_buf_fmt(out, "{\"id\":\"rerank-%s\",\"model\":", v->id);
	put_model(v, model, out);
	cgn_buf_fmt(out, ",\"usage\":{\"total_tokens\":%llu},\"results\":[", (unsigned long long)tokens);
	for (uint32_t i = 0; i < n && (top == 0 || i < top); i++) {
		cgn_buf_fmt(out, "%s{\"index\":%u,\"document\":{\"text\":", i > 0 ? "," : "", all[i].index);
		sim_put_string(out, all[i].text);
		cgn_buf_fmt(out, "},\"relevance_score\":%.8g}", all[i].score);
	}
	cgn_buf_putz(out, "]}");
	return true;
}

bool sim_score(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no)
{
	struct sim_fields f;
	struct json_val first, second;
	struct cgn_str query;
	unsigned model = 0;
	uint32_t n = 0;
	uint64_t tokens = 0;
	if (!sim_body_parse(v->body, &f, no) || !sim_model_find(v->env, &f, &model, no))
		return false;
	if (!json_get(f.root, "text_1", &first) || !text_of(first, v->env->arena, &query))
		return sim_refuse(no, 400, "missing", "text_1", "text_1: a string is required");
	struct ranked *all =
		json_get(f.root, "text_2", &second) ? rank_all(v, query, second, &n, &tokens) : NULL;
	if (all == NULL)
		return sim_refuse(no, 400, "missing", "text_2",
			"text_2: a string or a list of strings is required");
	cgn_buf_fmt(out, "{\"id\":\"score-%s\",\"object\":\"list\",\"created\":%llu,\"model\":", v->id,
		(unsigned long long)v->now);
	put_model(v, model, out);
	cgn_buf_putz(out, ",\"data\":[");
	for (uint32_t i = 0; i < n; i++)
		cgn_buf_fmt(out, "%s{\"index\":%u,\"object\":\"score\",\"score\":%.8g}", i > 0 ? "," : "", i,
			all[i].score);
	cgn_buf_fmt(out,
		"],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,\"completion_tokens\":0,\"prompt_tokens_details\":null}}",
		(unsigned long long)tokens, (unsigned long long)tokens);
	return true;
}
