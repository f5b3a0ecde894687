/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/handoff/handoff.h"

#include <stdio.h>

#include "base/mix/mix.h"
#include "policy/node/handoff/handoff_priv.h"
#include "policy/text/body/body.h"
#include "policy/text/prompt/prompt.h"

static void nothing_put(const struct handoff_job *job, enum handoff_leg leg, struct json_out *o)
{
	(void)job;
	(void)leg;
	(void)o;
}

static const struct handoff_ops handoff_none = {.kind = HANDOFF_NONE,
	.name = "none",
	.alone = true,
	.several = true,
	.answers = true,
	.put = nothing_put};
/* The agents put states of prompts into the nodes' block stores, and fetch them from there. */
static const struct handoff_ops handoff_store = {.kind = HANDOFF_STORE,
	.name = "store",
	.alone = true,
	.several = true,
	.answers = true,
	.put = nothing_put};

static const struct handoff_ops *const dialects[HANDOFF_KINDS] = {
	[HANDOFF_NONE] = &handoff_none,
	[HANDOFF_STORE] = &handoff_store,
	[HANDOFF_NIXL] = &handoff_nixl,
	[HANDOFF_P2P] = &handoff_p2p,
	[HANDOFF_MOONCAKE] = &handoff_mooncake,
	[HANDOFF_SGLANG] = &handoff_sglang,
	[HANDOFF_TRTLLM] = &handoff_trtllm,
};

const struct handoff_ops *handoff_ops_of(enum handoff_kind kind)
{
	CGN_MUST(kind < HANDOFF_KINDS);
	return dialects[kind];
}

enum handoff_kind handoff_kind_named(struct cgn_str name)
{
	for (size_t i = 0; i < HANDOFF_KINDS; i++)
		if (cgn_str_is(name, dialects[i]->name))
			return dialects[i]->kind;
	return HANDOFF_NONE;
}

/* ---- the two ends ---- */

uint64_t handoff_fingerprint(enum handoff_kind kind, struct cgn_str terms)
{
	uint64_t h = MIX_FNV1A ^ kind;
	if (kind == HANDOFF_NONE)
		return 0;
	for (size_t i = 0; i < terms.n; i++)
		h = (h ^ (uint8_t)terms.p[i]) * UINT64_C(0x100000001b3);
	h = mix64(h);
	return h != 0 ? h : 1;
}

void handoff_term_add(struct cgn_buf *terms, const char *key, struct cgn_str value)
{
	if (terms->n > 0)
		cgn_buf_char(terms, ' ');
	cgn_buf_putz(terms, key);
	cgn_buf_char(terms, '=');
	for (size_t i = 0; i < value.n; i++)
		cgn_buf_char(terms, value.p[i] > ' ' && value.p[i] < 0x7f ? value.p[i] : '_');
	if (value.n == 0)
		cgn_buf_char(terms, '-');
}

void handoff_differ(const struct handoff_end *a, const struct handoff_end *b, char *text, size_t size)
{
	struct cgn_str x = a->terms, y = b->terms;
	CGN_MUST(size > 0);
	text[0] = '\0';
	if (a->fingerprint == b->fingerprint)
		return;
	if (a->kind != b->kind) {
		(void)snprintf(text, size, "handoff=%s and handoff=%s", dialects[a->kind]->name,
			dialects[b->kind]->name);
		return;
	}
	while (x.n > 0 || y.n > 0) {
		struct cgn_str own = cgn_str_split(&x, ' '), other = cgn_str_split(&y, ' ');
		if (cgn_str_eq(own, other))
			continue;
		(void)snprintf(text, size, "%.*s and %.*s", CGN_STR_ARG(own), CGN_STR_ARG(other));
		return;
	}
}

/* ---- the request ---- */

static bool key_is_among(struct cgn_str key, const char *const *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (json_key_is(key, keys[i]))
			return true;
	return false;
}

static bool route_hands_over(const struct handoff_ops *ops, struct cgn_str path)
{
	switch (prompt_api_of(path)) {
	case PROMPT_CHAT:
	case PROMPT_COMPLETIONS:
		return true;
	case PROMPT_RESPONSES:
	case PROMPT_MESSAGES:
		return ops->kind != HANDOFF_SGLANG && ops->kind != HANDOFF_TRTLLM;
	case PROMPT_NONE:
	case PROMPT_EMBEDDINGS:
		break;
	}
	return false;
}

/* Probabilities of the prompt's own tokens are there only where the prompt is computed. */
static bool asks_of_the_prompt(struct json_val body)
{
	enum { LOGPROBS, ECHO, KEYS };
	static const char *const keys[KEYS] = {"prompt_logprobs", "echo"};
	struct json_val v[KEYS];
	json_pick(body, keys, KEYS, v);
	return (v[LOGPROBS].raw.p != NULL && v[LOGPROBS].type != JSON_NULL) ||
		(v[ECHO].raw.p != NULL && json_bool(v[ECHO], false));
}

/* "n" answers to a prompt, or the best of some. */
static bool asks_for_answers(struct json_val body)
{
	enum { N, BEST_OF, KEYS };
	static const char *const keys[KEYS] = {"n", "best_of"};
	struct json_val v[KEYS];
	uint64_t most = 0, count = 0;
	json_pick(body, keys, KEYS, v);
	for (int i = 0; i < KEYS; i++)
		if (v[i].raw.p != NULL && v[i].type == JSON_NUMBER && json_u64(v[i], &count) && count > most)
			most = count;
	return most > 1;
}

const char *handoff_refusal(const struct handoff_ops *ops, struct cgn_str path, struct json_val body,
	bool several)
{
	if (!ops->edits)
		return NULL;
	if (!route_hands_over(ops, path))
		return "route";
	if (several && (!ops->several || (!ops->answers && asks_for_answers(body))))
		return "several";
	return asks_of_the_prompt(body) ? "prompt_logprobs" : NULL;
}

/* ---- the bodies ---- */

/* Members of a streamed answer. */
static const char *const streaming[] = {"stream", "stream_options"};
/* Members that ask for more than one token, or for what belongs to the answer's tokens. */
static const char *const of_the_answer[] = {"max_tokens", "max_completion_tokens", "max_output_tokens",
	"min_tokens", "n", "best_of", "ignore_eos", "logprobs", "top_logprobs"};

static bool is_left_out(const struct handoff_job *job, enum handoff_leg leg, struct cgn_str key)
{
	const struct handoff_ops *ops = dialects[job->prefill->kind];
	char room[JSON_KEY_MAX];
	if (body_key_is_reserved(json_key_plain(key, room)) ||
		(job->model.p != NULL && json_key_is(key, "model")))
		return true;
	return leg == HANDOFF_PREFILL &&
		(key_is_among(key, streaming, CGN_COUNT(streaming)) ||
			(ops->one_token && key_is_among(key, of_the_answer, CGN_COUNT(of_the_answer))));
}

/* Ask for one token by the name that the route has for it. */
static void one_token_put(struct cgn_str path, struct json_out *o)
{
	enum prompt_api api = prompt_api_of(path);
	if (api == PROMPT_RESPONSES) {
		json_key_u64(o, "max_output_tokens", 1);
		return;
	}
	json_key_u64(o, "max_tokens", 1);
	if (api == PROMPT_CHAT)
		json_key_u64(o, "max_completion_tokens", 1);
}

void handoff_body(const struct handoff_job *job, enum handoff_leg leg, struct cgn_buf *out)
{
	const struct handoff_ops *ops = dialects[job->prefill->kind];
	struct json_out o = json_out_to(out);
	struct json_val value;
	struct cgn_str key;
	json_open(&o, '{');
	if (job->model.p != NULL) {
		json_key(&o, "model");
		json_put_raw(&o, job->model);
	}
	ops->put(job, leg, &o);
	if (leg == HANDOFF_PREFILL) {
		json_key_bool(&o, "stream", false);
		if (ops->one_token)
			one_token_put(job->path, &o);
	}
	for (struct json_iter it = json_iter_of(job->body); json_next_member(&it, &key, &value);) {
		if (is_left_out(job, leg, key))
			continue;
		cgn_buf_putz(out, ",\"");
		cgn_buf_str(out, key);
		cgn_buf_putz(out, "\":");
		cgn_buf_str(out, value.raw);
	}
	json_close(&o, '}');
}

/* ---- the prefill leg's answer ---- */

/* Find the member of the answer's first choice, or of the answer. */
static bool member_find(const struct handoff_ops *ops, struct json_val answer, struct json_val *out)
{
	struct json_val choices, first;
	if (!ops->in_choice)
		return json_get(answer, ops->member, out);
	if (!json_get(answer, "choices", &choices) || choices.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(choices);
	return json_next_elem(&it, &first) && json_get(first, ops->member, out);
}

CGN_RC handoff_params_read(enum handoff_kind kind, struct cgn_str answer, struct cgn_buf *params,
	struct cgn_err *err)
{
	const struct handoff_ops *ops = dialects[kind];
	struct json_val doc, member;
	if (ops->member == NULL)
		return CGN_OK;
	if (!cgn_ok(json_parse(answer, &doc, NULL, NULL)) || doc.type != JSON_OBJECT)
		return CGN_FAIL(err, BAD_GATEWAY, "the prefill leg's answer is not a JSON object");
	if (!member_find(ops, doc, &member) || member.type != JSON_OBJECT)
		return CGN_FAIL(err, BAD_GATEWAY, "the prefill leg's answer has no %s", ops->member);
	cgn_buf_str(params, member.raw);
	return params->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for %s", ops->member) : CGN_OK;
}

/* ---- bootstrap servers ---- */

CGN_RC handoff_ranks_read(struct cgn_str answer, struct cgn_arena *a, const char **out, size_t *n,
	struct cgn_err *err)
{
	struct json_val doc, rank, id;
	char key[8];
	*n = 0;
	if (!cgn_ok(json_parse(answer, &doc, NULL, NULL)) || doc.type != JSON_OBJECT)
		return CGN_FAIL(err, BAD_GATEWAY,
			"the bootstrap server's answer to " HANDOFF_RANKS_PATH " is not a JSON object");
	for (; *n < HANDOFF_RANKS_MAX; ++*n) {
		(void)snprintf(key, sizeof key, "%zu", *n);
		if (!json_get(doc, key, &rank) || !json_get(rank, "engine_id", &id) || id.type != JSON_STRING)
			break;
		struct cgn_str text = json_str(id, a);
		out[*n] = text.p != NULL && text.n <= HANDOFF_ENGINE_MAX ? cgn_arena_strz(a, text) : NULL;
		if (out[*n] == NULL)
			return CGN_FAIL(err, NO_MEMORY,
				"no memory for the engine ids of the bootstrap server");
	}
	return *n > 0 ? CGN_OK
		      : CGN_FAIL(err, BAD_GATEWAY, "the bootstrap server knows no engine id of rank 0 yet");
}
