/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/trace/trace.h"

#include <stdlib.h>

#include "base/json/json.h"
#include "base/mix/mix.h"

#define MAX_MS          1e12 /* Thirty years. */
#define MAX_DEADLINE_MS 3600000

/* Block sizes that all lines so far allow. */
struct fit {
	uint64_t least, most;
};

struct line {
	const char *name;
	size_t number;
	struct json_val timestamp, input, output, ids, session;
};

uint64_t trace_digest(uint64_t id)
{
	return mix_seeded(id);
}

void trace_fini(struct trace *t)
{
	free(t->requests);
	free(t->ids);
	*t = (struct trace){0};
}

static bool grow_array(void *at, size_t *cap, size_t want, size_t size)
{
	void *v;
	memcpy(&v, at, sizeof v);
	if (want <= *cap)
		return true;
	size_t to = *cap * 2 > want ? *cap * 2 : want;
	v = reallocarray(v, to, size);
	if (v == NULL)
		return false;
	memcpy(at, &v, sizeof v);
	*cap = to;
	return true;
}

CGN_RC trace_add(struct trace *t, const struct trace_request *r, const uint64_t *ids, size_t n)
{
	if (t->n >= TRACE_MAX_REQUESTS || n > TRACE_MAX_IDS - t->n_ids)
		return CGN_RC_OF(CGN_TOO_LARGE);
	if (!grow_array(&t->requests, &t->cap, t->n + 1, sizeof *t->requests) ||
		!grow_array(&t->ids, &t->cap_ids, t->n_ids + n, sizeof *t->ids))
		return CGN_RC_OF(CGN_NO_MEMORY);
	struct trace_request *to = &t->requests[t->n++];
	*to = *r;
	to->first = t->n_ids;
	to->n = (uint32_t)n;
	if (n > 0)
		memcpy(t->ids + t->n_ids, ids, n * sizeof *ids);
	t->n_ids += n;
	return CGN_OK;
}

/* ---- a line ---- */

static struct cgn_str shown_value(struct json_val v)
{
	return (struct cgn_str){v.raw.p, v.raw.n < 40 ? v.raw.n : 40};
}

static CGN_RC take_tokens(const struct line *l, const char *key, struct json_val v, uint64_t least,
	uint32_t *out, struct cgn_err *err)
{
	uint64_t n = 0;
	if (v.raw.p == NULL)
		return CGN_FAIL(err, INVALID, "%s line %zu has no \"%s\"", l->name, l->number, key);
	if (v.type != JSON_NUMBER || !json_u64(v, &n) || n < least || n > TRACE_MAX_TOKENS)
		return CGN_FAIL(err, INVALID, "%s line %zu: \"%s\" is %.*s, not a whole number from %u to %u",
			l->name, l->number, key, CGN_STR_ARG(shown_value(v)), (unsigned)least,
			TRACE_MAX_TOKENS);
	*out = (uint32_t)n;
	return CGN_OK;
}

static CGN_RC take_time(const struct line *l, cgn_nsec before, cgn_nsec *out, struct cgn_err *err)
{
	double ms = 0;
	if (l->timestamp.raw.p == NULL)
		return CGN_FAIL(err, INVALID, "%s line %zu has no \"timestamp\"", l->name, l->number);
	if (l->timestamp.type != JSON_NUMBER || !json_f64(l->timestamp, &ms) || !(ms >= 0 && ms <= MAX_MS))
		return CGN_FAIL(err, INVALID,
			"%s line %zu: \"timestamp\" is %.*s, not milliseconds from 0 to %.0f", l->name,
			l->number, CGN_STR_ARG(shown_value(l->timestamp)), MAX_MS);
	*out = (cgn_nsec)(ms * 1e6);
	if (*out < before)
		return CGN_FAIL(err, INVALID,
			"%s line %zu: \"timestamp\" %.*s is before that of the line before; requests must be in order of arrival",
			l->name, l->number, CGN_STR_ARG(shown_value(l->timestamp)));
	return CGN_OK;
}

static CGN_RC take_ids(const struct line *l, struct trace *t, uint64_t *n, struct cgn_err *err)
{
	struct json_val id;
	*n = 0;
	if (l->ids.raw.p == NULL || l->ids.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "%s line %zu has no array \"hash_ids\"", l->name, l->number);
	for (struct json_iter it = json_iter_of(l->ids); json_next_elem(&it, &id); ++*n) {
		uint64_t v = 0;
		if (id.type != JSON_NUMBER || !json_u64(id, &v))
			return CGN_FAIL(err, INVALID,
				"%s line %zu: \"hash_ids\" holds %.*s, not a whole number from 0", l->name,
				l->number, CGN_STR_ARG(shown_value(id)));
		if (t->n_ids + *n >= TRACE_MAX_IDS)
			return CGN_FAIL(err, TOO_LARGE, "%s line %zu: more than %zu blocks", l->name,
				l->number, TRACE_MAX_IDS);
		if (!grow_array(&t->ids, &t->cap_ids, t->n_ids + *n + 1, sizeof *t->ids))
			return CGN_FAIL(err, NO_MEMORY, "no memory for the blocks of %s", l->name);
		t->ids[t->n_ids + *n] = v;
	}
	return *n > 0 ? CGN_OK
		      : CGN_FAIL(err, INVALID, "%s line %zu: \"hash_ids\" is empty", l->name, l->number);
}

/* Narrow |f| to the sizes for which |n| blocks hold |input| tokens: ceil(input / size) == n. */
static CGN_RC narrow_fit(const struct line *l, struct fit *f, uint64_t input, uint64_t n, struct cgn_err *err)
{
	uint64_t least = (input + n - 1) / n, most = n > 1 ? (input - 1) / (n - 1) : UINT32_MAX;
	struct fit now = {f->least > least ? f->least : least, f->most < most ? f->most : most};
	if (input < n || now.least > now.most) {
		char sizes[80];
		(void)snprintf(sizes, sizeof sizes,
			f->least == f->most ? "%llu tokens"
					    : "%llu to %llu tokens, as the lines before have them",
			(unsigned long long)f->least, (unsigned long long)f->most);
		return CGN_FAIL(err, INVALID,
			"%s line %zu: %llu \"hash_ids\" do not fit \"input_length\" %llu with blocks of %s",
			l->name, l->number, (unsigned long long)n, (unsigned long long)input, sizes);
	}
	*f = now;
	return CGN_OK;
}

/* Return the spread FNV-1a hash of a name as it is written in JSON. */
static uint64_t name_spread(uint64_t fnv)
{
	uint64_t h = trace_digest(fnv);
	return h != 0 ? h : 1;
}

uint64_t trace_name(struct cgn_str name)
{
	return name_spread(mix_fnv1a(mix_fnv1a(mix_fnv1a(MIX_FNV1A, "\"", 1), name.p, name.n), "\"", 1));
}

/* Return a number as it is, and the hash of a name. */
static uint64_t name_of(struct json_val v)
{
	uint64_t h = 0;
	if (v.raw.p == NULL || v.type == JSON_NULL)
		return 0;
	if (v.type == JSON_NUMBER && json_u64(v, &h))
		return h;
	return name_spread(mix_fnv1a(MIX_FNV1A, v.raw.p, v.raw.n));
}

/* Read an optional number up to |most|. */
static CGN_RC take_number(const struct line *l, const char *key, struct json_val v, uint32_t most,
	uint32_t *out, struct cgn_err *err)
{
	uint64_t n = 0;
	if (v.raw.p == NULL || v.type == JSON_NULL)
		return CGN_OK;
	if (v.type != JSON_NUMBER || !json_u64(v, &n) || n > most)
		return CGN_FAIL(err, INVALID, "%s line %zu: \"%s\" is %.*s, not a whole number from 0 to %u",
			l->name, l->number, key, CGN_STR_ARG(shown_value(v)), most);
	*out = (uint32_t)n;
	return CGN_OK;
}

/* Read the keys that decide how the request waits. */
static CGN_RC take_waiting(const struct line *l, struct json_val tenant, struct json_val priority,
	struct json_val deadline, struct trace_request *r, struct cgn_err *err)
{
	uint32_t level = 0;
	CGN_TRY(take_number(l, "priority", priority, 9, &level, err));
	r->priority = (uint8_t)level;
	r->has_priority = priority.raw.p != NULL && priority.type != JSON_NULL;
	r->tenant = name_of(tenant);
	return take_number(l, "deadline_ms", deadline, MAX_DEADLINE_MS, &r->deadline_ms, err);
}

static CGN_RC read_line(struct line *l, struct cgn_str text, struct fit *f, struct trace *t,
	struct cgn_err *err)
{
	static const char *const keys[] = {"timestamp", "input_length", "output_length", "hash_ids",
		"session_id", "tenant", "priority", "deadline_ms"};
	struct json_val root, v[CGN_COUNT(keys)];
	struct cgn_err why = {0};
	struct trace_request r = {.first = t->n_ids};
	uint64_t n = 0;
	if (!cgn_ok(json_parse(text, &root, NULL, &why)))
		return CGN_FAIL(err, INVALID, "%s line %zu is not JSON: %.200s", l->name, l->number, why.msg);
	if (root.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "%s line %zu is not a JSON object", l->name, l->number);
	json_pick(root, keys, CGN_COUNT(keys), v);
	l->timestamp = v[0];
	l->ids = v[3];
	CGN_TRY(take_time(l, t->n > 0 ? t->requests[t->n - 1].at : 0, &r.at, err));
	CGN_TRY(take_tokens(l, keys[1], v[1], 1, &r.input, err));
	CGN_TRY(take_tokens(l, keys[2], v[2], 0, &r.output, err));
	CGN_TRY(take_ids(l, t, &n, err));
	CGN_TRY(narrow_fit(l, f, r.input, n, err));
	/* An engine generates one token before it can find the answer empty. */
	r.output = r.output > 0 ? r.output : 1;
	r.session = name_of(v[4]);
	CGN_TRY(take_waiting(l, v[5], v[6], v[7], &r, err));
	r.n = (uint32_t)n;
	if (t->n >= TRACE_MAX_REQUESTS)
		return CGN_FAIL(err, TOO_LARGE, "%s line %zu: more than %zu requests", l->name, l->number,
			TRACE_MAX_REQUESTS);
	if (!grow_array(&t->requests, &t->cap, t->n + 1, sizeof *t->requests))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the requests of %s", l->name);
	t->requests[t->n++] = r;
	t->n_ids += n;
	return CGN_OK;
}

/* ---- all lines ---- */

static uint32_t size_of(struct fit f)
{
	if (f.least <= TRACE_BLOCK_TOKENS && TRACE_BLOCK_TOKENS <= f.most)
		return TRACE_BLOCK_TOKENS;
	uint64_t power = 1;
	while (power < f.least)
		power *= 2;
	return (uint32_t)(power <= f.most ? power : f.least);
}

CGN_RC trace_parse(struct cgn_str text, const char *name, uint32_t block_tokens, size_t limit,
	struct trace *out, struct cgn_err *err)
{
	struct trace t = {0};
	struct fit f = {block_tokens > 0 ? block_tokens : 1, block_tokens > 0 ? block_tokens : UINT32_MAX};
	struct line l = {.name = name};
	struct cgn_str rest = text;
	cgn_rc rc = CGN_OK;
	while (cgn_ok(rc) && rest.n > 0 && (limit == 0 || t.n < limit)) {
		struct cgn_str line = cgn_str_trim(cgn_str_split(&rest, '\n'));
		if (line.n > 0 && line.p[line.n - 1] == '\r')
			line.n--;
		l.number++;
		if (line.n > 0)
			rc = read_line(&l, line, &f, &t, err);
	}
	if (cgn_ok(rc) && t.n == 0)
		rc = CGN_FAIL(err, INVALID, "%s holds no request", name);
	t.block_tokens = size_of(f);
	if (cgn_ok(rc))
		*out = t;
	else
		trace_fini(&t);
	return rc;
}

void trace_write(const struct trace *t, struct cgn_buf *out)
{
	for (size_t i = 0; i < t->n; i++) {
		const struct trace_request *r = &t->requests[i];
		struct json_out o = json_out_to(out);
		json_open(&o, '{');
		json_key_u64(&o, "timestamp", (r->at + CGN_MSEC / 2) / CGN_MSEC);
		json_key_u64(&o, "input_length", r->input);
		json_key_u64(&o, "output_length", r->output);
		if (r->session != 0)
			json_key_u64(&o, "session_id", r->session);
		if (r->tenant != 0)
			json_key_u64(&o, "tenant", r->tenant);
		if (r->has_priority)
			json_key_u64(&o, "priority", r->priority);
		if (r->deadline_ms > 0)
			json_key_u64(&o, "deadline_ms", r->deadline_ms);
		json_key_open(&o, "hash_ids", '[');
		for (uint32_t k = 0; k < r->n; k++)
			json_put_u64(&o, trace_ids(t, r)[k]);
		json_close(&o, ']');
		json_close(&o, '}');
		cgn_buf_char(out, '\n');
	}
}
