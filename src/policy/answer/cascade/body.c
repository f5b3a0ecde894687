/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "policy/answer/cascade/cascade.h"
#include "policy/text/body/body.h"

static bool is_asked(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL && (v.type != JSON_BOOL || json_bool(v, false));
}

/* Return the alternatives for each token that the client asks for; -1: no log-probabilities. */
static int64_t client_top(enum prompt_api api, struct json_val body)
{
	struct json_val logprobs = {0}, top = {0};
	uint64_t n = 0;
	(void)json_get(body, "logprobs", &logprobs);
	if (api == PROMPT_CHAT && is_asked(logprobs))
		return json_get(body, "top_logprobs", &top) && json_u64(top, &n) && n < 1000 ? (int64_t)n : 0;
	if (api == PROMPT_CHAT)
		return json_get(body, "top_logprobs", &top) && is_asked(top) && json_u64(top, &n) && n > 0
			? 0
			: -1;
	if (!is_asked(logprobs))
		return -1;
	return json_u64(logprobs, &n) && n < 1000 ? (int64_t)n : 0;
}

const char *cascade_passes(enum prompt_api api, struct json_val body, bool several, bool *own)
{
	static const char *const keys[] = {"echo", "prompt_logprobs", "return_token_ids",
		"return_tokens_as_token_ids"};
	struct json_val v[CGN_COUNT(keys)];
	*own = false;
	if (api != PROMPT_CHAT && api != PROMPT_COMPLETIONS)
		return CASCADE_PASSES_ROUTE;
	if (several)
		return CASCADE_PASSES_SEVERAL;
	if (body_is_constrained(body))
		return CASCADE_PASSES_STRUCTURED;
	json_pick(body, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (is_asked(v[i]))
			return CASCADE_PASSES_LOGPROBS;
	int64_t top = client_top(api, body);
	*own = top >= 2;
	return top >= 0 && top < 2 ? CASCADE_PASSES_LOGPROBS : NULL;
}

/* Overwrite the value of |key|, which asks for nothing (null, false or 0), or append the member to |more|. */
static void member_put(char *copy, struct cgn_str text, struct json_val body, const char *key,
	const char *value, struct cgn_buf *more)
{
	struct json_val was;
	size_t n = strlen(value);
	if (!json_get(body, key, &was) || was.raw.n < n) {
		cgn_buf_fmt(more, ",\"%s\":%s", key, value);
		return;
	}
	char *at = copy + (was.raw.p - text.p);
	memset(at, ' ', was.raw.n);
	memcpy(at, value, n);
}

void cascade_body(enum prompt_api api, struct cgn_str text, struct json_val body, struct cgn_buf *out)
{
	char room[64], number[12];
	struct cgn_buf more = cgn_buf_over(room, sizeof room);
	size_t from = out->n, end = (size_t)(body.raw.p - text.p) + body.raw.n - 1; /* the closing brace */
	cgn_buf_str(out, text);
	if (out->bad)
		return;
	(void)snprintf(number, sizeof number, "%d", CASCADE_TOP);
	char *copy = out->p + from;
	member_put(copy, text, body, "logprobs", api == PROMPT_CHAT ? "true" : number, &more);
	if (api == PROMPT_CHAT)
		member_put(copy, text, body, "top_logprobs", number, &more);
	out->n = from + end;
	cgn_buf_str(out, cgn_buf_view(&more));
	cgn_buf_add(out, text.p + end, text.n - end);
}
