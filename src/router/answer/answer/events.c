/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/answer/events.h"

#include "base/sse/sse.h"
#include "policy/answer/opening/opening.h"
#include "router/request/hooks/hooks.h"
#include "router/request/streamusage/streamusage.h"

#define BORDER \
	((size_t)3) /* Bytes of a blank line, with the end of the line before it, that may have come. */

/* Send whole events. */
static void whole_send(struct gw_req *r, struct cgn_str events)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf copy = {0};
	struct cgn_str shown = gw_streamusage_shown(r, events, &copy);
	if (copy.bad)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
	else if (shown.n > 0)
		gw_out_body(r, shown);
}

static void part_send(struct gw_req *r, size_t n)
{
	struct cgn_buf *part = &r->answer.part;
	if (r->answer.torn)
		gw_out_body(r, (struct cgn_str){part->p, n});
	else
		whole_send(r, (struct cgn_str){part->p, n});
	cgn_buf_eat(part, n);
	if (part->n == 0)
		cgn_buf_fini(part);
}

/* Send the part of an event that is longer than GW_EVENT_MOST. Its last bytes wait: they may begin the blank line. */
static void part_bound(struct gw_req *r)
{
	struct gw_answer *to = &r->answer;
	if (to->part.n <= (to->torn ? BORDER : GW_EVENT_MOST))
		return;
	to->torn = true;
	part_send(r, to->part.n - BORDER);
}

static void part_add(struct gw_req *r, struct cgn_str data)
{
	struct gw_answer *to = &r->answer;
	size_t from = to->part.n;
	cgn_buf_str(&to->part, data);
	if (to->part.bad) {
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
		return;
	}
	size_t end = sse_border(cgn_buf_view(&to->part), from);
	if (end > 0) {
		to->torn = false;
		part_send(r, end);
	}
	part_bound(r);
}

void gw_events_send(struct gw_req *r, struct cgn_str data)
{
	struct gw_answer *to = &r->answer;
	if (!to->comments) {
		gw_out_body(r, data);
		return;
	}
	size_t end = to->part.n == 0 && !to->torn ? sse_border(data, 0) : 0;
	if (end > 0)
		whole_send(r, (struct cgn_str){data.p, end});
	if (end < data.n)
		part_add(r, (struct cgn_str){data.p + end, data.n - end});
}

void gw_events_flush(struct gw_req *r)
{
	struct gw_answer *to = &r->answer;
	size_t n = to->torn ? to->part.n : opening_part_useful(cgn_buf_view(&to->part));
	if (n > 0)
		part_send(r, n);
	cgn_buf_fini(&to->part);
}

bool gw_events_cut(struct gw_req *r)
{
	struct gw_answer *to = &r->answer;
	cgn_buf_fini(&to->part);
	return !to->torn && (to->comments || to->unfit || to->bytes_out == 0);
}
