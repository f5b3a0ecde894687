/* SPDX-License-Identifier: Apache-2.0 */
/* work: the queue of resources, and the end of the work on one. */
#include <stdlib.h>

#include "base/log/log.h"
#include "operator/control/control_priv.h"

#define RETRY_FIRST CGN_SEC
#define RETRY_LAST  (60 * CGN_SEC)
#define DUE_MOST    86400 /* Seconds: clocks may be set. */
#define RETRY_SOON  (200 * CGN_MSEC)

bool control_heard(const struct control *c)
{
	for (size_t k = 0; k < DESIRED_KINDS; k++)
		if (!c->sources[k].heard)
			return false;
	return true;
}

void control_wake(struct control *c)
{
	metric_set(METRIC_ONE(c->telemetry, OP_QUEUE), (double)c->n_queued);
	cgn_loop_defer(c->loop, &c->turn);
}

void control_queue(struct control *c, struct item *i)
{
	if (i->queued)
		return;
	i->queued = true;
	i->retry_at = 0;
	cgn_list_push(&c->queue, &i->queue);
	c->n_queued++;
	control_wake(c);
}

static void certs_drop(struct work_certs *c)
{
	free(c->plan);
	pki_pair_fini(&c->ca);
	cgn_buf_fini(&c->bundle);
	cgn_buf_fini(&c->crl);
	cgn_buf_fini(&c->note);
	*c = (struct work_certs){.plan = NULL};
}

void work_drop(struct work *w)
{
	struct control *c = w->c;
	k8s_call_drop(&w->call);
	desired_set_fini(&w->set);
	cgn_buf_fini(&w->body);
	certs_drop(&w->certs);
	*w = (struct work){.c = c};
}

/* Look at the certificates again when the first one is due. */
static void due_set(struct control *c, struct item *i, int64_t look_at)
{
	int64_t now = (int64_t)(cgn_clock_wall_ms() / 1000), left = look_at - now;
	left = left < 1 ? 1 : left > DUE_MOST ? DUE_MOST : left;
	i->due = cgn_loop_now(c->loop) + (cgn_nsec)left * CGN_SEC;
	cgn_timer_set(&c->due, 0);
}

void work_over(struct work *w)
{
	struct control *c = w->c;
	struct item *i = w->resource;
	bool failed = w->failed, soon = w->soon;
	if (w->certs.look_at != 0)
		due_set(c, i, w->certs.look_at);
	if (failed)
		cgn_log(WARN, "operator.reconcile_failed", F_STR("kind", desired_kinds[i->kind].kind),
			F_STR("resource", i->key), F_STR("why", w->err.msg));
	work_drop(w);
	i->working = false;
	c->n_working--;
	if (i->text == NULL) { /* The resource was deleted meanwhile. */
		item_drop(c, i);
	} else if (failed) {
		metric_add(c->failures, 1);
		struct cgn_backoff b = {.first = RETRY_FIRST, .last = RETRY_LAST, .failures = i->failures};
		cgn_nsec delay = cgn_backoff_next(&b);
		i->failures = b.failures;
		control_queue(c, i);
		i->retry_at = cgn_loop_now(c->loop) + delay;
	} else if (soon) {
		control_queue(c, i);
		i->retry_at = cgn_loop_now(c->loop) + RETRY_SOON;
	} else {
		i->failures = 0;
	}
	control_wake(c);
}
