/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/slots/body.h"

#include <stdio.h>

#include "base/digest/digest.h"
#include "base/json/json.h"

static struct cgn_str bare_path(struct cgn_str path)
{
	return cgn_str_split(&path, '?');
}

static bool reads_slots(struct cgn_str path)
{
	static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
		"/completion", "/completions", "/infill"};
	struct cgn_str bare = bare_path(path);
	for (size_t i = 0; i < CGN_COUNT(paths); i++)
		if (cgn_str_is(bare, paths[i]))
			return true;
	return false;
}

/* Several prompts are several tasks; a list of token ids is one. */
static bool is_one_prompt(struct json_val prompt)
{
	struct json_val elem;
	size_t n = 0;
	if (prompt.raw.p == NULL || prompt.type != JSON_ARRAY)
		return true;
	for (struct json_iter it = json_iter_of(prompt); json_next_elem(&it, &elem); n++)
		if (n > 0 && (elem.type == JSON_ARRAY || elem.type == JSON_STRING))
			return false;
	return true;
}

static bool is_one(struct json_val n)
{
	uint64_t v = 0;
	return n.raw.p == NULL || n.type == JSON_NULL || (json_u64(n, &v) && v <= 1);
}

static uint64_t owner_of(struct json_val salt)
{
	if (salt.raw.p == NULL || salt.type == JSON_NULL)
		return 0;
	struct digest d = digest_of(salt.raw);
	return digest_short(&d) | 1;
}

struct slot_body slot_body_read(struct cgn_str path, struct cgn_str body)
{
	enum { ID_SLOT, N, N_CMPL, PROMPT, CACHE, LORA, SALT, KEYS };
	static const char *const keys[KEYS] = {"id_slot", "n", "n_cmpl", "prompt", "cache_prompt", "lora",
		"cache_salt"};
	struct slot_body b = {.placeable = false};
	struct json_val doc, v[KEYS], member;
	struct cgn_str key;
	if (!reads_slots(path) || !cgn_ok(json_parse(body, &doc, NULL, NULL)) || doc.type != JSON_OBJECT)
		return b;
	json_pick(doc, keys, KEYS, v);
	struct json_iter it = json_iter_of(doc);
	b.has_members = json_next_member(&it, &key, &member);
	b.at = (size_t)(doc.raw.p - body.p) + 1;
	b.end = (size_t)(doc.raw.p - body.p) + doc.raw.n - 1;
	b.owner = owner_of(v[SALT]);
	b.caches = v[CACHE].raw.p == NULL || json_bool(v[CACHE], true);
	b.adapts = v[LORA].raw.p != NULL;
	b.placeable =
		v[ID_SLOT].raw.p == NULL && is_one(v[N]) && is_one(v[N_CMPL]) && is_one_prompt(v[PROMPT]);
	return b;
}

size_t slot_body_insert(const struct slot_body *b, uint32_t slot, char out[SLOT_BODY_INSERT])
{
	return (size_t)snprintf(out, SLOT_BODY_INSERT, "\"id_slot\":%u%s", slot, b->has_members ? "," : "");
}

struct cgn_str slot_body_forbid_reuse(const struct slot_body *b)
{
	/* The last one of two such members counts. */
	return b->has_members ? CGN_STR(",\"cache_prompt\":false") : CGN_STR("\"cache_prompt\":false");
}

/* Members that would stream, repeat or lengthen the answer, or that need more tokens than a prefill
 * computes. */
static bool is_of_the_answer(struct cgn_str key)
{
	static const char *const keys[] = {"stream", "stream_options", "max_tokens", "max_completion_tokens",
		"max_output_tokens", "n_predict", "min_tokens", "n", "n_cmpl", "best_of", "ignore_eos",
		"id_slot"};
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (json_key_is(key, keys[i]))
			return true;
	return false;
}

void slot_body_prefill(struct cgn_str path, struct cgn_str body, uint32_t slot, bool reuses,
	struct cgn_buf *out)
{
	struct json_val doc, value;
	struct cgn_str key;
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)))
		return;
	cgn_buf_char(out, '{');
	for (struct json_iter it = json_iter_of(doc); json_next_member(&it, &key, &value);) {
		if (is_of_the_answer(key))
			continue;
		cgn_buf_char(out, '"');
		cgn_buf_str(out, key);
		cgn_buf_putz(out, "\":");
		cgn_buf_str(out, value.raw);
		cgn_buf_char(out, ',');
	}
	cgn_buf_fmt(out, "\"stream\":false,\"%s\":1,\"id_slot\":%u%s}",
		cgn_str_is(bare_path(path), "/v1/responses") ? "max_output_tokens" : "max_tokens", slot,
		reuses ? "" : ",\"cache_prompt\":false");
}
