/* SPDX-License-Identifier: Apache-2.0 */
/* Assembles bytes into whole events. */
#include "policy/answer/resume/resume.h"

#include <stdlib.h>

#include "base/core/err.h"
#include "policy/answer/resume/chunk_priv.h"

#define KEEP_BYTES 2048 /* Buffer that an idle stream may keep. */

static void on_event(void *arg, struct cgn_str name, struct cgn_str data);

static void scan_restart(struct resume *s)
{
	sse_scan_fini(&s->event.scan);
	sse_scan_init(&s->event.scan, RESUME_EVENT_MAX, on_event, s);
	s->event.in_line = s->event.after_cr = s->event.crlf = s->event.ending = false;
	s->event.pending.n = s->event.scanned = 0;
}

struct resume *resume_new(enum prompt_api api, struct json_val body)
{
	struct resume *s = CGN_NEW(struct resume);
	struct json_val options;
	s->tag = RESUME_TAG;
	s->api = api;
	s->include_usage =
		json_get(body, "stream_options", &options) && json_get_bool(options, "include_usage", false);
	s->greedy = resume_is_greedy(body);
	s->repeats = s->greedy && resume_uncontinued(api, body) != NULL;
	s->text.limit = RESUME_TEXT_MAX;
	s->event.pending.limit = RESUME_EVENT_MAX;
	scan_restart(s);
	return s;
}

void resume_free(struct resume **take)
{
	struct resume *s = CGN_TAKE_LIVE(take, RESUME_TAG);
	if (s == NULL)
		return;
	s->tag = 0;
	sse_scan_fini(&s->event.scan);
	for (size_t i = 0; i < RESUME_NAMES; i++)
		cgn_buf_fini(&s->names[i]);
	cgn_buf_fini(&s->text);
	cgn_buf_fini(&s->event.pending);
	cgn_buf_fini(&s->piece);
	free(s);
}

void resume_begin(struct resume *s, const struct engine_resume *how)
{
	CGN_LIVE(s, RESUME_TAG);
	s->how = how;
	s->again = s->opened;
	s->events = s->bytes = s->probs = 0;
	s->had_probs = s->shown_probs;
	s->repeating = s->repeats && s->again;
	s->overlap = s->repeating ? 0 : s->kept;
	s->overlap_end = s->text.n;
	scan_restart(s);
}

const char *resume_lost(const struct resume *s)
{
	CGN_LIVE(s, RESUME_TAG);
	return s->lost;
}

size_t resume_bytes(const struct resume *s)
{
	CGN_LIVE(s, RESUME_TAG);
	return sizeof *s + s->text.cap + s->event.pending.cap + s->piece.cap + s->event.scan.line.cap +
		s->event.scan.data.cap;
}

enum resume_need resume_need(const struct resume *s)
{
	CGN_LIVE(s, RESUME_TAG);
	if (s->done)
		return RESUME_NEEDS_NOTHING;
	return s->finished && (!s->include_usage || s->usage_out) ? RESUME_NEEDS_DONE : RESUME_NEEDS_ENGINE;
}

struct cgn_str resume_pending(const struct resume *s)
{
	CGN_LIVE(s, RESUME_TAG);
	return cgn_buf_view(&s->event.pending);
}

void resume_done(struct resume *s, struct cgn_buf *out)
{
	CGN_LIVE(s, RESUME_TAG);
	s->done = true;
	sse_event(out, NULL, CGN_STR("[DONE]"));
}

struct cgn_str resume_text(const struct resume *s)
{
	CGN_LIVE(s, RESUME_TAG);
	return (struct cgn_str){s->text.p, s->repeats ? 0 : s->kept};
}

void resume_repeat(struct resume *s)
{
	CGN_LIVE(s, RESUME_TAG);
	CGN_MUST(s->greedy && !s->opened);
	s->repeats = true;
}

bool resume_differs(const struct resume *s)
{
	CGN_LIVE(s, RESUME_TAG);
	return s->differs;
}

void resume_counted(struct resume *s, uint64_t tokens)
{
	CGN_LIVE(s, RESUME_TAG);
	if (!s->inexact || s->repeats || s->kept == 0 || tokens == 0 || tokens > s->kept)
		return;
	s->tokens = tokens + (s->tokens > s->kept_tokens ? s->tokens - s->kept_tokens : 0);
	s->kept_tokens = tokens;
}

/* ---- events ---- */

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct resume *s = arg;
	struct chunk c;
	bool end = cgn_str_is(data, "[DONE]"), sound = !end && resume_chunk_read(s->api, data, &c);
	s->done = s->done || end;
	if (!sound && !end)
		s->lost = RESUME_LACKS_SHAPE;
	if (!s->again) {
		s->piece.n = 0;
		if (sound && c.text.raw.p != NULL)
			json_str_to(c.text, &s->piece);
		if (sound)
			resume_chunk_learn(s, &c, cgn_buf_view(&s->piece), s->piece.n);
	} else if (s->differs) {
		return; /* The answer ends here. */
	} else if (sound) {
		resume_chunk_rewrite(s, name, &c, s->out);
	} else {
		resume_chunk_name(name, s->out);
		sse_event(s->out, NULL, data);
	}
	if (s->piece.bad)
		s->lost = RESUME_LACKS_MEMORY;
}

static bool has_lines(struct cgn_str raw)
{
	for (size_t i = 0; i < raw.n; i++)
		if (raw.p[i] != '\r' && raw.p[i] != '\n')
			return true;
	return false;
}

/* Take a whole event with its empty line, or the late part of a line end. */
static void take_event(struct resume *s, struct cgn_str raw)
{
	uint64_t lost = s->event.scan.lost_events;
	if (!s->again)
		cgn_buf_str(s->out, raw);
	if (s->again && !has_lines(raw))
		return;
	sse_scan_feed(&s->event.scan, raw);
	if (s->event.scan.lost_events != lost)
		s->lost = RESUME_LACKS_MEMORY;
}

/* Return where the event at the front of |pending| ends; bytes before |scanned| were looked at. Return 0 when
 * it is incomplete. */
static size_t event_end(struct resume *s)
{
	for (; s->event.scanned < s->event.pending.n; s->event.scanned++) {
		char c = s->event.pending.p[s->event.scanned];
		bool second = s->event.after_cr && c == '\n'; /* Second half of CRLF. */
		s->event.after_cr = c == '\r';
		s->event.crlf = second || (s->event.crlf && c != '\n' && !(c == '\r' && s->event.in_line));
		if (s->event.ending) {
			s->event.ending = false;
			s->event.scanned += second;
			return s->event.scanned;
		}
		if (second)
			continue;
		if (c != '\r' && c != '\n') {
			s->event.in_line = true;
		} else if (s->event.in_line) {
			s->event.in_line = false;
		} else if (c == '\r' && s->event.crlf) {
			s->event.ending = true;
		} else {
			s->event.scanned++;
			return s->event.scanned;
		}
	}
	return 0;
}

static void feed_through(struct resume *s, struct cgn_buf *out)
{
	cgn_buf_str(out, cgn_buf_view(&s->event.pending));
	cgn_buf_fini(&s->event.pending);
	s->event.scanned = 0;
}

void resume_feed(struct resume *s, struct cgn_str data, struct cgn_buf *out)
{
	CGN_LIVE(s, RESUME_TAG);
	if (s->lost != NULL && !s->again) {
		cgn_buf_str(out, data);
		return;
	}
	s->out = out;
	cgn_buf_str(&s->event.pending, data);
	if (s->event.pending.bad) {
		s->lost = RESUME_LACKS_MEMORY;
		s->again = false;
		feed_through(s, out);
		cgn_buf_str(out, data);
		return;
	}
	size_t from = 0;
	for (size_t end; (end = event_end(s)) > 0; from = end)
		take_event(s, (struct cgn_str){s->event.pending.p + from, end - from});
	cgn_buf_eat(&s->event.pending, from);
	s->event.scanned -= from;
	if (s->event.pending.n == 0 && s->event.pending.cap > KEEP_BYTES)
		cgn_buf_fini(&s->event.pending);
	if (s->lost != NULL && !s->again)
		feed_through(s, out);
}

void resume_flush(struct resume *s, struct cgn_buf *out)
{
	CGN_LIVE(s, RESUME_TAG);
	feed_through(s, out);
}

void resume_give_up(struct resume *s, const char *why, struct cgn_buf *out)
{
	CGN_LIVE(s, RESUME_TAG);
	if (s->lost == NULL)
		s->lost = why;
	if (!s->again)
		feed_through(s, out);
	cgn_buf_fini(&s->text);
	s->text.limit = RESUME_TEXT_MAX;
	s->kept = s->overlap = s->overlap_end = 0;
}
