/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/usagescan.h"

#include <string.h>

#include "policy/node/engine/usagescan_priv.h"

#define DEPTH_MOST 64 /* Brackets within which names are read; deeper ones have neither counts nor text. */

enum scan_shape { SHAPE_UNKNOWN, SHAPE_DOCUMENT, SHAPE_LINES };
enum line_part { LINE_START, LINE_FIELD, LINE_DATA, LINE_OTHER };
enum doc_part {
	AT_PLAIN,
	AT_NUMBER,
	AT_STRING,
	AT_STRING_ESCAPE,
	AT_KEY,
	AT_KEY_ESCAPE,
	AT_KEY_HEX,
};

/* Meanings of a member's name. */
#define WORD_USAGE    0x001U
#define WORD_META     0x002U
#define WORD_TIMINGS  0x004U
#define WORD_NEST     0x008U /* At the top: the object may have "usage". */
#define WORD_PART     0x010U /* At the top: the value has text. */
#define WORD_DELTA    0x020U
#define WORD_TEXT     0x040U /* A string is text. */
#define WORD_RAW      0x080U /* An object or a list is text, as JSON. */
#define WORD_SKIP     0x100U /* The value has no text. */
#define WORD_SEQUENCE 0x200U

static const char data_field[] = "data:";

#define WORD(text) {text, sizeof text - 1}

static uint16_t word_find(struct cgn_str key)
{
	static const struct {
		struct cgn_str text;
		uint16_t word;
	} words[] = {
		{WORD("usage"), WORD_USAGE},
		{WORD("meta_info"), WORD_META},
		{WORD("timings"), WORD_TIMINGS},
		{WORD("message"), WORD_NEST | WORD_PART},
		{WORD("response"), WORD_NEST | WORD_PART | WORD_TEXT},
		{WORD("x_groq"), WORD_NEST},
		{WORD("choices"), WORD_PART},
		{WORD("output"), WORD_PART | WORD_TEXT},
		{WORD("content"), WORD_PART | WORD_TEXT},
		{WORD("text"), WORD_PART | WORD_TEXT},
		{WORD("delta"), WORD_PART | WORD_DELTA | WORD_TEXT},
		{WORD("sequence_number"), WORD_SEQUENCE},
		{WORD("reasoning"), WORD_TEXT},
		{WORD("reasoning_content"), WORD_TEXT},
		{WORD("thinking"), WORD_TEXT},
		{WORD("refusal"), WORD_TEXT},
		{WORD("transcript"), WORD_TEXT},
		{WORD("name"), WORD_TEXT},
		{WORD("partial_json"), WORD_TEXT},
		{WORD("arguments"), WORD_TEXT | WORD_RAW},
		{WORD("input"), WORD_TEXT | WORD_RAW},
		{WORD("logprobs"), WORD_SKIP},
		{WORD("prompt_logprobs"), WORD_SKIP},
		{WORD("top_logprobs"), WORD_SKIP},
	};
	for (size_t i = 0; i < CGN_COUNT(words); i++)
		if (cgn_str_eq(key, words[i].text))
			return words[i].word;
	return 0;
}

/* ---- the event ---- */

static void seen_add(const struct usagescan *s, uint64_t delta, uint64_t other, struct estimate_seen *to)
{
	uint64_t n = s->sequenced ? delta : delta + other;
	if (s->cumulative && s->shape == SHAPE_LINES)
		to->bytes = n > to->bytes ? n : to->bytes;
	else
		to->bytes += n;
	to->events += n > 0 && s->shape == SHAPE_LINES;
}

static void event_end(struct usagescan *s)
{
	seen_add(s, s->delta, s->other, &s->seen);
	s->delta = s->other = 0;
	s->sequenced = s->cumulative = false;
}

static void doc_begin(struct usagescan *s)
{
	s->at = AT_PLAIN;
	s->depth = s->base = s->nest = s->text = s->skip = s->raw = s->counts = 0;
	s->wants_key = s->in_detail = s->in_delta = s->is_text = false;
	s->word = 0;
	s->string = 0;
}

static void text_add(struct usagescan *s, uint64_t n, bool delta)
{
	if (delta)
		s->delta += n;
	else
		s->other += n;
}

/* ---- the document ---- */

static bool in_object(const struct usagescan *s)
{
	return s->depth > 0 && s->depth <= DEPTH_MOST && (s->objects >> (s->depth - 1) & 1) != 0;
}

static bool at_top(const struct usagescan *s)
{
	return s->depth == s->base + 1;
}

static bool in_text(const struct usagescan *s)
{
	return s->text > 0 && s->skip == 0 && s->raw == 0 && s->counts == 0;
}

static bool in_counts(const struct usagescan *s)
{
	return s->counts > 0 && s->depth == s->counts + s->in_detail;
}

/* Return true if names at this place mean something. */
static bool reads_keys(const struct usagescan *s)
{
	if (s->counts > 0)
		return in_counts(s);
	return at_top(s) || in_text(s) || (s->nest > 0 && s->depth == s->nest);
}

static void string_begin(struct usagescan *s)
{
	bool is_key = s->wants_key && in_object(s);
	s->wants_key = false;
	s->string = 0;
	s->key_n = 0;
	s->at = is_key && reads_keys(s) ? AT_KEY : AT_STRING;
	bool part = at_top(s) && (s->word & WORD_PART) != 0 && s->counts == 0;
	s->is_text = !is_key && (s->word & WORD_TEXT) != 0 && (in_text(s) || part);
	if (is_key)
		s->word = 0;
}

static void string_end(struct usagescan *s)
{
	s->at = AT_PLAIN;
	if (s->is_text)
		text_add(s, s->string, at_top(s) ? (s->word & WORD_DELTA) != 0 : s->in_delta);
	s->is_text = false;
}

static void key_end(struct usagescan *s)
{
	struct cgn_str key = {s->key, s->key_n < USAGESCAN_KEY ? s->key_n : 0};
	s->at = AT_PLAIN;
	if (s->counts > 0) {
		usagescan_counts_key(s, key);
		return;
	}
	s->word = word_find(key);
	s->sequenced = s->sequenced || (at_top(s) && (s->word & WORD_SEQUENCE) != 0);
}

static void key_put(struct usagescan *s, char c)
{
	if (s->key_n < USAGESCAN_KEY)
		s->key[s->key_n++] = c;
}

static void key_escape(struct usagescan *s, char c)
{
	static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
	const char *at = strchr(from, c);
	s->at = AT_KEY;
	if (c == 'u') {
		s->at = AT_KEY_HEX;
		s->hex = s->hex_n = 0;
	} else {
		key_put(s, at != NULL && c != '\0' ? to[at - from] : c);
	}
}

/* A name that matters is ASCII: any other character is as good as the next. */
static void key_hex(struct usagescan *s, char c)
{
	char low = (char)(c | 0x20);
	bool digit = c >= '0' && c <= '9', letter = low >= 'a' && low <= 'f';
	s->hex = s->hex << 4 | (uint32_t)(digit ? c - '0' : letter ? low - 'a' + 10 : 0x8000);
	if (++s->hex_n < 4)
		return;
	s->at = AT_KEY;
	key_put(s, s->hex < 0x80 ? (char)s->hex : '\xff');
}

/* Find out what an object or a list at the top, or in a member that may have "usage", is. */
static void part_open(struct usagescan *s, char c)
{
	uint32_t inner = s->depth + 1;
	bool top = at_top(s), object = c == '{';
	static const uint16_t words[] =
		{[COUNTS_USAGE] = WORD_USAGE, [COUNTS_META] = WORD_META, [COUNTS_TIMINGS] = WORD_TIMINGS};
	for (size_t i = 0; i < CGN_COUNT(words) && object; i++) {
		if ((s->word & words[i]) == 0 || !(top || (i == COUNTS_USAGE && s->depth == s->nest)))
			continue;
		s->counts = inner;
		s->cumulative = s->cumulative || i == COUNTS_META;
		usagescan_counts_begin(s, (enum usagescan_kind)i);
	}
	if (top && (s->word & WORD_PART) != 0) {
		s->text = inner;
		s->in_delta = (s->word & WORD_DELTA) != 0;
	}
	if (top && object && (s->word & WORD_NEST) != 0)
		s->nest = inner;
}

static void doc_open(struct usagescan *s, char c)
{
	uint32_t inner = s->depth + 1;
	if (s->counts > 0)
		s->in_detail =
			s->in_detail || (c == '{' && s->depth == s->counts && usagescan_counts_nest(s));
	else if (in_text(s) && (s->word & WORD_SKIP) != 0)
		s->skip = inner;
	else if (in_text(s) && (s->word & WORD_RAW) != 0)
		s->raw = inner;
	else if (s->depth > 0 && (at_top(s) || s->depth == s->nest))
		part_open(s, c);
	if (s->depth == 0)
		s->base = c == '[';
	s->depth = inner;
	if (inner <= DEPTH_MOST) {
		uint64_t bit = UINT64_C(1) << (inner - 1);
		s->objects = c == '{' ? s->objects | bit : s->objects & ~bit;
	}
	s->wants_key = c == '{';
	if (c == '{')
		s->word = 0;
}

static void part_close(uint32_t *part, uint32_t depth)
{
	if (*part == depth)
		*part = 0;
}

static void doc_close(struct usagescan *s)
{
	uint32_t depth = s->depth;
	if (depth == 0)
		return;
	if (s->counts == depth)
		usagescan_counts_end(s);
	if (s->counts > 0 && depth == s->counts + 1)
		s->in_detail = false;
	part_close(&s->counts, depth);
	part_close(&s->raw, depth);
	part_close(&s->skip, depth);
	part_close(&s->text, depth);
	part_close(&s->nest, depth);
	s->depth--;
	s->word = 0;
	s->wants_key = false;
	if (s->shape == SHAPE_DOCUMENT && s->depth == s->base)
		event_end(s);
}

static bool begins_number(char c)
{
	return c == '-' || (c >= '0' && c <= '9');
}

/* Take a byte outside of strings. */
static void plain_byte(struct usagescan *s, char c)
{
	switch (c) {
	case '"':
		string_begin(s);
		break;
	case '{':
	case '[':
		doc_open(s, c);
		break;
	case '}':
	case ']':
		doc_close(s);
		break;
	case ',':
		s->wants_key = in_object(s);
		s->word = s->wants_key ? 0 : s->word;
		break;
	default:
		if (s->counts == 0 || !begins_number(c) || !in_counts(s) || !usagescan_counts_wanted(s))
			break;
		s->at = AT_NUMBER;
		s->number_n = 1;
		s->number[0] = c;
	}
}

static void number_end(struct usagescan *s)
{
	usagescan_counts_number(s);
	s->at = AT_PLAIN;
}

static void number_byte(struct usagescan *s, char c)
{
	if (begins_number(c) || c == '+' || c == '.' || c == 'e' || c == 'E') {
		if (s->number_n < USAGESCAN_NUMBER)
			s->number[s->number_n++] = c;
		return;
	}
	number_end(s);
	plain_byte(s, c);
}

static void doc_byte(struct usagescan *s, char c)
{
	switch ((enum doc_part)s->at) {
	case AT_PLAIN:
		plain_byte(s, c);
		break;
	case AT_NUMBER:
		number_byte(s, c);
		break;
	case AT_STRING:
		if (c == '"')
			string_end(s);
		else
			s->string++;
		s->at = c == '\\' ? AT_STRING_ESCAPE : s->at;
		break;
	case AT_STRING_ESCAPE:
		s->string++;
		s->at = AT_STRING;
		break;
	case AT_KEY:
		if (c == '"')
			key_end(s);
		else if (c == '\\')
			s->at = AT_KEY_ESCAPE;
		else
			key_put(s, c);
		break;
	case AT_KEY_ESCAPE:
		key_escape(s, c);
		break;
	case AT_KEY_HEX:
		key_hex(s, c);
		break;
	}
}

/* Return how many leading bytes of |d| a string cannot end in. */
static size_t string_run(struct cgn_str d)
{
	size_t i = 0;
	while (i < d.n && d.p[i] != '"' && d.p[i] != '\\')
		i++;
	return i;
}

static void doc_feed(struct usagescan *s, struct cgn_str d)
{
	for (size_t i = 0, from = 0; i < d.n; from = i) {
		bool raw = s->raw > 0;
		size_t run = s->at == AT_STRING ? string_run((struct cgn_str){d.p + i, d.n - i}) : 0;
		s->string += run;
		i += run;
		if (i < d.n)
			doc_byte(s, d.p[i++]);
		if (raw || s->raw > 0)
			text_add(s, i - from, s->in_delta);
	}
}

/* ---- the lines of an event stream ---- */

static bool is_line_end(char c)
{
	return c == '\n' || c == '\r';
}

/* Take a byte that ends a line. An empty line ends an event; CR LF is one end. */
static void line_end(struct usagescan *s, char c)
{
	bool second = c == '\n' && s->after_cr;
	s->after_cr = c == '\r';
	if (second)
		return;
	if (s->at == AT_NUMBER)
		number_end(s);
	if (s->line == LINE_START) {
		event_end(s);
		doc_begin(s);
	}
	s->line = LINE_START;
}

/* Take a byte before the content of a line. A brace begins a document; an event's data may have several lines. */
static void line_byte(struct usagescan *s, char c)
{
	s->after_cr = false;
	s->matched = s->line == LINE_START ? 0 : s->matched;
	if (s->line == LINE_START && c == '{') {
		doc_begin(s);
		doc_byte(s, c);
		s->line = LINE_DATA;
		return;
	}
	s->line = c == data_field[s->matched] ? LINE_FIELD : LINE_OTHER;
	s->matched++;
	if (s->line != LINE_FIELD || data_field[s->matched] != '\0')
		return;
	s->line = LINE_DATA;
	if (s->depth == 0)
		doc_begin(s);
}

static size_t line_run(struct cgn_str d)
{
	size_t i = 0;
	while (i < d.n && !is_line_end(d.p[i]))
		i++;
	return i;
}

/* Take bytes of one line. Return how many of |d|. */
static size_t line_feed(struct usagescan *s, struct cgn_str d)
{
	if (is_line_end(d.p[0])) {
		line_end(s, d.p[0]);
		return 1;
	}
	if (s->line == LINE_START || s->line == LINE_FIELD) {
		line_byte(s, d.p[0]);
		return 1;
	}
	size_t n = line_run(d);
	s->after_cr = false;
	if (s->line == LINE_DATA)
		doc_feed(s, (struct cgn_str){d.p, n});
	return n;
}

/* Skip white space and a byte order mark at the beginning of an answer. */
static struct cgn_str shape_find(struct usagescan *s, struct cgn_str d)
{
	while (d.n > 0 && memchr(" \t\r\n\xef\xbb\xbf", d.p[0], 7) != NULL)
		d = (struct cgn_str){d.p + 1, d.n - 1};
	if (d.n > 0)
		s->shape = d.p[0] == '{' || d.p[0] == '[' ? SHAPE_DOCUMENT : SHAPE_LINES;
	return d;
}

void usagescan_feed(struct usagescan *s, struct cgn_str data)
{
	if (s->shape == SHAPE_UNKNOWN)
		data = shape_find(s, data);
	if (s->shape == SHAPE_DOCUMENT) {
		doc_feed(s, data);
		return;
	}
	while (data.n > 0) {
		size_t n = line_feed(s, data);
		data = (struct cgn_str){data.p + n, data.n - n};
	}
}

struct estimate_seen usagescan_seen(const struct usagescan *s)
{
	struct estimate_seen seen = s->seen;
	bool delta = at_top(s) ? (s->word & WORD_DELTA) != 0 : s->in_delta;
	uint64_t open = s->is_text ? s->string : 0;
	seen_add(s, s->delta + (delta ? open : 0), s->other + (delta ? 0 : open), &seen);
	return seen;
}

bool usagescan_usage(struct cgn_str text, struct usage *out)
{
	struct usagescan s = {0};
	usagescan_feed(&s, text);
	if (s.found)
		*out = s.usage;
	return s.found;
}
