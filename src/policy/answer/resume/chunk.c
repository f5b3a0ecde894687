/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a chunk of a streamed answer, and rewrites chunks of engines after the first. */
#include "base/core/err.h"
#include "policy/answer/resume/chunk_priv.h"

static const char *const names[RESUME_NAMES] = {"id", "created", "model", "system_fingerprint"};
#define NAME_MAX 1024 /* Bytes of a raw name. */

/* null, "", [] and {} count as absent. */
static bool is_blank(struct json_val v)
{
	return v.type == JSON_NULL || (v.type != JSON_NUMBER && v.type != JSON_BOOL && v.raw.n == 2);
}

static void read_delta(struct json_val delta, struct chunk *c)
{
	struct cgn_str key;
	struct json_val v;
	for (struct json_iter it = json_iter_of(delta); json_next_member(&it, &key, &v);) {
		if (cgn_str_is(key, "content"))
			c->text = v;
		else if (cgn_str_is(key, "role"))
			c->has_role = true;
		else if (!is_blank(v))
			c->strange = true;
	}
}

static void read_choice(enum prompt_api api, struct json_val choice, struct chunk *c)
{
	enum { INDEX, DELTA, TEXT, FINISH, LOGPROBS, N };
	static const char *const keys[N] = {"index", "delta", "text", "finish_reason", "logprobs"};
	struct json_val v[N];
	uint64_t index = 0;
	json_pick(choice, keys, N, v);
	c->finish = v[FINISH];
	c->finishes = v[FINISH].type == JSON_STRING && v[FINISH].raw.p != NULL;
	c->strange = v[INDEX].raw.p != NULL && !(json_u64(v[INDEX], &index) && index == 0);
	c->has_probs = v[LOGPROBS].raw.p != NULL && !is_blank(v[LOGPROBS]);
	if (api == PROMPT_COMPLETIONS) {
		c->text = v[TEXT];
	} else if (v[DELTA].raw.p != NULL && v[DELTA].type == JSON_OBJECT) {
		c->delta = v[DELTA];
		read_delta(v[DELTA], c);
	}
}

bool resume_chunk_read(enum prompt_api api, struct cgn_str data, struct chunk *c)
{
	enum { CHOICES, USAGE, ERROR, TIMINGS, N };
	static const char *const keys[N] = {"choices", "usage", "error", "timings"};
	struct json_val v[N], more;
	*c = (struct chunk){0};
	if (!cgn_ok(json_parse(data, &c->root, NULL, NULL)) || c->root.type != JSON_OBJECT)
		return false;
	json_pick(c->root, keys, N, v);
	json_pick(c->root, names, RESUME_NAMES, c->names);
	if (v[ERROR].raw.p != NULL && !is_blank(v[ERROR]))
		return false;
	c->has_timings = v[TIMINGS].raw.p != NULL;
	c->choices = v[CHOICES];
	if (v[USAGE].raw.p != NULL && v[USAGE].type == JSON_OBJECT)
		c->usage = v[USAGE];
	if (v[CHOICES].raw.p == NULL || v[CHOICES].type != JSON_ARRAY)
		return c->usage.raw.p != NULL;
	struct json_iter it = json_iter_of(v[CHOICES]);
	if (!json_next_elem(&it, &c->choice))
		return true;
	if (c->choice.type != JSON_OBJECT)
		return false;
	read_choice(api, c->choice, c);
	c->strange = c->strange || json_next_elem(&it, &more);
	if (c->text.raw.p != NULL && c->text.type != JSON_STRING) {
		c->strange = c->strange || c->text.type != JSON_NULL;
		c->text.raw.p = NULL;
	}
	return true;
}

/* ---- shown to the client ---- */

static void keep_names(struct resume *s, const struct chunk *c)
{
	s->opened = true;
	for (size_t i = 0; i < RESUME_NAMES; i++) {
		if (c->names[i].raw.p == NULL)
			continue;
		if (c->names[i].raw.n > NAME_MAX)
			s->lost = RESUME_LACKS_SHAPE;
		else
			cgn_buf_str(&s->names[i], c->names[i].raw);
		if (s->names[i].bad)
			s->lost = RESUME_LACKS_MEMORY;
	}
}

/* Count |bytes| of text from one event; part of it may have been shown before. */
static void count_text(struct resume *s, size_t bytes)
{
	s->events++;
	s->bytes += bytes;
	uint64_t n = s->events, guess = s->bytes / ENGINE_TOKEN_BYTES;
	enum engine_resume_events how = s->how != NULL ? s->how->events : ENGINE_EVENTS_UNKNOWN;
	if (how == ENGINE_EVENTS_UNKNOWN && guess > n)
		n = guess;
	s->inexact = s->inexact || how != ENGINE_EVENTS_ARE_TOKENS;
	s->tokens = s->base + n;
}

static void take_text(struct resume *s, struct cgn_str text)
{
	static const char replacement[] = "\xef\xbf\xbd";
	if (text.n == 0)
		return;
	bool unknown = memmem(text.p, text.n, replacement, sizeof replacement - 1) != NULL;
	s->repeats = s->repeats || (unknown && s->greedy);
	if (unknown && !s->greedy)
		s->lost = RESUME_LACKS_BYTES;
	cgn_buf_str(&s->text, text);
	if (s->text.bad)
		s->lost = RESUME_LACKS_MEMORY;
	for (size_t i = s->text.n; i > s->text.n - text.n && !s->text.bad; i--) {
		char c = s->text.p[i - 1];
		if (c == ' ' || (c >= '\t' && c <= '\r'))
			continue;
		s->kept = i;
		s->kept_tokens = s->tokens;
		break;
	}
}

static bool take_number(struct json_val object, const char *key, uint64_t *out)
{
	struct json_val v;
	uint64_t n = 0;
	if (!json_get(object, key, &v) || !json_u64(v, &n) || n > (uint64_t)1 << 40)
		return false;
	*out = n;
	return true;
}

/* Take the first stream's usage from chunks with text: it counts the tokens shown so far. */
static void count_usage(struct resume *s, const struct chunk *c)
{
	uint64_t n = 0;
	if (c->usage.raw.p == NULL)
		return;
	/* llama.cpp sends usage with the finish_reason. */
	bool last = c->choice.raw.p == NULL || (c->finishes && !s->every_usage);
	s->usage_out = s->usage_out || last;
	s->every_usage = s->every_usage || !last;
	if (!s->again)
		s->has_prompt = take_number(c->usage, "prompt_tokens", &s->prompt_tokens) || s->has_prompt;
	if (s->swallow || !take_number(c->usage, "completion_tokens", &n))
		return;
	s->tokens = s->base + n;
	s->inexact = false;
	s->events = n; /* Events without usage count on from there. */
}

void resume_chunk_learn(struct resume *s, const struct chunk *c, struct cgn_str text, size_t came)
{
	if (!s->opened)
		keep_names(s, c);
	s->probs += c->has_probs;
	s->shown_probs = s->probs > s->shown_probs ? s->probs : s->shown_probs;
	if (came > 0 && !s->swallow)
		count_text(s, came);
	count_usage(s, c);
	take_text(s, text);
	s->role = s->role || c->has_role || text.n > 0;
	s->finished = s->finished || c->finishes;
	if (c->strange || (c->has_probs && !s->repeats))
		s->lost = RESUME_LACKS_CONTENT;
	bool thinks = s->kept >= 7 && memcmp(s->text.p, "<think>", 7) == 0;
	s->repeats = s->repeats || (thinks && s->greedy);
	if (thinks && !s->greedy)
		s->lost = RESUME_LACKS_CONTENT; /* Templates leave such content out of a message. */
}

/* ---- chunks of later engines ---- */

static void edit_names(struct resume *s, const struct chunk *c, struct edits *e)
{
	for (size_t i = 0; i < RESUME_NAMES; i++)
		if (c->names[i].raw.p != NULL && s->names[i].n > 0)
			resume_edit_put(e, c->names[i].raw, cgn_buf_view(&s->names[i]));
}

static void edit_number(struct edits *e, struct json_val object, const char *key, uint64_t value)
{
	struct json_val v;
	uint64_t n = 0;
	if (json_get(object, key, &v) && json_u64(v, &n) && n != value)
		resume_edit_u64(e, v.raw, value);
}

/* Move the continued text's tokens from the prompt to the answer. */
static void edit_usage(const struct resume *s, const struct chunk *c, struct edits *e)
{
	uint64_t prompt = 0, completion = 0, cached = 0;
	struct json_val details;
	if (c->usage.raw.p == NULL)
		return;
	if (take_number(c->usage, "completion_tokens", &completion))
		completion += s->base;
	if (s->swallow)
		completion = s->tokens;
	if (take_number(c->usage, "prompt_tokens", &prompt))
		prompt -= prompt < s->base ? prompt : s->base;
	if (s->has_prompt)
		prompt = s->prompt_tokens;
	edit_number(e, c->usage, "prompt_tokens", prompt);
	edit_number(e, c->usage, "completion_tokens", completion);
	edit_number(e, c->usage, "total_tokens", prompt + completion);
	if (json_get(c->usage, "prompt_tokens_details", &details) &&
		take_number(details, "cached_tokens", &cached) && cached > prompt)
		edit_number(e, details, "cached_tokens", prompt);
}

/* Return the part of |text| that was not shown yet. */
static struct cgn_str drop_overlap(struct resume *s, struct cgn_str text)
{
	while (text.n > 0 && s->overlap < s->overlap_end && text.p[0] == s->text.p[s->overlap]) {
		s->overlap++;
		text.p++;
		text.n--;
	}
	if (text.n > 0 && !s->repeating)
		s->overlap = s->overlap_end; /* The text differs from the overlap or has passed it. */
	return text;
}

/* Return true if the chunk is none of the answer that the engine is to repeat. The client has all of the text |all| but
 * |text|. Log-probabilities can't be taken apart: the client has all of a chunk with them, or nothing. */
static bool is_other(const struct resume *s, const struct chunk *c, struct cgn_str text, struct cgn_str all)
{
	if (!s->repeating)
		return false;
	if (s->overlap < s->overlap_end && (text.n > 0 || c->finishes))
		return true;
	return c->has_probs && (s->probs < s->had_probs ? text.n > 0 : text.n < all.n);
}

void resume_chunk_name(struct cgn_str name, struct cgn_buf *out)
{
	if (name.n == 0)
		return;
	cgn_buf_putz(out, "event: ");
	cgn_buf_str(out, name);
	cgn_buf_char(out, '\n');
}

void resume_chunk_rewrite(struct resume *s, struct cgn_str name, const struct chunk *c, struct cgn_buf *out)
{
	struct edits e = {.doc = c->root.raw};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf quoted = {0};
	s->piece.n = 0;
	if (c->text.raw.p != NULL)
		json_str_to(c->text, &s->piece);
	struct cgn_str all = cgn_buf_view(&s->piece),
		       text = s->swallow ? (struct cgn_str){all.p, 0} : drop_overlap(s, all);
	if (is_other(s, c, text, all)) {
		s->lost = RESUME_LACKS_SAME;
		s->differs = true;
		return;
	}
	bool role = s->role, finishes = c->finishes && !s->finished;
	bool probs = c->has_probs && s->probs >= s->had_probs;
	bool says = text.n > 0 || probs || finishes || c->strange || (c->has_role && !role) ||
		c->choice.raw.p == NULL || (c->finishes && c->usage.raw.p != NULL && !s->every_usage);
	resume_chunk_learn(s, c, text, all.n);
	if (!says)
		return;
	edit_names(s, c, &e);
	edit_usage(s, c, &e);
	if (c->has_timings)
		resume_edit_drop(&e, c->root, "timings");
	if (c->choice.raw.p != NULL && c->finishes && !finishes) {
		/* The choice has ended; the usage of the chunk is still needed. */
		resume_edit_put(&e, c->choices.raw, CGN_STR("[]"));
	} else {
		struct json_out j = json_out_to(&quoted);
		if (text.n != all.n) {
			json_put_str(&j, text);
			resume_edit_put(&e, c->text.raw, cgn_buf_view(&quoted));
		}
		if (finishes && s->swallow)
			resume_edit_put(&e, c->finish.raw, CGN_STR("\"length\""));
		if (c->has_role && role)
			resume_edit_drop(&e, c->delta, "role");
	}
	resume_chunk_name(name, out);
	cgn_buf_putz(out, "data: ");
	resume_edit_apply(&e, out);
	cgn_buf_putz(out, "\n\n");
	out->bad = out->bad || quoted.bad;
}
