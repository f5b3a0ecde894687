/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/usage.h"

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/sse/sse.h"

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

void usage_ask_put(struct json_val own, struct cgn_buf *out)
{
	struct cgn_str key;
	struct json_val v;
	cgn_buf_putz(out, "{\"include_usage\":true");
	if (own.raw.p != NULL && own.type == JSON_OBJECT) {
		for (struct json_iter it = json_iter_of(own); json_next_member(&it, &key, &v);)
			if (!json_key_is(key, "include_usage") && !json_key_is(key, "continuous_usage_stats"))
				cgn_buf_fmt(out, ",\"%.*s\":%.*s", CGN_STR_ARG(key), CGN_STR_ARG(v.raw));
	}
	cgn_buf_char(out, '}');
}

/* Return true if the event may have a member "usage" other than null: most have none, and are not parsed. */
static bool may_have_usage(struct cgn_str event)
{
	static const char key[] = "usage\"";
	const size_t n = sizeof key - 1;
	/* A name may be written with escapes of its characters. */
	if (event.n == 0 || memmem(event.p, event.n, "\\u00", 4) != NULL)
		return event.n > 0;
	for (const char *at; (at = memmem(event.p, event.n, key, n)) != NULL;) {
		event = (struct cgn_str){at + n, event.n - (size_t)(at + n - event.p)};
		size_t i = 0;
		while (i < event.n && (is_space(event.p[i]) || event.p[i] == ':'))
			i++;
		if (i == event.n || event.p[i] != 'n')
			return true;
	}
	return false;
}

/* Return how many bytes at the beginning of |line| are none of an event's data. */
static size_t line_lead(struct cgn_str line)
{
	static const char field[] = "data:";
	const size_t n = sizeof field - 1;
	return line.n >= n && memcmp(line.p, field, n) == 0 ? n : line.n;
}

/* Append |event| with spaces in the place of all that is not its data: that is JSON, in which each byte is where it is in
 * |event|. The end of a line between two lines of data is white space in it. */
static void data_copy(struct cgn_str event, struct cgn_buf *out)
{
	static const char bom[] = "\xef\xbb\xbf";
	size_t from = out->n;
	bool marked = event.n >= 3 && memcmp(event.p, bom, 3) == 0;
	cgn_buf_str(out, event);
	if (out->bad)
		return;
	char *to = out->p + from;
	if (marked)
		memset(to, ' ', 3);
	for (size_t at = marked ? 3 : 0, n; at < event.n; at += n + 1) {
		for (n = 0; at + n < event.n && event.p[at + n] != '\n' && event.p[at + n] != '\r'; n++)
			;
		memset(to + at, ' ', line_lead((struct cgn_str){event.p + at, n}));
	}
}

/* A part of an event that is left out. */
struct usage_gap {
	size_t from, to;
};
#define GAPS 8 /* Members "usage" of one event; one with more is shown as it is. */

static bool is_usage_member(struct cgn_str key, struct json_val v)
{
	return json_key_is(key, "usage") && v.type != JSON_NULL;
}

/* Find the members "usage" of |root|, a part of |text|, each with a comma beside it. Return how many. */
static size_t gaps_find(struct cgn_str text, struct json_val root, struct usage_gap gaps[GAPS])
{
	struct cgn_str key;
	struct json_val v;
	size_t n = 0, end = 0; /* |end|: of the last member that stays; 0: there was none. */
	for (struct json_iter it = json_iter_of(root); json_next_member(&it, &key, &v);) {
		size_t from = (size_t)(key.p - text.p) - 1, to = (size_t)(v.raw.p - text.p) + v.raw.n;
		if (!is_usage_member(key, v)) {
			end = to;
			continue;
		}
		if (n == GAPS)
			return 0;
		while (end > 0 && text.p[from] != ',')
			from--;
		while (end == 0 && text.p[to] != ',' && text.p[to] != '}')
			to++;
		gaps[n++] = (struct usage_gap){from, end == 0 && text.p[to] == ',' ? to + 1 : to};
	}
	return n;
}

/* Return true if |root| says something beside its usage: a choice, or an error. */
static bool says_more(struct json_val root)
{
	struct json_val v, one;
	if (json_get(root, "error", &v) && v.type != JSON_NULL)
		return true;
	if (!json_get(root, "choices", &v) || v.type == JSON_NULL)
		return false;
	if (v.type != JSON_ARRAY)
		return true;
	struct json_iter it = json_iter_of(v);
	return json_next_elem(&it, &one);
}

/* Append the event without its usage, or nothing if it has nothing else. Return false if it has none. */
static bool event_shown(struct cgn_str event, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf data = {0};
	struct usage_gap gaps[GAPS];
	struct json_val root;
	if (!may_have_usage(event))
		return false;
	data_copy(event, &data);
	struct cgn_str text = cgn_buf_view(&data);
	out->bad = out->bad || data.bad;
	if (data.bad || !cgn_ok(json_parse(text, &root, NULL, NULL)) || root.type != JSON_OBJECT)
		return false;
	size_t n = gaps_find(text, root, gaps), at = 0;
	if (n == 0 || !says_more(root))
		return n > 0;
	for (size_t i = 0; i < n; i++) {
		cgn_buf_add(out, event.p + at, gaps[i].from - at);
		at = gaps[i].to;
	}
	cgn_buf_add(out, event.p + at, event.n - at);
	return true;
}

bool usage_events_shown(struct cgn_str events, struct cgn_buf *out)
{
	bool changed = false;
	if (!may_have_usage(events))
		return false;
	size_t from = out->n;
	while (events.n > 0) {
		size_t n = sse_event_end(events);
		struct cgn_str event = {events.p, n > 0 ? n : events.n};
		bool hides = event_shown(event, out);
		if (!hides)
			cgn_buf_str(out, event);
		changed = changed || hides;
		events = (struct cgn_str){events.p + event.n, events.n - event.n};
	}
	if (!changed)
		out->n = from;
	return changed || out->bad;
}

void usage_tail_add(struct usage_tail *t, const void *p, size_t n)
{
	const char *from = p;
	if (t->p == NULL)
		t->p = CGN_NEW_ARRAY(char, (size_t)2 * USAGE_TAIL);
	if (n == 0)
		return;
	if (n > USAGE_TAIL) {
		from += n - USAGE_TAIL;
		n = USAGE_TAIL;
		t->n = 0; /* The earlier bytes are not adjacent to the new ones */
	}
	if (t->n + n > (size_t)2 * USAGE_TAIL) { /* Happens once every USAGE_TAIL bytes */
		memmove(t->p, t->p + t->n - USAGE_TAIL, USAGE_TAIL);
		t->n = USAGE_TAIL;
	}
	memcpy(t->p + t->n, from, n);
	t->n += n;
}

struct cgn_str usage_tail_view(const struct usage_tail *t)
{
	return (struct cgn_str){t->p, t->n};
}

void usage_tail_fini(struct usage_tail *t)
{
	free(t->p);
	*t = (struct usage_tail){NULL, 0};
}
