/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/opening/opening.h"

#include <string.h>

#include "base/core/err.h"

#define CHOICE_DEPTH 3 /* {"choices":[{ */

enum shape { SHAPE_SNIFF, SHAPE_DOCUMENT, SHAPE_EVENTS };
enum line_part { LINE_NAME, LINE_SPACE, LINE_DATA, LINE_EVENT, LINE_OTHER };
enum doc_part { AT_BEGIN, AT_PLAIN, AT_STRING, AT_ESCAPE, AT_VALUE, AT_INSIDE };

const char *opening_text(enum opening_says says)
{
	static const char *const texts[] = {
		[OPENING_ERROR] = "an error in the place of an answer",
		[OPENING_OTHER] = "a document that is none of the route's answers",
		[OPENING_EMPTY] = "nothing",
		[OPENING_ALIEN] = "a page or another type of content in the place of an answer",
	};
	CGN_MUST(says >= OPENING_ERROR && (size_t)says < CGN_COUNT(texts));
	return texts[says];
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void doc_begin(struct opening *o)
{
	o->at = AT_BEGIN;
	o->inside = 0;
	o->depth = 0;
	o->is_key = o->digits = o->choice = o->chosen = false;
	o->key_n = o->word_n = 0;
}

/* The error has been read, as far as it comes. */
static void error_settle(struct opening *o)
{
	bool fault = o->code == 400 || o->code == 413 || o->code == 422 || (o->code == 0 && o->refused);
	o->says = fault ? OPENING_REFUSAL : OPENING_ERROR;
}

/* A document, or a stream, ended without a member of the route's answers. */
static void lack_settle(struct opening *o)
{
	if (o->told || o->code >= 400)
		error_settle(o);
	else
		o->says = o->filled ? OPENING_OTHER : OPENING_EMPTY;
}

static bool has_lead(struct cgn_str s, const char *lead)
{
	size_t n = strlen(lead);
	return s.n >= n && cgn_str_eq_nocase((struct cgn_str){s.p, n}, cgn_str_of(lead));
}

static bool is_json(struct cgn_str type)
{
	return has_lead(type, "application/json") || has_lead(type, "application/x-ndjson") ||
		has_lead(type, "application/problem+json");
}

void opening_init(struct opening *o, enum opening_route route, uint32_t answers, struct cgn_str type)
{
	*o = (struct opening){.may_be_empty = route != OPENING_JSON, .answers = answers};
	doc_begin(o);
	bool events = has_lead(type, "text/event-stream"), json = is_json(type);
	bool bytes = answers & OPENING_BYTES && has_lead(type, "application/octet-stream");
	o->shape = json ? SHAPE_DOCUMENT : events ? SHAPE_EVENTS : SHAPE_SNIFF;
	o->strict = answers != 0 && (route == OPENING_JSON || json);
	if (has_lead(type, "text/html") || has_lead(type, "application/xhtml"))
		o->says = OPENING_ALIEN;
	else if (route == OPENING_WHATEVER || bytes || (route == OPENING_MEDIA && !json && !events))
		o->says = OPENING_ANSWER;
}

/* ---- the document ---- */

static void word_add(struct opening *o, char c)
{
	if (o->word_n < OPENING_WORD)
		o->word[o->word_n++] = c;
}

static struct cgn_str word_of(const struct opening *o)
{
	return (struct cgn_str){o->word, o->word_n};
}

static bool is_one_of(struct cgn_str s, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n && s.n > 0; i++)
		if (names[i][0] == s.p[0] && cgn_str_is(s, names[i]))
			return true;
	return false;
}

/* Return true for a member that only an answer has: one of the route's answers, where they are known. */
static bool is_content(const struct opening *o, struct cgn_str key)
{
	static const char *const names[] = {
#define MEMBER(id, name) name,
#include "policy/answer/opening/members.def"
#undef MEMBER
	};
	_Static_assert(CGN_COUNT(names) <= 29, "the other bits tell of lists, bytes and ends");
	const uint32_t all = (1U << CGN_COUNT(names)) - 1;
	for (uint32_t left = o->strict ? o->answers & all : all; left != 0; left &= left - 1)
		if (cgn_str_is(key, names[__builtin_ctz(left)]))
			return true;
	return false;
}

/* A member of an error has a value: tell it from other documents, should no member of an answer follow. */
static bool is_telling(struct cgn_str key)
{
	static const char *const names[] = {"message", "msg", "error_message", "error_msg", "errors"};
	return is_one_of(key, names, CGN_COUNT(names));
}

/* Judge the value of the member "type". */
static void type_judge(struct opening *o, struct cgn_str value)
{
	static const char suffix[] = "rror"; /* "error", "NotFoundError", "server_error" */
	size_t n = sizeof suffix - 1;
	bool error = value.n >= n && value.n < OPENING_WORD && memcmp(value.p + value.n - n, suffix, n) == 0;
	if (error || cgn_str_is(value, "response.failed"))
		o->failed = true;
	else if (cgn_str_is(value, "ping"))
		o->ping = true;
	else if (cgn_str_starts(value, "response.") || cgn_str_starts(value, "message_") ||
		(!o->strict && cgn_str_starts(value, "message")))
		o->says = OPENING_ANSWER;
}

/* Judge the value of the member "status" or "stop_reason": an answer that ended as it should may be empty. */
static void end_judge(struct opening *o, struct cgn_str key, struct cgn_str value)
{
	static const char *const fine[] = {"completed", "incomplete", "queued", "in_progress"};
	if (cgn_str_is(key, "stop_reason"))
		o->ended |= value.n > 0;
	else if (cgn_str_is(value, "failed"))
		o->failed = true;
	else
		o->ended |= is_one_of(value, fine, CGN_COUNT(fine));
}

/* Read a member of an error, at any depth: whose fault is it? */
static void blame_read(struct opening *o, struct cgn_str key, struct cgn_str value)
{
	static const char *const words[] = {"BadRequestError", "invalid_request_error", "invalid_prompt",
		"context_length_exceeded"};
	if (cgn_str_is(key, "type") || cgn_str_is(key, "code"))
		o->refused |= is_one_of(value, words, CGN_COUNT(words));
}

/* Judge a member of the first choice, or of what stands in it, whose value is the string |value|. */
static void choice_string(struct opening *o, struct cgn_str key, struct cgn_str value)
{
	if (o->depth > CHOICE_DEPTH) {
		if (o->shape == SHAPE_EVENTS && cgn_str_is(key, "role"))
			o->says = OPENING_ANSWER; /* The engine began. */
		return;
	}
	if (cgn_str_is(key, "error"))
		o->failed = value.n > 0;
	else if (cgn_str_is(key, "finish_reason") &&
		(cgn_str_is(value, "error") || cgn_str_is(value, "abort")))
		o->failed = true;
	else if (cgn_str_is(key, "finish_reason") && value.n > 0)
		o->says = OPENING_ANSWER;
}

/* Judge a member whose value is the string in |word|. */
static void string_judge(struct opening *o)
{
	struct cgn_str key = {o->key, o->key_n}, value = word_of(o);
	if (o->choice && !o->failed) {
		choice_string(o, key, value);
		return;
	}
	blame_read(o, key, value);
	if (o->failed || o->depth != 1)
		return;
	if (o->strict && (cgn_str_is(key, "status") || cgn_str_is(key, "stop_reason")))
		end_judge(o, key, value);
	else if (cgn_str_is(key, "object") && cgn_str_is(value, "error"))
		o->failed = true;
	else if (cgn_str_is(key, "type"))
		type_judge(o, value);
	else if ((cgn_str_is(key, "error") || cgn_str_is(key, "detail")) && value.n > 0)
		o->failed = true;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static void number_begin(struct opening *o, char c)
{
	static const char *const names[] = {"code", "status", "status_code"};
	o->digits = is_digit(c) && is_one_of((struct cgn_str){o->key, o->key_n}, names, CGN_COUNT(names));
	o->number = 0;
}

static void number_byte(struct opening *o, char c)
{
	if (is_digit(c)) {
		o->number = o->number < 1000 ? o->number * 10 + (uint32_t)(c - '0') : o->number;
		return;
	}
	o->digits = false;
	o->code = o->number;
}

/* Judge a member that an answer has. Its value begins with |c|; the next byte tells whether it is empty. */
static void content_judge(struct opening *o, struct cgn_str key, char c)
{
	if (c == '[' || c == '{' || (c == '"' && !(o->strict && cgn_str_is(key, "choices"))))
		o->inside = c;
	else if (is_digit(c))
		o->says = OPENING_ANSWER;
}

/* Judge a member of the first choice, or of what stands in it, whose value begins with |c|. */
static void choice_judge(struct opening *o, struct cgn_str key, char c)
{
	static const char *const texts[] = {"content", "text", "reasoning_content", "reasoning", "refusal"};
	bool nested = c == '{' || c == '[';
	if (!nested && c != '"' && c != 't')
		return;
	if (o->depth == CHOICE_DEPTH && cgn_str_is(key, "error"))
		o->failed = nested || c == 't';
	else if (c == '"' && is_one_of(key, texts, CGN_COUNT(texts)))
		o->inside = c;
	else if (nested && (cgn_str_is(key, "tool_calls") || cgn_str_is(key, "content")))
		o->inside = c;
}

/* Judge a member whose value begins with |c|. */
static void value_judge(struct opening *o, char c)
{
	struct cgn_str key = {o->key, o->key_n};
	bool nested = c == '{' || c == '[';
	if (o->choice && !o->failed) {
		choice_judge(o, key, c);
		return;
	}
	number_begin(o, c);
	if (o->failed)
		return;
	if (is_content(o, key))
		content_judge(o, key, c);
	else if (nested && cgn_str_is(key, "message") && !o->strict)
		o->says = OPENING_ANSWER;
	else if ((cgn_str_is(key, "error") && (nested || c == 't')) || (cgn_str_is(key, "detail") && nested))
		o->failed = true;
	else if (c == '"' || nested)
		o->told |= is_telling(key);
	else if (c == 'f')
		o->told |= cgn_str_is(key, "success");
}

/* The first choice of an answer begins. */
static void choice_begin(struct opening *o)
{
	o->depth = CHOICE_DEPTH;
	o->choice = o->is_key = true;
}

/* The first choice ended before it had content. It is an answer, unless it has no member. */
static void choice_end(struct opening *o)
{
	o->choice = false;
	if (o->chosen)
		o->says = OPENING_ANSWER;
}

static void object_end(struct opening *o);

/* Take the first byte inside the list or the object that is the value of a member that an answer has. */
static void nested_byte(struct opening *o, char c)
{
	struct cgn_str key = {o->key, o->key_n};
	bool over = c == ']' || c == '}';
	if (over || c == 'n') { /* [], {} or [null] */
		o->filled = o->hollow = true;
		o->member |= !o->strict;
		o->depth -= over;
		if (o->depth == 0)
			object_end(o);
	} else if (o->strict && !o->choice && c == '{' && cgn_str_is(key, "choices")) {
		choice_begin(o);
	} else {
		o->says = OPENING_ANSWER;
	}
}

/* Take the first byte inside the value of a member that an answer has. */
static void inside_byte(struct opening *o, char c)
{
	bool text = o->inside == '"';
	if (!text && is_space(c))
		return;
	o->inside = 0;
	o->at = AT_PLAIN;
	if (!text)
		nested_byte(o, c);
	else if (c == '"')
		o->member |= !o->choice;
	else
		o->says = OPENING_ANSWER;
}

/* Return true where members are read. */
static bool reads_members(const struct opening *o)
{
	return o->depth == 1 || o->failed || o->choice;
}

static void string_end(struct opening *o)
{
	o->at = AT_PLAIN;
	if (!reads_members(o))
		return;
	if (!o->is_key) {
		string_judge(o);
		return;
	}
	o->filled |= o->shape == SHAPE_DOCUMENT;
	o->chosen |= o->choice;
	o->key_n = o->word_n;
	memcpy(o->key, o->word, o->word_n);
	o->is_key = false;
}

/* Begin a list: it is an answer if it has an element. */
static void list_begin(struct opening *o)
{
	o->depth = 1;
	o->inside = '[';
	o->at = AT_INSIDE;
}

/* A document begins as something other than an object. Lists are answers of some routes; an error may stand
 * in a list of any other. */
static void value_begin(struct opening *o, char c)
{
	if (c == '<')
		o->says = OPENING_ALIEN;
	else if (!o->strict)
		o->says = OPENING_ANSWER;
	else if (c == '[' && o->answers & OPENING_LISTS)
		list_begin(o);
	else if (c == '[' && !o->listed)
		o->listed = true;
	else if (c == 'n' || c == ']')
		lack_settle(o);
	else
		o->says = OPENING_OTHER;
}

static void begin_byte(struct opening *o, char c)
{
	if (is_space(c))
		return;
	o->seen = true;
	if (c != '{' && !o->failed) {
		value_begin(o, c);
		return;
	}
	o->at = AT_PLAIN;
	o->depth = 1;
	o->is_key = true;
}

/* The object has ended. */
static void object_end(struct opening *o)
{
	if (o->failed)
		error_settle(o);
	else if (o->member || (o->hollow && o->ended))
		o->says = OPENING_ANSWER;
	else if (o->strict)
		lack_settle(o);
}

static void plain_byte(struct opening *o, char c)
{
	if (o->digits)
		number_byte(o, c);
	switch (c) {
	case '"':
		o->at = AT_STRING;
		o->word_n = 0;
		break;
	case '{':
	case '[':
		o->depth++;
		o->is_key = o->failed || o->choice;
		break;
	case '}':
	case ']':
		o->depth -= o->depth > 0;
		if (o->choice && !o->failed && o->depth < CHOICE_DEPTH)
			choice_end(o);
		if (o->depth == 0 && o->shape == SHAPE_DOCUMENT && o->says == OPENING_MORE)
			object_end(o);
		break;
	case ',':
		o->is_key = reads_members(o);
		break;
	case ':':
		if (reads_members(o))
			o->at = AT_VALUE;
		break;
	default:
		break;
	}
}

static void doc_byte(struct opening *o, char c)
{
	switch ((enum doc_part)o->at) {
	case AT_BEGIN:
		begin_byte(o, c);
		break;
	case AT_VALUE:
		if (is_space(c))
			break;
		value_judge(o, c);
		o->at = AT_PLAIN;
		plain_byte(o, c);
		if (o->inside != 0)
			o->at = AT_INSIDE;
		break;
	case AT_INSIDE:
		inside_byte(o, c);
		break;
	case AT_PLAIN:
		plain_byte(o, c);
		break;
	case AT_STRING:
		if (c == '"')
			string_end(o);
		else if (c == '\\')
			o->at = AT_ESCAPE;
		else
			word_add(o, c);
		break;
	case AT_ESCAPE: /* No name or value that is compared has an escape. */
		word_add(o, '\\');
		o->at = AT_STRING;
		break;
	}
}

/* ---- events ---- */

static void event_begin(struct opening *o)
{
	o->data = o->ping = o->named = false;
	o->line = LINE_NAME;
	o->word_n = 0;
	doc_begin(o);
}

/* An event with data has ended. */
static void event_settle(struct opening *o)
{
	if (o->failed)
		error_settle(o);
	else if (o->member || !o->strict)
		o->says = OPENING_ANSWER;
	else
		o->filled = true; /* An event that no answer has: the next one tells. */
}

/* A line of data other than an object has ended. */
static void text_settle(struct opening *o, struct cgn_str text)
{
	if (cgn_str_is(text, "[DONE]"))
		lack_settle(o);
	else if (text.n > 0 && !o->failed && !o->strict)
		o->says = OPENING_ANSWER;
}

/* A line has ended. */
static void line_end(struct opening *o)
{
	struct cgn_str word = word_of(o);
	bool empty = o->line == LINE_NAME && word.n == 0;
	if (o->sniffed && o->line == LINE_NAME && word.n > 0)
		o->says = OPENING_ALIEN;
	if (o->line == LINE_EVENT && (cgn_str_is(word, "error") || cgn_str_is(word, "response.failed")))
		o->failed = true;
	if (o->line == LINE_EVENT && cgn_str_is(word, "ping"))
		o->ping = true;
	if (o->line == LINE_DATA && o->at == AT_BEGIN)
		text_settle(o, word);
	if (empty && o->says == OPENING_MORE && (o->failed || (o->data && !o->ping)))
		event_settle(o);
	if (empty)
		event_begin(o);
	o->line = LINE_NAME;
	o->word_n = 0;
}

/* The name of a line's field has ended. */
static void name_end(struct opening *o)
{
	struct cgn_str name = word_of(o);
	bool error = cgn_str_is(name, "error"); /* llama-server of 2024 and before */
	bool known = cgn_str_is(name, "data") || cgn_str_is(name, "event");
	if (o->sniffed && !known && name.n > 0 && !cgn_str_is(name, "id") && !cgn_str_is(name, "retry"))
		o->says = OPENING_ALIEN;
	o->failed |= error;
	o->named |= name.n > 0;
	o->line = known || error ? LINE_SPACE : LINE_OTHER;
	o->is_key = error || cgn_str_is(name, "data"); /* Until LINE_SPACE is over. */
	o->word_n = 0;
}

static void data_byte(struct opening *o, char c)
{
	o->data = true;
	if (o->ping)
		return;
	if (o->at == AT_BEGIN && !is_space(c) && (c != '{' || o->word_n > 0))
		word_add(o, c);
	else
		doc_byte(o, c);
}

static void value_byte(struct opening *o, char c)
{
	if (o->line == LINE_DATA)
		data_byte(o, c);
	else if (o->line == LINE_EVENT)
		word_add(o, c);
}

static void line_byte(struct opening *o, char c)
{
	if (o->line == LINE_NAME && c == ':') {
		name_end(o);
	} else if (o->line == LINE_NAME && o->word_n == 0 && (c == '{' || c == '<')) {
		o->shape = SHAPE_DOCUMENT; /* No event: the engine's server or a proxy speaks. */
		doc_begin(o);
		doc_byte(o, c);
	} else if (o->line == LINE_NAME) {
		word_add(o, c);
	} else if (o->line == LINE_SPACE) {
		o->line = o->is_key ? LINE_DATA : LINE_EVENT;
		if (c != ' ')
			value_byte(o, c);
	} else {
		value_byte(o, c);
	}
}

static void event_byte(struct opening *o, char c)
{
	bool after_cr = o->after_cr;
	o->after_cr = c == '\r';
	if (c == '\n' && after_cr)
		return;
	if (c == '\r' || c == '\n')
		line_end(o);
	else
		line_byte(o, c);
}

/* ---- bytes ---- */

/* The type says nothing: the first byte must be that of JSON or of an event. */
static void sniff_byte(struct opening *o, char c)
{
	if (is_space(c))
		return;
	bool json = c == '{' || c == '[' || c == '"' || (c >= '0' && c <= '9');
	bool event = c == ':' || c == 'd' || c == 'e' || c == 'i' || c == 'r'; /* data event id retry */
	o->shape = event ? SHAPE_EVENTS : SHAPE_DOCUMENT;
	o->sniffed = true;
	if (event)
		event_byte(o, c);
	else if (json)
		doc_byte(o, c);
	else
		o->says = OPENING_ALIEN;
}

/* Most bytes stand in strings: take those at the beginning of |data| at once. Returns their number. */
static size_t string_run(struct opening *o, struct cgn_str data)
{
	size_t n = 0;
	if (o->at != AT_STRING || (o->shape == SHAPE_EVENTS && (o->line != LINE_DATA || o->ping)))
		return 0;
	while (n < data.n && data.p[n] != '"' && data.p[n] != '\\' && data.p[n] != '\n' && data.p[n] != '\r')
		n++;
	size_t room = (size_t)OPENING_WORD - o->word_n, kept = n < room ? n : room;
	memcpy(o->word + o->word_n, data.p, kept);
	o->word_n = (uint8_t)(o->word_n + kept);
	return n;
}

enum opening_says opening_feed(struct opening *o, struct cgn_str data)
{
	for (size_t i = 0; i < data.n && o->says == OPENING_MORE; i++) {
		i += string_run(o, (struct cgn_str){data.p + i, data.n - i});
		if (i == data.n)
			break;
		char c = data.p[i];
		bool inner = o->line == LINE_DATA && o->at != AT_BEGIN && !o->ping && c != '\r' && c != '\n';
		if (o->shape == SHAPE_SNIFF)
			sniff_byte(o, c);
		else if (o->shape == SHAPE_EVENTS && !inner)
			event_byte(o, c);
		else
			doc_byte(o, c);
	}
	return o->says;
}

/* The document has ended, where its object has not, or without one. */
static void document_end(struct opening *o)
{
	if (o->failed)
		error_settle(o);
	else if (!o->seen)
		o->says = o->may_be_empty ? OPENING_ANSWER : OPENING_EMPTY;
	else if (o->member || !o->strict)
		o->says = OPENING_ANSWER;
	else
		lack_settle(o);
}

/* The stream has ended; its last event needs no blank line. */
static void events_end(struct opening *o)
{
	bool broken = o->at != AT_BEGIN && o->depth > 0;
	if (o->failed || (o->data && !o->ping && !broken))
		event_settle(o);
	if (o->says == OPENING_MORE && o->may_be_empty)
		o->says = OPENING_ANSWER;
	else if (o->says == OPENING_MORE)
		lack_settle(o);
}

enum opening_says opening_end(struct opening *o)
{
	if (o->says == OPENING_MORE && o->shape == SHAPE_EVENTS && (o->line != LINE_NAME || o->word_n > 0))
		line_end(o);
	if (o->says == OPENING_MORE && o->shape == SHAPE_EVENTS)
		events_end(o);
	else if (o->says == OPENING_MORE)
		document_end(o);
	return o->says;
}

enum opening_says opening_give_up(struct opening *o)
{
	if (o->says == OPENING_MORE && o->failed)
		error_settle(o);
	return o->says == OPENING_MORE ? OPENING_ANSWER : o->says;
}

size_t opening_blank(const struct opening *o, struct cgn_str read)
{
	size_t n = read.n;
	if (o->says != OPENING_MORE || o->filled || o->seen || o->failed || o->data || o->named)
		return 0;
	while (o->shape == SHAPE_EVENTS && n > 0 && read.p[n - 1] != '\n' && read.p[n - 1] != '\r')
		n--;
	return n;
}
