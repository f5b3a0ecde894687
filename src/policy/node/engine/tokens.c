/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/tokens.h"

#include "base/json/json.h"
#include "policy/node/engine/engine_priv.h"

const struct engine_tokens_ops *engine_tokens_of(struct cgn_str kind)
{
	const struct engine_ops *ops = engine_ops_named(kind);
	return ops != NULL ? ops->tokens : NULL;
}

static CGN_RC tokens_bad_answer(const char *why, struct cgn_err *err)
{
	return CGN_FAIL(err, BAD_GATEWAY, "the engine's answer to a tokenize request %s", why);
}

CGN_RC engine_read_tokens(struct cgn_str answer, size_t max_ids, struct cgn_buf *out, struct cgn_err *err)
{
	struct json_val doc, tokens, elem;
	size_t n = 0;
	if (!cgn_ok(json_parse(answer, &doc, NULL, NULL)))
		return tokens_bad_answer("is not JSON", err);
	if (!json_get(doc, "tokens", &tokens) || tokens.type != JSON_ARRAY)
		return tokens_bad_answer("has no list of tokens", err);
	for (struct json_iter it = json_iter_of(tokens); n < max_ids && json_next_elem(&it, &elem); n++) {
		uint64_t id = 0;
		if (!json_u64(elem, &id) || id > UINT32_MAX)
			return tokens_bad_answer("has a token that is not an id", err);
		const uint32_t small = (uint32_t)id;
		cgn_buf_add(out, &small, sizeof small);
	}
	if (n < max_ids && json_get_u64(doc, "count", n) != n)
		return tokens_bad_answer("has a count that differs from its list", err);
	return out->bad ? CGN_FAIL(err, NO_MEMORY, "no room for %zu token ids", n) : CGN_OK;
}

void engine_put_member(struct json_out *j, const char *key, struct json_val v)
{
	if (v.raw.p == NULL || v.type == JSON_NULL)
		return;
	json_key(j, key);
	json_put_raw(j, v.raw);
}
