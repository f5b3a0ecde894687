/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/cascade/compare.h"

#include "base/apierror/apierror.h"
#include "policy/answer/cascade/cascade.h"

#define TEXT_MOST ((size_t)1 << 20) /* Bytes of an answer's text that are compared. */
#define MEMBERS_MOST \
	256 /* Each member of an object is looked for in the other, so the time is their square. */

void cascade_double_body(enum prompt_api api, struct json_val body, struct cgn_str model, bool gated,
	struct cgn_buf *out)
{
	static const char *const ours[] = {"model", "stream", "stream_options", "temperature", "logprobs",
		"top_logprobs"};
	struct json_out j = json_out_to(out);
	struct cgn_str key;
	struct json_val v;
	json_open(&j, '{');
	json_key_str(&j, "model", model);
	json_key_bool(&j, "stream", false);
	json_key_u64(&j, "temperature", 0);
	if (gated && api == PROMPT_CHAT)
		json_key_bool(&j, "logprobs", true);
	if (gated)
		json_key_u64(&j, api == PROMPT_CHAT ? "top_logprobs" : "logprobs", CASCADE_TOP);
	for (struct json_iter it = json_iter_of(body); json_next_member(&it, &key, &v);) {
		bool left_out = false;
		for (size_t i = 0; i < CGN_COUNT(ours); i++)
			left_out |= json_key_is(key, ours[i]);
		if (left_out)
			continue;
		cgn_buf_fmt(out, ",\"%.*s\":", CGN_STR_ARG(key));
		cgn_buf_str(out, v.raw);
	}
	json_close(&j, '}');
}

/* ---- values ---- */

static size_t count_of(struct json_val v)
{
	struct cgn_str key;
	struct json_val one;
	struct json_iter it = json_iter_of(v);
	size_t n = 0;
	while (v.type == JSON_ARRAY ? json_next_elem(&it, &one) : json_next_member(&it, &key, &one))
		n++;
	return n;
}

static bool string_same(struct json_val a, struct json_val b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf x = {.limit = TEXT_MOST};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf y = {.limit = TEXT_MOST};
	if (cgn_str_eq(a.raw, b.raw))
		return true;
	json_str_to(a, &x);
	json_str_to(b, &y);
	return !x.bad && !y.bad && cgn_str_eq(cgn_buf_view(&x), cgn_buf_view(&y));
}

static bool json_same(struct json_val a, struct json_val b);

/* Compare two arrays, element by element. */
static bool array_same(struct json_val a, struct json_val b, bool (*same)(struct json_val, struct json_val))
{
	struct json_val x, y;
	struct json_iter at = json_iter_of(b);
	if (count_of(a) != count_of(b))
		return false;
	for (struct json_iter it = json_iter_of(a); json_next_elem(&it, &x);)
		if (!json_next_elem(&at, &y) || !same(x, y))
			return false;
	return true;
}

static bool object_same(struct json_val a, struct json_val b)
{
	struct cgn_str key;
	struct json_val x, y;
	size_t n = count_of(a);
	if (n != count_of(b) || n > MEMBERS_MOST)
		return false;
	for (struct json_iter it = json_iter_of(a); json_next_member(&it, &key, &x);) {
		char room[JSON_KEY_MAX + 1];
		if (!cgn_str_copyz(room, sizeof room, key) || !json_get(b, room, &y) || !json_same(x, y))
			return false;
	}
	return true;
}

/* json_parse bounds the depth. Keys with escapes, those longer than JSON_KEY_MAX, and objects with more than MEMBERS_MOST
 * count as different. */
static bool json_same(struct json_val a, struct json_val b)
{
	double x, y;
	if (a.type != b.type)
		return false;
	switch (a.type) {
	case JSON_NULL:
		return true;
	case JSON_BOOL:
		return json_bool(a, false) == json_bool(b, false);
	case JSON_NUMBER:
		return json_f64(a, &x) && json_f64(b, &y) && x >= y && x <= y;
	case JSON_STRING:
		return string_same(a, b);
	case JSON_ARRAY:
		return array_same(a, b, json_same);
	case JSON_OBJECT:
		return object_same(a, b);
	}
	return false;
}

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct cgn_str space_trim(struct cgn_str s)
{
	while (s.n > 0 && is_space(s.p[s.n - 1]))
		s.n--;
	while (s.n > 0 && is_space(s.p[0]))
		s = (struct cgn_str){s.p + 1, s.n - 1};
	return s;
}

static bool text_same(struct cgn_str a, struct cgn_str b)
{
	struct json_val x, y;
	a = space_trim(a);
	b = space_trim(b);
	if (cgn_str_eq(a, b))
		return true;
	return cgn_ok(json_parse(a, &x, NULL, NULL)) && cgn_ok(json_parse(b, &y, NULL, NULL)) &&
		json_same(x, y);
}

/* ---- answers ---- */

struct read {
	struct json_val text, calls; /* raw.p NULL: none */
	bool cut;
};

static bool is_given(struct json_val v, enum json_type type)
{
	return v.raw.p != NULL && v.type == type;
}

/* Read the first choice. False: the engine broke the answer off, or it has another shape. */
static bool answer_read(struct cgn_str answer, struct read *out)
{
	enum { MESSAGE, TEXT, FINISH, N };
	static const char *const keys[N] = {"message", "text", "finish_reason"},
				 *const parts[] = {"content", "tool_calls"};
	struct json_val root, choices, choice, v[N], m[2];
	*out = (struct read){0};
	if (!cgn_ok(json_parse(answer, &root, NULL, NULL)) || !json_get(root, "choices", &choices) ||
		choices.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(choices);
	if (!json_next_elem(&it, &choice))
		return false;
	json_pick(choice, keys, N, v);
	if (!is_given(v[FINISH], JSON_STRING) ||
		apierror_reason((struct cgn_str){v[FINISH].raw.p + 1, v[FINISH].raw.n - 2}))
		return false;
	json_pick(v[MESSAGE], parts, CGN_COUNT(parts), m);
	if (is_given(v[MESSAGE], JSON_OBJECT))
		*out = (struct read){.text = m[0], .calls = m[1]};
	else
		out->text = v[TEXT];
	out->cut = cgn_str_is(v[FINISH].raw, "\"length\"");
	if (!is_given(out->text, JSON_STRING))
		out->text.raw.p = NULL;
	if (!is_given(out->calls, JSON_ARRAY) || count_of(out->calls) == 0)
		out->calls.raw.p = NULL;
	return out->text.raw.p != NULL || out->calls.raw.p != NULL;
}

static bool text_take(struct json_val text, struct cgn_buf *out)
{
	out->limit = TEXT_MOST;
	if (text.raw.p != NULL)
		json_str_to(text, out);
	return text.raw.p != NULL && !out->bad;
}

void cascade_judge_body(struct cgn_str a, struct cgn_str b, struct cgn_str model, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	const struct cgn_str answers[] = {a, b};
	json_open(&j, '{');
	json_key_str(&j, "model", model);
	json_key_open(&j, "input", '[');
	for (size_t i = 0; i < CGN_COUNT(answers); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
		struct read r;
		if (answer_read(answers[i], &r) && text_take(r.text, &text))
			json_put_str(&j, cgn_buf_view(&text));
	}
	json_close(&j, ']');
	json_close(&j, '}');
}

static bool values_same(struct json_val a, struct json_val b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf x = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf y = {0};
	return text_take(a, &x) && text_take(b, &y) && text_same(cgn_buf_view(&x), cgn_buf_view(&y));
}

static bool text_begins(struct cgn_str text, struct cgn_str with)
{
	return text.n >= with.n && cgn_str_eq((struct cgn_str){text.p, with.n}, with);
}

/* Compare texts of which one at least is cut. */
static enum cascade_likeness cut_likeness(const struct read *x, const struct read *y)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf p = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf q = {0};
	if (x->calls.raw.p != NULL || y->calls.raw.p != NULL || !text_take(x->text, &p) ||
		!text_take(y->text, &q))
		return CASCADE_UNKNOWN;
	struct cgn_str a = space_trim(cgn_buf_view(&p)), b = space_trim(cgn_buf_view(&q));
	if (a.n == 0 || b.n == 0)
		return CASCADE_UNKNOWN;
	bool same = (x->cut && text_begins(b, a)) || (y->cut && text_begins(a, b));
	return same ? CASCADE_SAME : CASCADE_DIFFERENT;
}

static bool call_same(struct json_val a, struct json_val b)
{
	static const char *const keys[] = {"name", "arguments"};
	struct json_val f = {0}, g = {0}, x[2], y[2];
	(void)json_get(a, "function", &f);
	(void)json_get(b, "function", &g);
	if (!is_given(f, JSON_OBJECT) || !is_given(g, JSON_OBJECT))
		return false;
	json_pick(f, keys, CGN_COUNT(keys), x);
	json_pick(g, keys, CGN_COUNT(keys), y);
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (!is_given(x[i], JSON_STRING) || !is_given(y[i], JSON_STRING) || !values_same(x[i], y[i]))
			return false;
	return true;
}

enum cascade_likeness cascade_compare(struct cgn_str a, struct cgn_str b)
{
	struct read x, y;
	if (!answer_read(a, &x) || !answer_read(b, &y))
		return CASCADE_UNKNOWN;
	if (x.cut || y.cut)
		return cut_likeness(&x, &y);
	if (x.calls.raw.p != NULL && y.calls.raw.p != NULL)
		return array_same(x.calls, y.calls, call_same) ? CASCADE_SAME : CASCADE_OTHER;
	if (x.calls.raw.p != NULL || y.calls.raw.p != NULL)
		return CASCADE_OTHER;
	return values_same(x.text, y.text) ? CASCADE_SAME : CASCADE_DIFFERENT;
}
