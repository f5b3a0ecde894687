/* SPDX-License-Identifier: Apache-2.0 */
/* ending: reads the last events of a stream. */
#include <string.h>

#include "base/apierror/apierror.h"
#include "base/core/err.h"
#include "base/json/json.h"
#include "policy/answer/opening/opening.h"

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Cut the last event off |text|: the part behind the last blank line. False: no blank line is there. */
static bool event_cut(struct cgn_str *text, struct cgn_str *event)
{
	while (text->n > 0 && is_space(text->p[text->n - 1]))
		text->n--;
	size_t at = text->n, ends = 0;
	while (at > 0 && ends < 2) {
		char c = text->p[at - 1];
		ends = c == '\n' || (c == '\r' && text->p[at] != '\n') ? ends + 1 : c == '\r' ? ends : 0;
		at--;
	}
	if (ends < 2)
		return false;
	*event = (struct cgn_str){text->p + at, text->n - at};
	text->n = at;
	return true;
}

bool opening_tail_fails(struct cgn_str tail)
{
	struct cgn_str event;
	while (event_cut(&tail, &event)) {
		struct opening o;
		opening_init(&o, OPENING_JSON, 0, CGN_STR("text/event-stream"));
		(void)opening_feed(&o, event);
		enum opening_says says = opening_end(&o);
		if (says != OPENING_EMPTY)
			return says == OPENING_ERROR;
	}
	return false;
}

/* Find the only line of data of |event|. False: it has none, or several. */
static bool data_find(struct cgn_str event, struct cgn_str *out)
{
	const char *data = event.n > 0 ? memmem(event.p, event.n, "data:", 5) : NULL;
	if (data == NULL)
		return false;
	struct cgn_str line = {data + 5, event.n - (size_t)(data + 5 - event.p)};
	size_t n = 0;
	while (n < line.n && line.p[n] != '\n' && line.p[n] != '\r')
		n++;
	*out = cgn_str_trim((struct cgn_str){line.p, n});
	return memmem(line.p + n, line.n - n, "\ndata:", 6) == NULL &&
		memmem(line.p + n, line.n - n, "\rdata:", 6) == NULL;
}

bool opening_tail_breaks_off(struct cgn_str tail, bool whole)
{
	struct cgn_str event = tail, data;
	struct json_val json;
	if (!event_cut(&tail, &event) && !whole)
		return false;
	return data_find(event, &data) && data.n > 0 && data.p[0] == '{' &&
		!cgn_ok(json_parse(data, &json, NULL, NULL));
}

/* ---- the end that a dialect has ---- */

static bool has_text(struct json_val object, const char *key)
{
	struct json_val v;
	return json_get(object, key, &v) && v.type == JSON_STRING && v.raw.n > 2;
}

/* Judge the choices of an event: the last chunk with choices says why they ended. Those with the usage alone are empty. */
static enum opening_ending choices_judge(struct json_val choices)
{
	struct json_val choice;
	struct json_iter it = json_iter_of(choices);
	enum opening_ending ending = ENDING_UNKNOWN;
	while (json_next_elem(&it, &choice) && ending != ENDING_WHOLE)
		ending = has_text(choice, "finish_reason") ? ENDING_WHOLE : ENDING_CUT;
	return ending;
}

static bool type_is_last(struct cgn_str type)
{
	static const char *const ends[] = {"\"message_stop\"", "\"response.completed\"",
		"\"response.incomplete\"", "\"response.failed\"", "\"response.cancelled\""};
	for (size_t i = 0; i < CGN_COUNT(ends); i++)
		if (cgn_str_is(type, ends[i]))
			return true;
	return false;
}

static enum opening_ending type_judge(struct json_val event, struct cgn_str type)
{
	struct json_val delta;
	if (type_is_last(type))
		return ENDING_WHOLE;
	if (cgn_str_is(type, "\"message_delta\"") && json_get(event, "delta", &delta) &&
		has_text(delta, "stop_reason"))
		return ENDING_WHOLE;
	bool part = cgn_str_starts(type, "\"response.") || cgn_str_starts(type, "\"message_") ||
		cgn_str_starts(type, "\"content_block_");
	return part ? ENDING_CUT : ENDING_UNKNOWN;
}

/* ENDING_UNKNOWN: the event before it tells. */
static enum opening_ending event_judge(struct cgn_str event)
{
	struct cgn_str data;
	struct json_val json, v;
	while (event.n > 0 && is_space(event.p[0]))
		event = (struct cgn_str){event.p + 1, event.n - 1};
	if (cgn_str_starts(event, "error:"))
		return ENDING_WHOLE;
	if (!data_find(event, &data))
		return ENDING_UNKNOWN;
	if (cgn_str_is(data, "[DONE]"))
		return ENDING_WHOLE;
	if (!cgn_ok(json_parse(data, &json, NULL, NULL)) || json.type != JSON_OBJECT)
		return ENDING_UNKNOWN;
	if (apierror_find(json, &v))
		return ENDING_WHOLE;
	if (json_get(json, "choices", &v) && v.type == JSON_ARRAY)
		return choices_judge(v);
	if (json_get(json, "type", &v) && v.type == JSON_STRING)
		return type_judge(json, v.raw);
	if (json_get(json, "stop", &v) && v.type == JSON_BOOL)
		return json_get_bool(json, "stop", false) ? ENDING_WHOLE : ENDING_CUT;
	return ENDING_UNKNOWN;
}

enum opening_ending opening_tail_ends(struct cgn_str tail, bool whole)
{
	struct cgn_str event;
	enum opening_ending ending = ENDING_UNKNOWN;
	while (ending == ENDING_UNKNOWN && event_cut(&tail, &event))
		ending = event_judge(event);
	return ending == ENDING_UNKNOWN && whole ? event_judge(tail) : ending;
}

bool opening_tail_is_last(struct cgn_str tail, bool whole)
{
	struct cgn_str event = tail, data;
	struct json_val json, v;
	if ((!event_cut(&tail, &event) && !whole) || !data_find(event, &data))
		return false;
	if (cgn_str_is(data, "[DONE]"))
		return true;
	if (!cgn_ok(json_parse(data, &json, NULL, NULL)) || json.type != JSON_OBJECT)
		return false;
	if (json_get(json, "type", &v) && v.type == JSON_STRING)
		return type_is_last(v.raw);
	return json_get_bool(json, "stop", false) && !json_get(json, "choices", &v);
}

/* ---- a part of an event ---- */

/* Return true if |line|, which has no end, says nothing: a comment, a field that means nothing without data, a part of a field's
 * name, or a part of [DONE]. */
static bool line_is_idle(struct cgn_str line)
{
	static const char *const names[] = {"data:", "event:", "id:", "retry:"};
	static const char done[] = "[DONE]";
	if (line.n == 0 || cgn_str_starts(line, ":"))
		return true;
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		size_t n = strlen(names[i]);
		if (line.n < n && memcmp(names[i], line.p, line.n) == 0)
			return true;
		if (i > 0 && cgn_str_starts(line, names[i]))
			return true;
	}
	if (!cgn_str_starts(line, names[0]))
		return false;
	struct cgn_str value = cgn_str_trim((struct cgn_str){line.p + 5, line.n - 5});
	return value.n < sizeof done - 1 && memcmp(done, value.p, value.n) == 0;
}

/* Return where the last line of |text| begins. */
static size_t line_last(struct cgn_str text)
{
	size_t at = text.n;
	while (at > 0 && text.p[at - 1] != '\n' && text.p[at - 1] != '\r')
		at--;
	return at;
}

size_t opening_part_useful(struct cgn_str part)
{
	if (part.n == 0)
		return 0;
	size_t at = line_last(part);
	size_t n = line_is_idle((struct cgn_str){part.p + at, part.n - at}) ? at : part.n;
	for (size_t end = n; end > 0; end = at > 0 ? at - 1 : 0) {
		at = line_last((struct cgn_str){part.p, end});
		if (!line_is_idle((struct cgn_str){part.p + at, end - at}))
			return n;
	}
	return 0;
}
