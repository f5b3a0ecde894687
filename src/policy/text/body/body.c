/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/text/body/body_priv.h"

#include <stdio.h>
#include <string.h>

enum {
	BODY_KEYS = 0
#define KEY(name) +1
#include "policy/text/body/keys.def"
#undef KEY
};

static const struct cgn_str known[BODY_KEYS] = {
#define KEY(name) {name, sizeof name - 1},
#include "policy/text/body/keys.def"
#undef KEY
};

static CGN_RC body_refuse(struct body_fault *fault, const char *code, const char *param)
{
	fault->code = code;
	fault->param = param;
	return CGN_RC_OF(CGN_INVALID);
}

/* ---- keys ---- */

/* Fold |s| as a Go program compares keys: ASCII letters, the long s and the Kelvin sign. Return the number of bytes
 * in |out|, at most as many as in |s|. */
static size_t key_fold(struct cgn_str s, char *out)
{
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		if (s.n - i >= 2 && memcmp(s.p + i, "\xc5\xbf", 2) == 0) {
			c = 's';
			i += 1;
		} else if (s.n - i >= 3 && memcmp(s.p + i, "\xe2\x84\xaa", 3) == 0) {
			c = 'k';
			i += 2;
		} else if (c >= 'A' && c <= 'Z') {
			c = (char)(c | 0x20);
		}
		out[n++] = c;
	}
	return n;
}

/* Return the index of the key that |plain| is in any case; BODY_KEYS: it is none of them. */
static size_t key_find(struct cgn_str plain)
{
	char folded[JSON_KEY_MAX];
	if (plain.p == NULL || plain.n > sizeof folded)
		return BODY_KEYS;
	size_t n = key_fold(plain, folded);
	for (size_t i = 0; i < BODY_KEYS && known[i].n <= n; i++)
		if (known[i].n == n && memcmp(known[i].p, folded, n) == 0)
			return i;
	return BODY_KEYS;
}

bool body_key_is_reserved(struct cgn_str plain)
{
	static const char *const keys[] = {"kv_transfer_params", "disaggregated_params", "bootstrap_host",
		"bootstrap_port", "bootstrap_room"};
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (cgn_str_is(plain, keys[i]))
			return true;
	return false;
}

/* Take a member whose key is |known[i]| in some case. */
static CGN_RC member_take(struct json_val v[BODY_KEYS], size_t i, struct cgn_str plain, struct json_val value,
	struct body_fault *fault)
{
	const char *name = known[i].p;
	if (!cgn_str_eq(plain, known[i])) {
		(void)snprintf(fault->text, sizeof fault->text,
			"the body has the key \"%.*s\": write \"%s\", because engines differ in whether they take the one "
			"for the other",
			CGN_STR_ARG(plain), name);
		return body_refuse(fault, "ambiguous_key", name);
	}
	if (v[i].raw.p != NULL) {
		(void)snprintf(fault->text, sizeof fault->text,
			"the body has the key \"%s\" more than once: engines differ in which one counts",
			name);
		return body_refuse(fault, "duplicate_key", name);
	}
	if (value.type != JSON_NULL && body_key_is_reserved(plain)) {
		(void)snprintf(fault->text, sizeof fault->text,
			"the body has the key \"%s\": only the router tells engines where to fetch KV cache from",
			name);
		return body_refuse(fault, "reserved_key", name);
	}
	v[i] = value;
	return CGN_OK;
}

/* To one reader 1e400 is infinity, to another one an error: a limit that is one would hold in one place only. */
static CGN_RC number_check(struct cgn_str key, struct json_val value, struct body_fault *fault)
{
	double f;
	if (value.type != JSON_NUMBER || json_f64(value, &f))
		return CGN_OK;
	(void)snprintf(fault->text, sizeof fault->text, "\"%.*s\" is a number without end: %.*s",
		(int)(key.n < 60 ? key.n : 60), key.p, (int)(value.raw.n < 40 ? value.raw.n : 40),
		value.raw.p);
	return body_refuse(fault, "invalid_number", NULL);
}

static CGN_RC members_read(struct json_val body, struct json_val v[BODY_KEYS], struct body_facts *out,
	struct body_fault *fault)
{
	struct json_iter it = json_iter_of(body);
	struct json_val value;
	struct cgn_str raw;
	char room[JSON_KEY_MAX];
	for (size_t n = 0; json_next_member(&it, &raw, &value); n++) {
		struct cgn_str plain = json_key_plain(raw, room);
		size_t i = key_find(plain);
		if (n == BODY_MEMBERS_MAX) {
			(void)snprintf(fault->text, sizeof fault->text, "the body has more than %d members",
				BODY_MEMBERS_MAX);
			return body_refuse(fault, "too_many_members", NULL);
		}
		if (i < BODY_KEYS)
			CGN_TRY(member_take(v, i, plain, value, fault));
		CGN_TRY(number_check(plain, value, fault));
		if (cgn_str_is(plain, "cache_salt"))
			out->salt_key = raw;
		if (cgn_str_is(plain, "stream_options"))
			out->options_key = raw;
		if (cgn_str_is(plain, "request_id") || cgn_str_is(plain, "rid"))
			out->names[cgn_str_is(plain, "rid")] = (struct body_member){raw, value};
	}
	return CGN_OK;
}

/* ---- facts ---- */

static struct json_val value_of(const struct json_val v[BODY_KEYS], const char *key)
{
	for (size_t i = 0; i < BODY_KEYS; i++)
		if (cgn_str_is(known[i], key))
			return v[i];
	CGN_MUST(key == NULL); /* |key| is in the table */
	return (struct json_val){0};
}

static bool is_above_one(struct json_val v)
{
	uint64_t n = 0;
	return v.raw.p != NULL && json_u64(v, &n) && n > 1;
}

static bool has_several_prompts(struct json_val v)
{
	struct json_val elem;
	if (v.raw.p == NULL || v.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(v);
	return json_next_elem(&it, &elem) && (elem.type == JSON_STRING || elem.type == JSON_ARRAY) &&
		json_next_elem(&it, &elem);
}

/* Below zero means none to some engines. A limit that is not whole, or beyond 64 bits, means what each reader likes. */
static CGN_RC limit_read(struct json_val limit, const char *key, uint64_t *n, struct body_fault *fault)
{
	*n = 0;
	if (limit.raw.p == NULL || limit.type != JSON_NUMBER || limit.raw.p[0] == '-' || json_u64(limit, n))
		return CGN_OK;
	(void)snprintf(fault->text, sizeof fault->text, "\"%s\" must be a whole number of tokens, not %.*s",
		key, (int)(limit.raw.n < 40 ? limit.raw.n : 40), limit.raw.p);
	return body_refuse(fault, "invalid_number", key);
}

static CGN_RC limits_read(const struct json_val v[BODY_KEYS], uint32_t *out, struct body_fault *fault)
{
	static const char *const keys[] = {"max_completion_tokens", "max_tokens", "max_output_tokens",
		"n_predict"};
	uint64_t n = 0;
	for (size_t i = 0; i < CGN_COUNT(keys); i++) {
		CGN_TRY(limit_read(value_of(v, keys[i]), keys[i], &n, fault));
		if (*out == 0 && n > 0)
			*out = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
	}
	return CGN_OK;
}

static bool is_given(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL;
}

/* Does a part of a message have a uuid, by which vLLM finds a picture that it was sent before? */
static bool parts_are_named(struct json_val messages)
{
	struct json_val message, content, part, name;
	if (messages.raw.p == NULL || messages.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(messages); json_next_elem(&it, &message);) {
		if (!json_get(message, "content", &content) || content.type != JSON_ARRAY)
			continue;
		for (struct json_iter at = json_iter_of(content); json_next_elem(&at, &part);)
			if (json_get(part, "uuid", &name) && is_given(name))
				return true;
	}
	return false;
}

static const char *shared_name(struct cgn_str text, const struct json_val v[BODY_KEYS])
{
	if (is_given(value_of(v, "session_params")))
		return "session_params";
	/* Without the word or an escape of ASCII there is no such key, and no need for another walk. */
	bool may = memmem(text.p, text.n, "uuid", 4) != NULL || memmem(text.p, text.n, "\\u00", 4) != NULL;
	return may && (parts_are_named(value_of(v, "messages")) || parts_are_named(value_of(v, "input")))
		? "uuid"
		: NULL;
}

CGN_RC body_read(struct cgn_str text, struct body_facts *out, struct body_fault *fault)
{
	struct json_val v[BODY_KEYS] = {0};
	struct cgn_err err;
	*out = (struct body_facts){.stream = false};
	*fault = (struct body_fault){.code = NULL};
	if (!cgn_ok(json_parse(text, &out->json, NULL, &err))) {
		(void)snprintf(fault->text, sizeof fault->text, "the body is not valid JSON: %.200s",
			err.msg);
		return body_refuse(fault, "invalid_json", NULL);
	}
	if (out->json.type != JSON_OBJECT) {
		(void)snprintf(fault->text, sizeof fault->text, "the body is not a JSON object");
		return body_refuse(fault, "invalid_json", NULL);
	}
	CGN_TRY(members_read(out->json, v, out, fault));
	struct json_val stream = value_of(v, "stream");
	out->model = value_of(v, "model");
	out->salt = value_of(v, "cache_salt");
	out->options = value_of(v, "stream_options");
	out->asks_usage = out->options.raw.p != NULL && out->options.type == JSON_OBJECT &&
		json_get_bool(out->options, "include_usage", false);
	out->previous = value_of(v, "previous_response_id");
	(void)json_get(value_of(v, "metadata"), "user_id", &out->user);
	out->tools = value_of(v, "tools").raw.p != NULL;
	out->stream = stream.raw.p != NULL && json_bool(stream, false);
	out->stream_odd = stream.raw.p != NULL && stream.type != JSON_BOOL && stream.type != JSON_NULL;
	out->unstored = value_of(v, "store").raw.p != NULL && !json_bool(value_of(v, "store"), true);
	out->several = is_above_one(value_of(v, "n")) || is_above_one(value_of(v, "best_of")) ||
		has_several_prompts(value_of(v, "prompt")) || has_several_prompts(value_of(v, "input"));
	CGN_TRY(limits_read(v, &out->answer_limit, fault));
	out->shared = shared_name(text, v);
	return body_hints_read(value_of(v, "nvext"), &out->hints, fault);
}

/* ---- options of a stream ---- */

static CGN_RC type_refuse(const char *param, const char *wanted, struct body_fault *fault)
{
	(void)snprintf(fault->text, sizeof fault->text, "\"%s\" must be %s", param, wanted);
	return body_refuse(fault, "invalid_type", param);
}

/* Check the members of |options| that are named |key|; |param| is the key's whole name. */
static CGN_RC option_check(struct json_val options, const char *key, const char *param,
	struct body_fault *fault)
{
	struct cgn_str raw;
	struct json_val v;
	size_t n = 0;
	for (struct json_iter it = json_iter_of(options); json_next_member(&it, &raw, &v);) {
		if (!json_key_is(raw, key))
			continue;
		if (v.type != JSON_BOOL && v.type != JSON_NULL)
			return type_refuse(param, "true or false", fault);
		if (n++ == 0)
			continue;
		(void)snprintf(fault->text, sizeof fault->text,
			"the body has \"%s\" more than once: engines differ in which one counts", param);
		return body_refuse(fault, "duplicate_key", param);
	}
	return CGN_OK;
}

CGN_RC body_check_options(const struct body_facts *facts, struct body_fault *fault)
{
	const struct json_val *options = &facts->options;
	if (facts->stream_odd)
		return type_refuse("stream", "true or false", fault);
	if (!facts->stream || options->raw.p == NULL || options->type == JSON_NULL)
		return CGN_OK;
	if (options->type != JSON_OBJECT)
		return type_refuse("stream_options", "an object", fault);
	CGN_TRY(option_check(*options, "include_usage", "stream_options.include_usage", fault));
	return option_check(*options, "continuous_usage_stats", "stream_options.continuous_usage_stats",
		fault);
}

bool body_lacks_model(const struct body_facts *facts)
{
	const struct json_val *m = &facts->model;
	return m->raw.p == NULL || m->type == JSON_NULL || (m->type == JSON_STRING && m->raw.n == 2);
}

void body_put_model(struct cgn_str text, const struct body_facts *facts, struct cgn_str name,
	struct cgn_buf *out)
{
	const struct json_val *m = &facts->model;
	struct json_iter it = json_iter_of(facts->json);
	struct cgn_str key;
	struct json_val first;
	bool there = m->raw.p != NULL, empty = !json_next_member(&it, &key, &first);
	/* The value is replaced, or a first member is put behind the bracket. */
	size_t at = (size_t)((there ? m->raw.p : facts->json.raw.p + 1) - text.p);
	struct json_out j = json_out_to(out);
	cgn_buf_add(out, text.p, at);
	if (!there)
		cgn_buf_putz(out, "\"model\":");
	json_put_str(&j, name);
	if (!there && !empty)
		cgn_buf_char(out, ',');
	at += there ? m->raw.n : 0;
	cgn_buf_add(out, text.p + at, text.n - at);
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Write spaces over the member |*value| of |text|, whose key without quotes is |*key|, and forget both. */
static void member_blank(char *text, struct cgn_str *key, struct json_val *value)
{
	if (value->raw.p == NULL)
		return;
	size_t from = (size_t)(key->p - text) - 1; /* the key's quote */
	size_t to = (size_t)(value->raw.p - text) + value->raw.n, behind = to;
	while (is_space(text[behind]))
		behind++;
	size_t before = from;
	while (is_space(text[before - 1]))
		before--;
	/* A comma beside the member goes with it; an only member has none. */
	if (text[behind] == ',')
		to = behind + 1;
	else if (text[before - 1] == ',')
		from = before - 1;
	memset(text + from, ' ', to - from);
	*value = (struct json_val){JSON_NULL, {NULL, 0}};
	*key = (struct cgn_str){NULL, 0};
}

void body_drop_salt(char *text, struct body_facts *facts)
{
	member_blank(text, &facts->salt_key, &facts->salt);
}

void body_drop_names(char *text, struct body_facts *facts)
{
	for (size_t i = 0; i < BODY_NAMES; i++)
		member_blank(text, &facts->names[i].key, &facts->names[i].value);
}

void body_drop_options(char *text, struct body_facts *facts)
{
	member_blank(text, &facts->options_key, &facts->options);
}
