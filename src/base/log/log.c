/* SPDX-License-Identifier: Apache-2.0 */
/* log: a line is built on the stack and written with one write(2), so that lines of several threads or
 * processes do not mix. A line that would exceed LINE_MAX_BYTES loses its last fields, but keeps its
 * shape. */
#include "base/log/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/core/buf.h"
#include "base/json/json.h"

#define LINE_MAX_BYTES  4096 /* PIPE_BUF: a pipe takes it in one piece. */
#define TAIL_BYTES      64   /* Reserved for the mark of a cut, the bracket and the newline. */
#define FIELD_MAX_BYTES 1024 /* A longer string is cut, so that one field does not displace the others. */

/* Set at start and on reload; read by any thread. The program's name is set once, before there are
 * threads. */
static _Atomic(enum log_level) log_min = LOG_INFO;
static _Atomic(enum log_format) log_shape = LOG_HUMAN;
static atomic_bool log_journal;
static char log_program[32] = "cognitora";

static const char *const level_names[] =
	{[LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn", [LOG_ERROR] = "error"};

void log_setup(const char *program, enum log_level min, enum log_format format)
{
	/* A reload sets the same name again while other threads log. */
	if (strcmp(log_program, program) != 0)
		(void)cgn_str_copyz(log_program, sizeof log_program, cgn_str_of(program));
	atomic_store(&log_min, min);
	atomic_store(&log_shape, format);
}

void log_to_journal(bool on)
{
	atomic_store(&log_journal, on);
}

bool log_wants(enum log_level level)
{
	return level >= atomic_load_explicit(&log_min, memory_order_relaxed);
}

/* The only use of the wall clock in base: an entry needs its time, and no decision depends on it. */
static void put_time(struct cgn_buf *b)
{
	/* The text of the last entry's second. */
	static _Thread_local struct {
		time_t second;
		size_t n;
		char text[32];
	} last;
	struct timespec now;
	(void)clock_gettime(CLOCK_REALTIME, &now);
	if (last.n == 0 || now.tv_sec != last.second) {
		struct tm utc;
		(void)gmtime_r(&now.tv_sec, &utc);
		last.n = strftime(last.text, sizeof last.text, "%Y-%m-%dT%H:%M:%S", &utc);
		last.second = now.tv_sec;
	}
	cgn_buf_add(b, last.text, last.n);
	unsigned ms = (unsigned)(now.tv_nsec / 1000000);
	const char fraction[] = {'.', (char)('0' + ms / 100), (char)('0' + ms / 10 % 10),
		(char)('0' + ms % 10), 'Z'};
	cgn_buf_add(b, fraction, sizeof fraction);
}

static struct cgn_str text_clip(struct cgn_str s)
{
	if (s.n <= FIELD_MAX_BYTES)
		return s;
	s.n = FIELD_MAX_BYTES;
	while (s.n > 0 && ((unsigned char)s.p[s.n] & 0xc0) == 0x80) /* Do not cut inside a character. */
		s.n--;
	return s;
}

/* Write milliseconds with up to three digits behind the point. */
static void put_milliseconds(struct json_out *o, uint64_t ns)
{
	uint64_t us = ns / 1000;
	unsigned part = (unsigned)(us % 1000);
	char digits[] = {'.', (char)('0' + part / 100), (char)('0' + part / 10 % 10),
		(char)('0' + part % 10)};
	size_t n = sizeof digits;
	json_put_u64(o, us / 1000);
	while (digits[n - 1] == '0')
		n--;
	if (n > 1)
		cgn_buf_add(o->b, digits, n);
}

static void put_json_value(struct json_out *o, const struct log_field *f)
{
	switch (f->kind) {
	case LOG_F_STR:
		json_put_str(o, text_clip(f->s));
		break;
	case LOG_F_I64:
		json_put_i64(o, f->i);
		break;
	case LOG_F_U64:
		json_put_u64(o, f->u);
		break;
	case LOG_F_F64:
		json_put_f64(o, f->f);
		break;
	case LOG_F_BOOL:
		json_put_bool(o, f->b);
		break;
	case LOG_F_DUR:
		put_milliseconds(o, f->u);
		break;
	}
}

static void put_json_key(struct json_out *o, const struct log_field *f)
{
	char key[64];
	if (f->kind != LOG_F_DUR) {
		json_key(o, f->key);
		return;
	}
	(void)snprintf(key, sizeof key, "%s%s", f->key, f->kind == LOG_F_DUR ? "_ms" : "");
	json_key(o, key);
}

static void put_json_head(struct json_out *o, enum log_level level, const char *event)
{
	json_open(o, '{');
	json_key(o, "time");
	cgn_buf_char(o->b, '"');
	put_time(o->b);
	cgn_buf_char(o->b, '"');
	o->comma = true;
	json_key_z(o, "level", level_names[level]);
	json_key_z(o, "program", log_program);
	json_key_z(o, "event", event);
}

static bool is_bare(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] > '~' || strchr("\"\\=", s.p[i]) != NULL)
			return false;
	return s.n > 0;
}

/* Lines for people go to terminals, which obey some characters that JSON does not escape. */
static void put_human_value(struct cgn_buf *b, const struct log_field *f)
{
	char room[6 * FIELD_MAX_BYTES + 8]; /* A byte becomes six characters at most. */
	struct cgn_buf json = cgn_buf_over(room, sizeof room);
	struct json_out o = json_out_to(&json);
	if (f->kind == LOG_F_STR && is_bare(text_clip(f->s))) {
		cgn_buf_str(b, text_clip(f->s));
	} else {
		put_json_value(&o, f);
		cgn_buf_shown(b, cgn_buf_view(&json));
	}
	if (f->kind == LOG_F_DUR)
		cgn_buf_putz(b, "ms");
}

/* Append a whole field or nothing. */
static bool put_field(struct json_out *o, enum log_format format, const struct log_field *f)
{
	struct json_out before = *o;
	size_t n = o->b->n;
	if (format == LOG_JSON) {
		put_json_key(o, f);
		put_json_value(o, f);
	} else {
		cgn_buf_fmt(o->b, " %s=", f->key);
		put_human_value(o->b, f);
	}
	if (!o->b->bad)
		return true;
	*o = before;
	o->b->n = n;
	o->b->bad = false;
	return false;
}

static void put_line(struct cgn_buf *b, enum log_format format, enum log_level level, const char *event,
	const struct log_field *fields, size_t n)
{
	struct json_out o = json_out_to(b);
	if (format == LOG_JSON) {
		put_json_head(&o, level, event);
	} else {
		put_time(b);
		cgn_buf_fmt(b, " %-5s %s %s", level_names[level], log_program, event);
	}
	bool whole = true;
	for (size_t i = 0; i < n; i++)
		whole = put_field(&o, format, &fields[i]) && whole;
	b->limit += TAIL_BYTES;
	const struct log_field cut = F_BOOL("cut", true);
	if (!whole)
		(void)put_field(&o, format, &cut);
	if (format == LOG_JSON)
		json_close(&o, '}');
	cgn_buf_char(b, '\n');
}

/* Make the line in |line|, of LINE_MAX_BYTES. */
static struct cgn_str line_make(char *line, enum log_format format, enum log_level level, const char *event,
	const struct log_field *fields, size_t n)
{
	struct cgn_buf b = cgn_buf_over(line, LINE_MAX_BYTES);
	b.limit -= TAIL_BYTES;
	put_line(&b, format, level, event, fields, n);
	return cgn_buf_view(&b);
}

void log_event(enum log_level level, const char *event, const struct log_field *fields, size_t n)
{
	static const char marks[][4] =
		{[LOG_DEBUG] = "<7>", [LOG_INFO] = "<6>", [LOG_WARN] = "<4>", [LOG_ERROR] = "<3>"};
	char line[3 + LINE_MAX_BYTES];
	size_t mark = atomic_load_explicit(&log_journal, memory_order_relaxed) ? 3 : 0;
	enum log_format format = atomic_load_explicit(&log_shape, memory_order_relaxed);
	memcpy(line, marks[level], mark);
	struct cgn_str text = line_make(line + mark, format, level, event, fields, n);
	ssize_t written = write(STDERR_FILENO, line, mark + text.n);
	(void)written; /* A failed write of a log line cannot be reported. */
}

void log_line(struct cgn_buf *out, enum log_level level, const char *event, const struct log_field *fields,
	size_t n)
{
	char line[LINE_MAX_BYTES];
	cgn_buf_str(out, line_make(line, LOG_JSON, level, event, fields, n));
}

/* ---- lines that others can multiply ---- */

/* All places that have left out a line; only grows. */
static _Atomic(struct log_limit *) log_limited;

static uint64_t monotonic_now(void)
{
	struct timespec now;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void limit_list(struct log_limit *l, const char *event)
{
	if (atomic_exchange(&l->listed, true))
		return;
	l->event = event;
	l->next = atomic_load(&log_limited);
	while (!atomic_compare_exchange_weak(&log_limited, &l->next, l))
		continue;
}

/* Begin a new period if the last one is over, and tell what it left out. */
static void limit_turn(struct log_limit *l, const char *event, uint64_t now)
{
	uint64_t since = atomic_load(&l->since);
	if (since != 0 && cgn_since(now, since) < LOG_LIMIT_EVERY)
		return;
	if (!atomic_compare_exchange_strong(&l->since, &since, now))
		return; /* Another thread does it. */
	atomic_store(&l->lines, 0);
	uint32_t left = atomic_exchange(&l->left, 0);
	if (left > 0)
		cgn_log(WARN, "log.left_out", F_STR("of", event), F_U64("lines", left),
			F_DUR("within", cgn_since(now, since)));
}

bool log_limit_pass(struct log_limit *l, const char *event)
{
	limit_turn(l, event, monotonic_now());
	if (atomic_fetch_add(&l->lines, 1) < LOG_LIMIT_LINES)
		return true;
	atomic_fetch_add(&l->left, 1);
	limit_list(l, event);
	return false;
}

void log_limits_tell(void)
{
	uint64_t now = monotonic_now();
	for (struct log_limit *l = atomic_load(&log_limited); l != NULL; l = l->next)
		if (atomic_load(&l->left) > 0)
			limit_turn(l, l->event, now);
}
