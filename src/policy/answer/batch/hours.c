/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/batch/hours.h"

#define DAY_MINUTES 1440U
#define DAY_S       86400U

/* Read "HH:MM", up to 24:00. */
static bool time_read(struct cgn_str s, uint16_t *out)
{
	uint64_t hour, minute;
	if (s.n != 5 || s.p[2] != ':' || !cgn_str_u64((struct cgn_str){s.p, 2}, &hour) ||
		!cgn_str_u64((struct cgn_str){s.p + 3, 2}, &minute) || minute > 59 ||
		60 * hour + minute > DAY_MINUTES)
		return false;
	*out = (uint16_t)(60 * hour + minute);
	return true;
}

CGN_RC batch_hours_add(struct batch_hours *h, struct cgn_str text, struct cgn_err *err)
{
	struct cgn_str rest = text, first = cgn_str_split(&rest, '-');
	uint16_t from, to;
	if (h->n == BATCH_SPANS_MAX)
		return CGN_FAIL(err, INVALID, "more than %d spans of hours", BATCH_SPANS_MAX);
	if (rest.p == NULL || !time_read(first, &from) || !time_read(rest, &to) || from == DAY_MINUTES)
		return CGN_FAIL(err, INVALID, "\"%.*s\" is not HH:MM-HH:MM (UTC), such as 22:00-06:00",
			(int)(text.n < 40 ? text.n : 40), text.p);
	if (from == to)
		return CGN_FAIL(err, INVALID, "\"%.*s\" is an empty span; 00:00-24:00 is the whole day",
			CGN_STR_ARG(text));
	h->spans[h->n].from = from;
	h->spans[h->n++].to = to;
	return CGN_OK;
}

static bool hours_open(const struct batch_hours *h, uint64_t now_s)
{
	unsigned minute = (unsigned)(now_s % DAY_S / 60);
	for (size_t i = 0; i < h->n; i++) {
		unsigned from = h->spans[i].from, to = h->spans[i].to;
		if (from < to ? minute >= from && minute < to : minute >= from || minute < to)
			return true;
	}
	return h->n == 0;
}

/* The first second from |now_s| on that is in the hours. */
static uint64_t hours_next(const struct batch_hours *h, uint64_t now_s)
{
	uint64_t next = UINT64_MAX, day = now_s - now_s % DAY_S;
	if (hours_open(h, now_s))
		return now_s;
	for (size_t i = 0; i < h->n; i++) {
		uint64_t at = day + 60U * h->spans[i].from;
		if (at < now_s)
			at += DAY_S;
		next = at < next ? at : next;
	}
	return next;
}

/* The time from which the batch goes in any case. */
static uint64_t last_start(const struct batch_gate *g, const struct batch_moment *m)
{
	uint64_t window = m->expires_s > m->created_s ? m->expires_s - m->created_s : 0;
	uint64_t before = g->margin_s < window / 2 ? g->margin_s : window / 2;
	if (2 * m->need_s > (double)before)
		before = 2 * m->need_s < (double)window ? (uint64_t)(2 * m->need_s) : window;
	return m->expires_s - before;
}

enum batch_wait batch_gate_at(const struct batch_gate *g, const struct batch_moment *m, uint64_t *until_s)
{
	uint64_t last = last_start(g, m);
	*until_s = 0;
	if (m->now_s >= last)
		return BATCH_GOES;
	if (!hours_open(&g->hours, m->now_s)) {
		uint64_t next = hours_next(&g->hours, m->now_s);
		*until_s = next < last ? next : last;
		return BATCH_WAITS_HOURS;
	}
	if (g->max_price <= 0 || m->price <= g->max_price)
		return BATCH_GOES;
	*until_s = last;
	return BATCH_WAITS_PRICE;
}

const char *batch_wait_text(enum batch_wait w)
{
	static const char *const texts[] =
		{[BATCH_GOES] = "", [BATCH_WAITS_HOURS] = "hours", [BATCH_WAITS_PRICE] = "price"};
	return texts[w];
}
