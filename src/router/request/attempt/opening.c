/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/attempt/opening.h"

#define HELD_MOST ((size_t)1024 * 1024) /* Bytes of an answer whose owner waits for something else. */

static struct cgn_str header_find(const struct gw_attempt *a, const char *name)
{
	for (size_t i = 0; i < a->n_headers; i++)
		if (cgn_str_eq_nocase(a->headers[i].name, cgn_str_of(name)))
			return cgn_str_trim(a->headers[i].value);
	return (struct cgn_str){NULL, 0};
}

void gw_opening_head(struct gw_attempt *a)
{
	opening_init(&a->opening.reader, a->status == 200 ? a->opening.route : OPENING_WHATEVER,
		header_find(a, "content-type"), header_find(a, "content-encoding"));
	if (a->status != 200)
		a->opening.reader.says = OPENING_ANSWER; /* A page of HTML, too. */
}

static bool is_held(const struct gw_attempt *a)
{
	return a->first_data.p != NULL && a->first_data.p == a->opening.held.p;
}

bool gw_opening_data(struct gw_attempt *a, struct cgn_str data)
{
	struct cgn_buf *held = &a->opening.held;
	enum opening_says says = opening_feed(&a->opening.reader, data);
	if (a->first_data.p == NULL) {
		a->opening.since = cgn_loop_now(a->w->loop);
		a->first_data = data;
	} else {
		held->limit = HELD_MOST;
		cgn_buf_str(held, data);
		a->first_data = cgn_buf_view(held);
	}
	if (held->bad) {
		gw_attempt_refuse(a, CGN_NO_MEMORY);
		return false;
	}
	if (says == OPENING_MORE && a->first_data.n >= GW_OPENING_MAX)
		says = opening_give_up(&a->opening.reader);
	return says != OPENING_MORE;
}

void gw_opening_keep(struct gw_attempt *a)
{
	struct cgn_buf *held = &a->opening.held;
	if (a->first_data.p == NULL || is_held(a))
		return;
	held->limit = HELD_MOST;
	cgn_buf_str(held, a->first_data);
	a->first_data = cgn_buf_view(held);
	if (held->bad)
		gw_attempt_refuse(a, CGN_NO_MEMORY);
}

void gw_opening_drop(struct gw_attempt *a)
{
	cgn_buf_fini(&a->opening.held);
	a->first_data = (struct cgn_str){NULL, 0};
}

enum opening_says gw_opening_says(struct gw_attempt *a)
{
	if (!a->head_seen)
		return OPENING_MORE;
	if (a->call.closed && a->call.why.code == CGN_FINE)
		return opening_end(&a->opening.reader);
	bool late = a->first_data.p != NULL &&
		cgn_since(cgn_loop_now(a->w->loop), a->opening.since) >= GW_OPENING_WAIT;
	return late ? opening_give_up(&a->opening.reader) : a->opening.reader.says;
}
