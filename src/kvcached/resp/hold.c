/* SPDX-License-Identifier: Apache-2.0 */
/* hold: limits what connections hold of the RAM tier, and queues the connections that wait until others hold
 * less. */
#include "kvcached/resp/resp_priv.h"

bool resp_hold_any_waits(const struct resp_port *p)
{
	return !cgn_list_empty(&p->waiting[RESP_PROVEN]) || !cgn_list_empty(&p->waiting[RESP_NEW]);
}

/* Only move the tick forward: each new waiter would otherwise delay the check of stalled clients. */
static void hold_tick_soon(struct resp_port *p)
{
	if (p->tick.at == 0 || p->tick.at > cgn_loop_now(p->loop) + RESP_SHORT_TICK)
		cgn_timer_set(&p->tick, RESP_SHORT_TICK);
}

static void hold_wait(struct resp_conn *c, enum resp_hold what)
{
	struct resp_shared *all = c->port->shared;
	if (!cgn_list_empty(&c->wait))
		return;
	c->wait_rank = c->proven ? RESP_PROVEN : RESP_NEW;
	c->wait_what = what;
	cgn_list_push(&c->port->waiting[c->wait_rank], &c->wait);
	atomic_fetch_add(&all->waiting, 1);
	atomic_fetch_add(&all->proven_waiting[what], c->wait_rank == RESP_PROVEN);
	hold_tick_soon(c->port);
}

void resp_hold_wait_end(struct resp_conn *c)
{
	struct resp_shared *all = c->port->shared;
	if (cgn_list_empty(&c->wait))
		return;
	cgn_list_drop(&c->wait);
	atomic_fetch_sub(&all->waiting, 1);
	atomic_fetch_sub(&all->proven_waiting[c->wait_what], c->wait_rank == RESP_PROVEN);
}

static bool hold_try(struct resp_port *p, enum resp_hold what, uint64_t want, uint64_t most)
{
	if (atomic_fetch_add(&p->shared->held[what], want) + want <= most &&
		value_hold(p->worker->daemon, want))
		return true;
	atomic_fetch_sub(&p->shared->held[what], want);
	return false;
}

bool resp_hold_now(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held)
{
	uint64_t most = c->port->worker->daemon->held_max / 4 * 3;
	uint64_t want = n < most ? n : most; /* the largest values must pass too, one at a time */
	bool got = hold_try(c->port, what, want, most);
	*held = got ? want : 0;
	return got;
}

bool resp_hold(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held)
{
	bool behind = !c->proven && atomic_load(&c->port->shared->proven_waiting[what]) > 0;
	bool got = !behind && resp_hold_now(c, what, n, held);
	if (!got)
		hold_wait(c, what);
	return got;
}

void resp_unhold(struct resp_port *p, enum resp_hold what, uint64_t n)
{
	if (n == 0)
		return;
	atomic_fetch_sub(&p->shared->held[what], n);
	value_unhold(p->worker->daemon, n);
	resp_hold_freed(p);
}

/* Memory that a cut connection held is given out at the next tick, as another worker may be first in the
 * order. */
void resp_hold_freed(struct resp_port *p)
{
	if (resp_hold_any_waits(p) && !p->cutting)
		cgn_loop_defer(p->loop, &p->wake);
}
