/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sse/sse.h"

#include "base/core/err.h"

static const char bom[] = "\xef\xbb\xbf";
#define KEEP_BYTES 1024 /* Bytes that an idle scanner may keep allocated. */

void sse_scan_init(struct sse_scan *s, size_t max_event_bytes, sse_event_fn on_event, void *arg)
{
	CGN_MUST(max_event_bytes > 0);
	*s = (struct sse_scan){.on_event = on_event, .arg = arg};
	s->data.limit = max_event_bytes;
	/* The limit applies to the data, however it is split. */
	s->line.limit = max_event_bytes + strlen("data: ");
}

void sse_scan_fini(struct sse_scan *s)
{
	cgn_buf_fini(&s->line);
	cgn_buf_fini(&s->data);
}

static void pending_empty(struct cgn_buf *b)
{
	if (b->cap > KEEP_BYTES)
		cgn_buf_fini(b);
	b->n = 0;
	b->bad = false;
}

static struct cgn_str line_after(struct cgn_str s, size_t n)
{
	return (struct cgn_str){s.p + n, s.n - n};
}

/* Copy the held line: its memory is about to go away, or another line follows. */
static void keep_held(struct sse_scan *s)
{
	if (s->is_held)
		cgn_buf_str(&s->data, s->held);
	s->is_held = false;
	s->lost = s->lost || s->data.bad;
}

static void add_data(struct sse_scan *s, struct cgn_str value)
{
	if (!s->has_data) {
		s->has_data = s->is_held = true;
		s->held = value;
		s->lost = s->lost || value.n > s->data.limit;
		return;
	}
	keep_held(s);
	cgn_buf_char(&s->data, '\n');
	cgn_buf_str(&s->data, value);
	s->lost = s->lost || s->data.bad;
}

static void set_name(struct sse_scan *s, struct cgn_str value)
{
	/* A longer name has no meaning here. */
	s->name_n = (uint8_t)(value.n <= sizeof s->name ? value.n : 0);
	if (s->name_n > 0)
		memcpy(s->name, value.p, s->name_n);
}

static void end_event(struct sse_scan *s)
{
	if (s->lost)
		s->lost_events++;
	else if (s->has_data)
		s->on_event(s->arg, (struct cgn_str){s->name, s->name_n},
			s->is_held ? s->held : cgn_buf_view(&s->data));
	pending_empty(&s->data);
	s->has_data = s->is_held = s->lost = false;
	s->name_n = 0;
}

/* Return true for a comment and for a field of the format that says nothing about an event's content. */
static bool is_silent(struct cgn_str field)
{
	return field.n == 0 || cgn_str_is(field, "id") || cgn_str_is(field, "retry");
}

static void take_line(struct sse_scan *s, struct cgn_str line)
{
	if (line.n == 0) {
		end_event(s);
		return;
	}
	const char *colon = memchr(line.p, ':', line.n);
	struct cgn_str field = {line.p, colon != NULL ? (size_t)(colon - line.p) : line.n};
	struct cgn_str value = line_after(line, colon != NULL ? field.n + 1 : line.n);
	if (value.n > 0 && value.p[0] == ' ')
		value = line_after(value, 1);
	if (cgn_str_is(field, "data"))
		add_data(s, value);
	else if (cgn_str_is(field, "event"))
		set_name(s, value);
	else if (s->on_line != NULL && !is_silent(field))
		s->on_line(s->arg, line, field, value);
}

/* The line does not fit. For a comment nothing is lost. */
static void scan_overflow(struct sse_scan *s, struct cgn_str part)
{
	char first = s->line.n > 0 ? s->line.p[0] : part.p[0];
	s->lost = s->lost || first != ':';
}

/* A line that came in parts lives in s->line, which the next such line reuses. */
static void end_line(struct sse_scan *s, struct cgn_str last_part)
{
	if (s->skip_line) {
		s->skip_line = false;
	} else if (s->line.n == 0) {
		take_line(s, last_part);
	} else {
		cgn_buf_str(&s->line, last_part);
		if (s->line.bad)
			scan_overflow(s, last_part);
		else
			take_line(s, cgn_buf_view(&s->line));
		keep_held(s);
	}
	pending_empty(&s->line);
}

static void begin_line(struct sse_scan *s, struct cgn_str part)
{
	if (!s->skip_line)
		cgn_buf_str(&s->line, part);
	if (s->line.bad) {
		scan_overflow(s, part);
		s->skip_line = true;
		pending_empty(&s->line);
	}
}

/* Skip a byte order mark at the start of the stream; its bytes may come one by one. */
static struct cgn_str skip_bom(struct sse_scan *s, struct cgn_str chunk)
{
	while (s->bom_seen < sizeof bom - 1 && chunk.n > 0) {
		if (chunk.p[0] != bom[s->bom_seen]) {
			/* The bytes were not a byte order mark. */
			begin_line(s, (struct cgn_str){bom, s->bom_seen});
			s->bom_seen = sizeof bom - 1;
			break;
		}
		s->bom_seen++;
		chunk = line_after(chunk, 1);
	}
	return chunk;
}

static const char *line_end(struct cgn_str s)
{
	const char *lf = memchr(s.p, '\n', s.n);
	const char *cr = memchr(s.p, '\r', lf != NULL ? (size_t)(lf - s.p) : s.n);
	return cr != NULL ? cr : lf;
}

void sse_scan_feed(struct sse_scan *s, struct cgn_str chunk)
{
	chunk = skip_bom(s, chunk);
	while (chunk.n > 0) {
		if (s->after_cr && chunk.p[0] == '\n')
			chunk = line_after(chunk, 1); /* The second half of CRLF. */
		s->after_cr = false;
		const char *end = chunk.n > 0 ? line_end(chunk) : NULL;
		if (end == NULL) {
			begin_line(s, chunk);
			break;
		}
		struct cgn_str line = {chunk.p, (size_t)(end - chunk.p)};
		end_line(s, line);
		s->after_cr = *end == '\r';
		chunk = line_after(chunk, line.n + 1);
	}
	keep_held(s);
}

void sse_scan_end(struct sse_scan *s)
{
	sse_scan_feed(s, CGN_STR("\n\n"));
}

static void put_line(struct cgn_buf *b, const char *field, struct cgn_str value)
{
	cgn_buf_putz(b, field);
	cgn_buf_putz(b, ": ");
	cgn_buf_str(b, value);
	cgn_buf_char(b, '\n');
}

void sse_event(struct cgn_buf *b, const char *name, struct cgn_str data)
{
	if (name != NULL)
		put_line(b, "event", cgn_str_of(name));
	for (const char *end; data.n > 0 && (end = line_end(data)) != NULL;) {
		struct cgn_str line = {data.p, (size_t)(end - data.p)};
		put_line(b, "data", line);
		size_t width = *end == '\r' && data.n > line.n + 1 && end[1] == '\n' ? 2 : 1;
		data = line_after(data, line.n + width);
	}
	put_line(b, "data", data);
	cgn_buf_char(b, '\n');
}

/* ---- counting ---- */

static const char mark[] = "data:";
#define MARK (sizeof mark - 1)

/* Return how many bytes at the end of |s| may begin a mark. */
static uint8_t mark_tail(struct cgn_str s)
{
	size_t n = s.n < MARK - 1 ? s.n : MARK - 1;
	while (n > 0 && memcmp(s.p + s.n - n, mark, n) != 0)
		n--;
	return (uint8_t)n;
}

size_t sse_marks(uint8_t *begun, struct cgn_str chunk)
{
	size_t count = 0, left = MARK - *begun, n = chunk.n < left ? chunk.n : left;
	if (chunk.n == 0)
		return 0;
	if (*begun > 0 && memcmp(chunk.p, mark + *begun, n) == 0) {
		*begun = n < left ? (uint8_t)(*begun + n) : 0;
		count = n == left;
		chunk = (struct cgn_str){chunk.p + n, chunk.n - n};
		if (chunk.n == 0)
			return count;
	}
	for (const char *p = chunk.p, *end = p + chunk.n;
		(p = memmem(p, (size_t)(end - p), mark, MARK)) != NULL; p += MARK)
		count++;
	*begun = mark_tail(chunk);
	return count;
}

/* Return true if a blank line ends before |i|. */
static bool is_border(const char *p, size_t i)
{
	if (i < 2 || (p[i - 1] != '\n' && p[i - 1] != '\r'))
		return false;
	if (p[i - 1] == '\r')
		return p[i - 2] == '\r';
	return p[i - 2] == '\n' || (p[i - 2] == '\r' && i > 2 && (p[i - 3] == '\n' || p[i - 3] == '\r'));
}

size_t sse_border(struct cgn_str stream, size_t from)
{
	for (size_t i = stream.n; i > from; i--)
		if (is_border(stream.p, i))
			return i;
	return 0;
}

size_t sse_event_end(struct cgn_str stream)
{
	for (size_t i = 1; i <= stream.n; i++)
		if (is_border(stream.p, i))
			return i;
	return 0;
}
