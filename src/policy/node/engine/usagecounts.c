/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of counts, member by member: "usage" of each API, "meta_info" of SGLang's /generate, "timings" of llama-server. */
#include <string.h>

#include "base/json/json.h"
#include "policy/node/engine/usagescan_priv.h"

enum count_field {
	FIELD_NONE,
	FIELD_PROMPT,
	FIELD_INPUT,
	FIELD_COMPLETION,
	FIELD_OUTPUT,
	FIELD_PROMPT_DETAILS,
	FIELD_INPUT_DETAILS,
	FIELD_CACHE_READ,
	FIELD_CACHE_WRITE,
	FIELD_CACHED,
	FIELD_CACHE_N,
	FIELD_PROMPT_N,
	FIELD_PREDICTED_N,
	FIELD_PROMPT_MS,
	FIELDS
};
_Static_assert(FIELDS <= USAGESCAN_FIELDS, "usagescan.h has room for each field");
enum count_state { STATE_ABSENT, STATE_COUNT, STATE_ABSURD };

static const char *const usage_keys[FIELDS] = {
	[FIELD_PROMPT] = "prompt_tokens",
	[FIELD_INPUT] = "input_tokens",
	[FIELD_COMPLETION] = "completion_tokens",
	[FIELD_OUTPUT] = "output_tokens",
	[FIELD_PROMPT_DETAILS] = "prompt_tokens_details",
	[FIELD_INPUT_DETAILS] = "input_tokens_details",
	[FIELD_CACHE_READ] = "cache_read_input_tokens",
	[FIELD_CACHE_WRITE] = "cache_creation_input_tokens",
};
static const char *const detail_keys[FIELDS] = {[FIELD_CACHED] = "cached_tokens"};
static const char *const meta_keys[FIELDS] = {
	[FIELD_PROMPT] = "prompt_tokens",
	[FIELD_COMPLETION] = "completion_tokens",
	[FIELD_CACHED] = "cached_tokens",
};
static const char *const timings_keys[FIELDS] = {
	[FIELD_CACHE_N] = "cache_n",
	[FIELD_PROMPT_N] = "prompt_n",
	[FIELD_PREDICTED_N] = "predicted_n",
	[FIELD_PROMPT_MS] = "prompt_ms",
};

static const char *const *keys_of(const struct usagescan *s)
{
	static const char *const *const all[] =
		{[COUNTS_USAGE] = usage_keys, [COUNTS_META] = meta_keys, [COUNTS_TIMINGS] = timings_keys};
	return s->in_detail ? detail_keys : all[s->kind];
}

void usagescan_counts_begin(struct usagescan *s, enum usagescan_kind kind)
{
	s->kind = (uint8_t)kind;
	s->field = FIELD_NONE;
	s->in_detail = false;
	s->prompt_ms = 0;
	memset(s->states, STATE_ABSENT, sizeof s->states);
}

void usagescan_counts_key(struct usagescan *s, struct cgn_str key)
{
	const char *const *keys = keys_of(s);
	s->field = FIELD_NONE;
	for (uint8_t i = 0; i < FIELDS; i++)
		if (keys[i] != NULL && cgn_str_is(key, keys[i]))
			s->field = i;
	s->states[s->field] = STATE_ABSENT; /* The last one of two members with one name counts. */
}

bool usagescan_counts_nest(const struct usagescan *s)
{
	return !s->in_detail && (s->field == FIELD_PROMPT_DETAILS || s->field == FIELD_INPUT_DETAILS);
}

bool usagescan_counts_wanted(const struct usagescan *s)
{
	return s->field != FIELD_NONE && !usagescan_counts_nest(s);
}

void usagescan_counts_number(struct usagescan *s)
{
	struct json_val v = {0};
	uint64_t n = 0;
	bool is_number = s->number_n < USAGESCAN_NUMBER &&
		cgn_ok(json_parse((struct cgn_str){s->number, s->number_n}, &v, NULL, NULL));
	if (is_number && s->field == FIELD_PROMPT_MS) {
		(void)json_f64(v, &s->prompt_ms);
		return;
	}
	bool is_count = is_number && json_u64(v, &n) && n <= USAGE_MOST;
	s->states[s->field] = is_count ? STATE_COUNT : STATE_ABSURD;
	s->values[s->field] = is_count ? n : 0;
}

/* ---- the whole object ---- */

static bool count_take(const struct usagescan *s, enum count_field f, bool *has, uint64_t *to)
{
	if (s->states[f] != STATE_COUNT)
		return false;
	*has = true;
	*to = s->values[f];
	return true;
}

/* Anthropic's input_tokens are those that were neither read from the cache nor written to it. */
static void anthropic_take(const struct usagescan *s, struct usage *u)
{
	bool has = false;
	uint64_t written = 0;
	if (count_take(s, FIELD_CACHE_READ, &u->has_cached, &u->cached_tokens))
		u->prompt_tokens += u->cached_tokens;
	if (count_take(s, FIELD_CACHE_WRITE, &has, &written))
		u->prompt_tokens += written;
}

static struct usage usage_read(const struct usagescan *s)
{
	struct usage u = {0};
	for (int i = 0; i < FIELDS; i++)
		u.absurd = u.absurd || s->states[i] == STATE_ABSURD;
	if (!count_take(s, FIELD_PROMPT, &u.has_prompt, &u.prompt_tokens) &&
		count_take(s, FIELD_INPUT, &u.has_prompt, &u.prompt_tokens))
		anthropic_take(s, &u);
	if (!count_take(s, FIELD_COMPLETION, &u.has_completion, &u.completion_tokens))
		(void)count_take(s, FIELD_OUTPUT, &u.has_completion, &u.completion_tokens);
	(void)count_take(s, FIELD_CACHED, &u.has_cached, &u.cached_tokens);
	return u;
}

static void count_merge(bool has, uint64_t now, bool adds, bool *has_all, uint64_t *all)
{
	if (has)
		*all = adds && *has_all ? *all + now : now;
	*has_all = *has_all || has;
}

/* Return false if |u| has neither counts nor an absurd number. */
static bool usage_merge(const struct usage *u, bool adds, struct usage *io)
{
	count_merge(u->has_prompt, u->prompt_tokens, adds, &io->has_prompt, &io->prompt_tokens);
	count_merge(u->has_completion, u->completion_tokens, adds, &io->has_completion,
		&io->completion_tokens);
	count_merge(u->has_cached, u->cached_tokens, adds, &io->has_cached, &io->cached_tokens);
	io->absurd = io->absurd || u->absurd;
	return u->has_prompt || u->has_completion || u->absurd;
}

static void timings_take(struct usagescan *s)
{
	const struct usage_timings t = {s->values[FIELD_CACHE_N], s->values[FIELD_PROMPT_N],
		s->values[FIELD_PREDICTED_N], s->prompt_ms};
	if (s->states[FIELD_CACHE_N] != STATE_COUNT || s->states[FIELD_PROMPT_N] != STATE_COUNT ||
		s->states[FIELD_PREDICTED_N] != STATE_COUNT)
		return;
	s->timings = t;
	s->found_timings = s->found_own = true;
	s->own = (struct usage){.has_prompt = true,
		.has_completion = true,
		.has_cached = true,
		.prompt_tokens = t.cache_n + t.prompt_n,
		.completion_tokens = t.predicted_n,
		.cached_tokens = t.cache_n};
}

void usagescan_counts_end(struct usagescan *s)
{
	const struct usage u = usage_read(s);
	bool adds = s->base > 0;
	if (s->kind == COUNTS_TIMINGS)
		timings_take(s);
	else if (s->kind == COUNTS_META)
		s->found_own = usage_merge(&u, adds, &s->own) || s->found_own;
	else
		s->found = usage_merge(&u, adds, &s->usage) || s->found;
}
