/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "policy/route/queue/queue.h"

static void rate_advance(struct queue_rate *p, cgn_nsec now)
{
	if (p->at == 0 || now <= p->at)
		return;
	double dt = (double)cgn_since(now, p->at) * 1e-9,
	       keep = exp(-dt / ((double)QUEUE_RATE_WINDOW * 1e-9));
	p->items *= keep;
	p->seconds = p->seconds * keep + dt;
	p->at = now;
}

void queue_rate_start(struct queue_rate *p, cgn_nsec now)
{
	if (p->at == 0)
		p->at = now;
}

void queue_rate_stop(struct queue_rate *p, cgn_nsec now)
{
	rate_advance(p, now);
	p->at = 0;
}

void queue_rate_count(struct queue_rate *p, cgn_nsec now)
{
	rate_advance(p, now);
	p->items += 1;
}

void queue_rate_uncount(struct queue_rate *p, cgn_nsec now)
{
	rate_advance(p, now);
	p->items = p->items > 1 ? p->items - 1 : 0;
}

bool queue_rate_known(const struct queue_rate *p)
{
	return p->items > 0 && p->seconds > 0;
}

cgn_nsec queue_rate_time(const struct queue_rate *p, size_t items, cgn_nsec now)
{
	struct queue_rate then = *p;
	rate_advance(&then, now);
	if (!(then.items > 0))
		then.items = 1;
	double s = (double)items * then.seconds / then.items;
	return s < 1e9 ? (cgn_nsec)(s * 1e9) : 1000000000 * CGN_SEC;
}
