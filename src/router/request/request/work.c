/* SPDX-License-Identifier: Apache-2.0 */
/* work: work on a request's body, in the worker's turn or on the thread pool. */
#include "base/unlikely/unlikely.h"
#include "router/request/request/request.h"

static void on_pool(void *arg)
{
	struct gw_req *r = arg;
	r->body_job.run(r);
}

static void on_pooled(void *arg)
{
	struct gw_req *r = arg;
	CGN_LIVE(r, GW_REQ_TAG);
	r->body_job.busy = false;
	if (r->body_job.orphaned != NULL)
		r->body_job.orphaned(r);
	else
		gw_wake(r);
}

static void work_begin(struct gw_req *r, void (*run)(struct gw_req *r), void (*then)(struct gw_req *r),
	bool large)
{
	struct gw_body_job *k = &r->body_job;
	CGN_MUST(r->state == GW_ROUTE && !k->busy);
	k->run = run;
	k->then = then;
	k->busy = large;
	if (large) {
		cgn_loop_work(r->w->loop, on_pool, on_pooled, r);
		gw_goto(r, GW_READ);
		return;
	}
	run(r);
	then(r);
}

void gw_body_work(struct gw_req *r, void (*run)(struct gw_req *r), void (*then)(struct gw_req *r))
{
	work_begin(r, run, then, r->body.bytes.n > GW_INLINE_BODY || unlikely_way(UNLIKELY_work_pooled));
}

void gw_body_pool(struct gw_req *r, void (*run)(struct gw_req *r), void (*then)(struct gw_req *r))
{
	work_begin(r, run, then, true);
}

enum gw_step gw_read(struct gw_req *r)
{
	if (r->body_job.busy)
		return gw_park(r, WAIT_POOL, 0);
	gw_goto(r, GW_ROUTE);
	r->body_job.then(r);
	return STEP_AGAIN;
}
