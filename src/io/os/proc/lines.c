/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/proc/proc_priv.h"

#define LINE_COST (CGN_SEC / PROC_LINE_RATE)

/* A leaky bucket, stored as the instant at which it is empty. */
static bool may_pass(struct proc_rate *r, cgn_nsec now)
{
	cgn_nsec from = r->full_at > now ? r->full_at : now;
	if (from - now > (PROC_LINE_BURST - 1) * LINE_COST)
		return false;
	r->full_at = from + LINE_COST;
	return true;
}

static void line_give(struct proc_lines *l, struct proc_rate *r, cgn_nsec now, proc_line_fn fn, void *user)
{
	size_t n = l->n;
	if (n > 0 && l->buf[n - 1] == '\r')
		n--;
	l->n = 0;
	l->cut = false;
	if (n == 0)
		return;
	if (!may_pass(r, now)) {
		r->dropped++;
		return;
	}
	unsigned long dropped = r->dropped;
	r->dropped = 0;
	fn(user, (struct cgn_str){l->buf, n}, dropped);
}

static void line_keep(struct proc_lines *l, const char *p, size_t n)
{
	size_t room = sizeof l->buf - l->n;
	if (l->cut)
		return;
	l->cut = n > room;
	n = n < room ? n : room;
	memcpy(l->buf + l->n, p, n);
	l->n += n;
}

void proc_lines_feed(struct proc_lines *l, struct proc_rate *r, const void *p, size_t n, cgn_nsec now,
	proc_line_fn fn, void *user)
{
	const char *at = p;
	while (n > 0) {
		const char *end = memchr(at, '\n', n);
		size_t part = end != NULL ? (size_t)(end - at) : n;
		line_keep(l, at, part);
		if (end == NULL)
			return;
		line_give(l, r, now, fn, user);
		at += part + 1;
		n -= part + 1;
	}
}

void proc_lines_end(struct proc_lines *l, struct proc_rate *r, cgn_nsec now, proc_line_fn fn, void *user)
{
	line_give(l, r, now, fn, user);
}
