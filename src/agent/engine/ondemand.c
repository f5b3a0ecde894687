/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/ondemand.h"

#include <sys/stat.h>

#include "agent/engine/engine.h"

#define EXPIRY_STEP 5000

#define WANTED_ASLEEP COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP
#define WANTED_STOP   COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED

static uint64_t file_bytes(const char *path)
{
	struct stat st;
	return path != NULL && stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

void engine_ondemand_init(struct engine *e, const struct config *cfg, const struct config_engine *ce)
{
	struct engine_ondemand *d = &e->ondemand;
	*d = (struct engine_ondemand){.on = config_is_on_demand(cfg, ce),
		.measures = ce->memory == 0,
		.bytes = ce->memory > 0 ? ce->memory : file_bytes(ce->model_path),
		.priority = ce->priority,
		.keep_alive_ms = ce->keep_alive > 0 ? (int64_t)(ce->keep_alive / CGN_MSEC) : -1,
		.ready_timeout = ce->ready_timeout,
		.wanted = WANTED_STOP,
		.load_time = SWAP_LOAD_GUESS};
	d->kept_ms = d->keep_alive_ms;
	cgn_list_init(&d->waiters);
	if (!d->on)
		return;
	d->loads_ok = METRIC_OF(e->host->telemetry, SWAP_LOADS, e->name, "ok");
	d->loads_failed = METRIC_OF(e->host->telemetry, SWAP_LOADS, e->name, "failed");
	d->waiting_now = METRIC_OF(e->host->telemetry, SWAP_WAITING, e->name);
}

/* ---- requests ---- */

static void use_note(struct engine *e)
{
	e->ondemand.used_at = cgn_loop_now(e->host->loop);
	e->ondemand.used_unix_ms = cgn_clock_wall_ms();
}

static void waiting_count(struct engine_ondemand *d, int by)
{
	d->waiting = (uint32_t)((int64_t)d->waiting + by);
	metric_set(d->waiting_now, d->waiting);
}

bool engine_takes_requests(const struct engine *e)
{
	const struct engine_ondemand *d = &e->ondemand;
	return !d->on || (d->phase == ONDEMAND_IN && !d->held && !d->doubted && engine_is_ready(e));
}

bool engine_doubt(struct engine *e)
{
	if (!e->ondemand.on)
		return false;
	e->ondemand.doubted = true;
	engine_check_soon(e);
	return true;
}

bool engine_doubt_end(struct engine *e)
{
	bool was = e->ondemand.doubted;
	e->ondemand.doubted = false;
	return was;
}

/* Return the shorter one; below 0: for ever. */
static int64_t time_shorter(int64_t a, int64_t b)
{
	if (a < 0 || b < 0)
		return a < 0 ? b : a;
	return a < b ? a : b;
}

void engine_wish(const struct engine *e, struct engine_waiter *w, const struct engine_wish *wish)
{
	const int64_t set = e->ondemand.keep_alive_ms, asked = wish->told ? wish->ms : set;
	w->known = true;
	w->bounded = wish->bounded;
	w->kept_ms = wish->bounded ? time_shorter(asked, set) : asked;
}

static void interest_end(struct engine_ondemand *d, const struct engine_waiter *w)
{
	cgn_nsec until = w->kept_ms < 0 ? SWAP_NEVER : d->used_at + (cgn_nsec)w->kept_ms * CGN_MSEC;
	if (!w->bounded)
		d->kept_ms = w->kept_ms;
	if (!w->bounded || until > d->until)
		d->until = until;
}

bool engine_enter(struct engine *e, struct engine_waiter *w)
{
	struct engine_ondemand *d = &e->ondemand;
	cgn_list_init(&w->link);
	if (!d->on)
		return true;
	use_note(e);
	if (engine_takes_requests(e))
		return true;
	w->since = d->used_at;
	cgn_list_push(&d->waiters, &w->link);
	waiting_count(d, 1);
	e->host->ops->demand_changed(e->host->user);
	return false;
}

static void waiter_drop(struct engine *e, struct engine_waiter *w)
{
	cgn_list_drop(&w->link);
	waiting_count(&e->ondemand, -1);
}

void engine_left(struct engine *e, struct engine_waiter *w)
{
	if (!e->ondemand.on)
		return;
	if (!cgn_list_empty(&w->link))
		waiter_drop(e, w);
	use_note(e);
	if (w->known)
		interest_end(&e->ondemand, w);
	e->host->ops->demand_changed(e->host->user);
}

void engine_waiters_end(struct engine *e, const struct engine_refusal *no)
{
	/* A request that is told may end others, so the list is read from its begin each time. */
	for (struct cgn_link *l; (l = cgn_list_first(&e->ondemand.waiters)) != NULL;) {
		struct engine_waiter *w = CGN_CONTAINER(l, struct engine_waiter, link);
		waiter_drop(e, w);
		w->over(w, no);
	}
}

/* ---- the state ---- */

bool engine_is_ordered_to_rest(const struct engine *e)
{
	return e->rest.wanted == WANTED_ASLEEP || e->rest.wanted == WANTED_STOP;
}

Cognitora__V1__WantedState engine_wanted(const struct engine *e)
{
	return e->ondemand.on && !engine_is_ordered_to_rest(e) ? e->ondemand.wanted : e->rest.wanted;
}

bool engine_is_offered(const struct engine *e)
{
	return e->ondemand.on && !engine_is_ordered_to_rest(e);
}

bool engine_is_loadable(const struct engine *e)
{
	return engine_is_offered(e) && cgn_loop_now(e->host->loop) >= e->ondemand.retry_at;
}

cgn_nsec engine_waits_since(const struct engine *e)
{
	const struct cgn_link *head = &e->ondemand.waiters;
	const void *first = (const char *)head->next - offsetof(struct engine_waiter, link);
	return head->next != head ? ((const struct engine_waiter *)first)->since
				  : cgn_loop_now(e->host->loop);
}

cgn_nsec engine_expires_at(const struct engine *e)
{
	const struct engine_ondemand *d = &e->ondemand;
	cgn_nsec loaded = d->kept_ms < 0 ? SWAP_NEVER : d->loaded_at + (cgn_nsec)d->kept_ms * CGN_MSEC;
	if (d->until == 0 || (d->loaded_at > d->used_at && loaded > d->until))
		return loaded;
	return d->until;
}

uint64_t engine_expires_unix_ms(const struct engine *e)
{
	const struct engine_ondemand *d = &e->ondemand;
	const cgn_nsec until = engine_expires_at(e);
	if (until == SWAP_NEVER || d->phase != ONDEMAND_IN)
		return 0;
	uint64_t at = d->used_unix_ms + cgn_since(until, d->used_at) / CGN_MSEC;
	/* Routers get the node's description again when it changes: not with each request. */
	return (at + EXPIRY_STEP - 1) / EXPIRY_STEP * EXPIRY_STEP;
}

unsigned engine_load_share(const struct engine *e)
{
	const struct engine_ondemand *d = &e->ondemand;
	cgn_nsec passed = cgn_since(cgn_loop_now(e->host->loop), d->phase_at);
	unsigned share = d->load_time > 0 ? (unsigned)(passed / (d->load_time / 100 + 1)) : 0;
	return share < 99 ? share : 99;
}

void engine_ondemand_text(const struct engine *e, char *out, size_t cap)
{
	const struct engine_ondemand *d = &e->ondemand;
	switch (d->phase) {
	case ONDEMAND_OUT:
		(void)snprintf(out, cap, "%s", engine_is_loadable(e) ? "loadable" : "failed");
		return;
	case ONDEMAND_LOADING:
		(void)snprintf(out, cap, "loading %u %%", d->told_share);
		return;
	case ONDEMAND_IN:
		(void)snprintf(out, cap, "ready");
		return;
	case ONDEMAND_SAVING:
	case ONDEMAND_STOPPING:
		(void)snprintf(out, cap, "unloading");
		return;
	}
}

Cognitora__V1__EngineOnDemand *engine_ondemand_new(const struct engine *e, struct pb_tree *t)
{
	const struct engine_ondemand *d = &e->ondemand;
	char state[32];
	if (!d->on)
		return NULL;
	Cognitora__V1__EngineOnDemand *to = PB_NEW(t, engine_on_demand);
	engine_ondemand_text(e, state, sizeof state);
	to->state = pb_tree_text(t, cgn_str_of(state));
	to->waiting = d->waiting;
	to->held = d->held;
	to->memory_bytes = d->bytes;
	to->priority = d->priority;
	to->load_ms = d->load_time / CGN_MSEC;
	to->expires_unix_ms = engine_expires_unix_ms(e);
	to->why = pb_text(d->why);
	return to;
}
