/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/estimate.h"

#include <math.h>
#include <string.h>

#include "base/json/json.h"
#include "base/sse/sse.h"
#include "policy/node/engine/engine.h"

#define DEPTH_MOST    8
#define EVENT_BYTES   180 /* Bytes of an event beside its text, where no event is at hand */
#define DOC_BYTES     400 /* Bytes of a document beside its text */
#define LEARN_SHARE   (1.0 / 16)
#define ERROR_UNKNOWN 0.25 /* The error of a figure after one answer */

/* ---- text ---- */

/* Return true for a key whose value is a label of the API and not text of the model. */
static bool is_label(struct cgn_str key)
{
	static const char *const labels[] = {"role", "type", "id", "index", "stop_reason", "stop_sequence",
		"finish_reason", "status", "object", "model"};
	for (size_t i = 0; i < CGN_COUNT(labels); i++)
		if (cgn_str_is(key, labels[i]))
			return true;
	return false;
}

/* Return the bytes of all strings in |v| that are text. */
static uint64_t text_bytes(struct json_val v, unsigned depth)
{
	struct cgn_str key;
	struct json_val inner;
	uint64_t n = 0;
	if (v.type == JSON_STRING)
		return v.raw.n - 2;
	if (depth == DEPTH_MOST || (v.type != JSON_ARRAY && v.type != JSON_OBJECT))
		return 0;
	struct json_iter it = json_iter_of(v);
	if (v.type == JSON_ARRAY)
		while (json_next_elem(&it, &inner))
			n += text_bytes(inner, depth + 1);
	else
		while (json_next_member(&it, &key, &inner))
			n += is_label(key) || cgn_str_is(key, "logprobs") ? 0 : text_bytes(inner, depth + 1);
	return n;
}

/* Return the text of a document or an event's data. */
static uint64_t answer_bytes(struct cgn_str json)
{
	static const char *const parts[] = {"choices", "delta", "content", "text", "message", "output",
		"response"};
	struct json_val root, v;
	uint64_t n = 0;
	if (!cgn_ok(json_parse(json, &root, NULL, NULL)) || root.type != JSON_OBJECT)
		return 0;
	/* An event that ends a response repeats it. */
	size_t last = json_get(root, "sequence_number", &v) ? 4 : CGN_COUNT(parts);
	for (size_t i = 0; i < last; i++)
		if (json_get(root, parts[i], &v))
			n += text_bytes(v, 0);
	return n;
}

static uint64_t event_bytes(struct cgn_str event)
{
	const char *data = event.n > 0 ? memmem(event.p, event.n, "data:", 5) : NULL;
	if (data == NULL)
		return 0;
	return answer_bytes(cgn_str_trim((struct cgn_str){data + 5, event.n - (size_t)(data + 5 - event.p)}));
}

bool estimate_has_text(struct cgn_str event)
{
	return event_bytes(event) > 0;
}

/* ---- answers ---- */

static void document_read(struct cgn_str tail, uint64_t bytes, struct estimate_seen *out)
{
	uint64_t text = tail.n == bytes ? answer_bytes(tail) : 0;
	if (text == 0 && bytes > tail.n)
		text = bytes - DOC_BYTES;
	*out = (struct estimate_seen){0, text};
}

/* The whole events of a tail. */
struct tail_sums {
	uint64_t bytes, events;     /* |events|: with data */
	uint64_t texts, text, wire; /* events with text, bytes of it, and all bytes of these events */
};

static void event_add(struct tail_sums *t, struct cgn_str event)
{
	uint64_t text = event_bytes(event);
	t->bytes += event.n;
	t->events += memmem(event.p, event.n, "data:", 5) != NULL;
	t->texts += text > 0;
	t->text += text;
	t->wire += text > 0 ? event.n : 0;
}

/* The first event of a tail may have begun before it, unless |all| of the answer is there. */
static void tail_read(struct cgn_str tail, bool all, struct tail_sums *out)
{
	*out = (struct tail_sums){0, 0, 0, 0, 0};
	for (bool begun = all; tail.n > 0; begun = true) {
		size_t n = sse_event_end(tail);
		if (begun && n > 0)
			event_add(out, (struct cgn_str){tail.p, n});
		n = n > 0 ? n : tail.n;
		tail = (struct cgn_str){tail.p + n, tail.n - n};
	}
}

void estimate_read(struct cgn_str tail, uint64_t bytes, uint64_t events, uint64_t before,
	struct estimate_seen *out)
{
	struct tail_sums t;
	bool all = tail.n == bytes;
	if (events == 0) {
		document_read(tail, bytes, out);
		return;
	}
	tail_read(tail, all, &t);
	*out = (struct estimate_seen){t.texts, t.text};
	if (all)
		return;
	/* The events before the tail are like those in it. */
	uint64_t beside = t.texts > 0 ? (t.wire - t.text) / t.texts : EVENT_BYTES;
	uint64_t others = events > t.events ? events - t.events : 0, rest = bytes - t.bytes;
	out->events += others > before ? others - before : 0;
	out->bytes += rest > others * beside ? rest - others * beside : 0;
}

/* ---- figures of a model ---- */

static void figure_learn(double *mean, double *error, double now)
{
	if (!(now > 0) || now > 1e9)
		return;
	if (!(*mean > 0)) {
		*mean = now;
		*error = ERROR_UNKNOWN;
		return;
	}
	*error += (fabs(now / *mean - 1) - *error) * LEARN_SHARE;
	*mean += (now - *mean) * LEARN_SHARE;
}

void estimate_learn(struct estimate *e, const struct estimate_seen *seen, uint64_t tokens)
{
	if (tokens == 0)
		return;
	if (seen->events > 0)
		figure_learn(&e->event_tokens, &e->event_error, (double)tokens / (double)seen->events);
	if (seen->bytes > 0)
		figure_learn(&e->token_bytes, &e->byte_error, (double)seen->bytes / (double)tokens);
}

uint64_t estimate_tokens(const struct estimate *e, const struct estimate_seen *seen)
{
	bool by_events = seen->events > 0 && e->event_tokens > 0,
	     by_bytes = seen->bytes > 0 && e->token_bytes > 0;
	if (by_events && (!by_bytes || e->event_error <= e->byte_error))
		return (uint64_t)((double)seen->events * e->event_tokens + 0.5);
	if (by_bytes)
		return (uint64_t)((double)seen->bytes / e->token_bytes + 0.5);
	uint64_t guess = (seen->bytes + ENGINE_TOKEN_BYTES - 1) / ENGINE_TOKEN_BYTES;
	return guess > seen->events ? guess : seen->events;
}
