/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/adapters.h"

#include <stdlib.h>

#include "agent/engine/engine.h"
#include "base/log/log.h"

#define LOAD_TIMEOUT (300 * CGN_SEC) /* The engine may fetch the weights from a hub. */
#define RETRY_FIRST  (2 * CGN_SEC)
#define RETRY_LAST   (60 * CGN_SEC)

static struct engine_adapter *adapter_find(const struct engine *e, struct cgn_str name)
{
	for (size_t i = 0; i < e->adapters.n; i++)
		if (cgn_str_is(name, e->adapters.list[i].name))
			return &e->adapters.list[i];
	return NULL;
}

static struct engine_adapter *adapter_add(struct engine *e, const char *name, bool wanted)
{
	struct engine_adapters *all = &e->adapters;
	if (all->n == PROTO_MAX_ADAPTERS) {
		cgn_log_limited(ERROR, "engine.adapter_ignored", F_STR("engine", e->name),
			F_STR("adapter", name), F_U64("adapters", all->n), F_U64("most", PROTO_MAX_ADAPTERS));
		return NULL;
	}
	all->list = CGN_GROWN(all->list, all->n + 1);
	struct engine_adapter *a = &all->list[all->n++];
	*a = (struct engine_adapter){.wanted = wanted};
	(void)cgn_str_copyz(a->name, sizeof a->name, cgn_str_of(name));
	return a;
}

/* The next request for |a| is due at once. */
static void adapter_renew(struct engine_adapter *a)
{
	a->failures = 0;
	a->retry_at = 0;
	a->why[0] = '\0';
}

void engine_adapter_want(struct engine *e, const Cognitora__V1__WantedModel *m, const char *path, bool wanted)
{
	struct engine_adapter *a = adapter_find(e, cgn_str_of(m->name));
	if (a == NULL && (a = adapter_add(e, m->name, wanted)) == NULL)
		return;
	if (a->revision == m->revision)
		return;
	if (wanted && a->state == ADAPTER_READY && strcmp(a->path, path) != 0) {
		a->state = ADAPTER_DRAINING; /* The weights of the old path go first. */
		a->since = cgn_loop_now(e->host->loop);
	}
	adapter_renew(a);
	a->revision = m->revision;
	a->wanted = wanted;
	(void)cgn_str_copyz(a->path, sizeof a->path, cgn_str_of(path));
	e->host->ops->changed(e->host->user);
}

bool engine_adapter_serves(const struct engine *e, struct cgn_str model)
{
	const struct engine_adapter *a = adapter_find(e, model);
	return a != NULL && (a->state == ADAPTER_READY || a->state == ADAPTER_DRAINING);
}

bool engine_adapter_hides(const struct engine *e, const char *model)
{
	const struct engine_adapter *a = adapter_find(e, cgn_str_of(model));
	return a != NULL && a->state != ADAPTER_READY && !(a->wanted && a->state == ADAPTER_UNKNOWN);
}

const char *engine_adapter_text(const struct engine_adapter *a)
{
	if (a->why[0] != '\0')
		return "failed";
	if (a->state == ADAPTER_READY)
		return "ready";
	if (a->state == ADAPTER_GONE)
		return a->wanted ? "loading" : "unloaded";
	if (a->state == ADAPTER_DRAINING)
		return "draining";
	return a->wanted ? "loading" : "unloading";
}

void engine_adapters_forget(struct engine *e)
{
	webask_cancel(&e->adapters.fetch);
	for (size_t i = 0; i < e->adapters.n; i++) {
		e->adapters.list[i].state = ADAPTER_UNKNOWN;
		e->adapters.list[i].asked = false;
		adapter_renew(&e->adapters.list[i]);
	}
}

void engine_adapters_close(struct engine *e)
{
	webask_cancel(&e->adapters.fetch);
	free(e->adapters.list);
	e->adapters = (struct engine_adapters){.list = NULL};
}

/* ---- requests to the engine ---- */

/* Whether the engine has no route for adapters. */
static bool is_without_route(const struct engine_adapter *a, const struct webask_answer *r)
{
	return r->err->code == CGN_FINE && engine_change_is_unknown(cgn_str_of(a->name), r->status, r->body);
}

/* Whether the engine's refusal says that it is as wanted already. */
static bool is_so_already(const struct engine_adapter *a, bool loads, const struct webask_answer *r)
{
	return r->err->code == CGN_FINE &&
		engine_change_is_so(loads ? ENGINE_LORA_LOAD : ENGINE_LORA_UNLOAD, cgn_str_of(a->name),
			r->status, r->body);
}

static void adapter_refused(struct engine *e, struct engine_adapter *a, bool loads,
	const struct webask_answer *r)
{
	char why[200];
	engine_answer_text(r, why, sizeof why);
	(void)snprintf(a->why, sizeof a->why, "%s%s", why,
		is_without_route(a, r) ? "; it does not load adapters while it runs (docs/laptop/models.md)"
				       : "");
	cgn_nsec pause = a->failures < 5 ? RETRY_FIRST << a->failures : RETRY_LAST;
	a->failures++;
	a->retry_at = cgn_loop_now(e->host->loop) + pause;
	cgn_log(WARN, loads ? "engine.adapter_load_failed" : "engine.adapter_unload_failed",
		F_STR("engine", e->name), F_STR("adapter", a->name), F_STR("path", a->path),
		F_STR("why", a->why), F_DUR("again_in", pause));
}

static struct engine_adapter *adapter_asked(const struct engine *e)
{
	for (size_t i = 0; i < e->adapters.n; i++)
		if (e->adapters.list[i].asked)
			return &e->adapters.list[i];
	return NULL;
}

static void adapter_answered(struct engine *e, bool loads, const struct webask_answer *r)
{
	struct engine_adapter *a = adapter_asked(e);
	CGN_LIVE(e, ENGINE_TAG);
	e->adapters.fetch = NULL;
	CGN_MUST(a != NULL);
	a->asked = false;
	if (webask_is_ok(r) || is_so_already(a, loads, r)) {
		adapter_renew(a);
		a->state = loads ? ADAPTER_READY : ADAPTER_GONE;
		cgn_log(INFO, loads ? "engine.adapter_loaded" : "engine.adapter_unloaded",
			F_STR("engine", e->name), F_STR("adapter", a->name), F_STR("path", a->path));
	} else {
		adapter_refused(e, a, loads, r);
	}
	e->host->ops->changed(e->host->user);
}

static void on_adapter_loaded(void *user, const struct webask_answer *r)
{
	adapter_answered(user, true, r);
}

static void on_adapter_unloaded(void *user, const struct webask_answer *r)
{
	adapter_answered(user, false, r);
}

/* ---- steps ---- */

static bool adapter_drained(struct engine *e, struct engine_adapter *a)
{
	if (a->state == ADAPTER_READY) {
		a->state = ADAPTER_DRAINING;
		a->since = cgn_loop_now(e->host->loop);
		e->host->ops->changed(e->host->user);
	}
	uint32_t inflight = e->host->ops->inflight(e, cgn_str_of(a->name)) + e->requests.direct;
	return a->state != ADAPTER_DRAINING || engine_drained(e, a->since, inflight);
}

/* Take the next step for one adapter. True: there are further ones. */
static bool adapter_step(struct engine *e, struct engine_adapter *a)
{
	bool loads = a->wanted && a->state != ADAPTER_DRAINING;
	if (a->asked || (loads && a->state == ADAPTER_READY) || (!a->wanted && a->state == ADAPTER_GONE))
		return a->asked;
	if (!loads && !adapter_drained(e, a))
		return true;
	if (e->adapters.fetch != NULL || cgn_loop_now(e->host->loop) < a->retry_at)
		return true;
	a->asked = engine_change_start(e, loads ? ENGINE_LORA_LOAD : ENGINE_LORA_UNLOAD, cgn_str_of(a->name),
		cgn_str_of(a->path), LOAD_TIMEOUT, loads ? on_adapter_loaded : on_adapter_unloaded,
		&e->adapters.fetch);
	return true;
}

bool engine_adapters_step(struct engine *e)
{
	bool more = false;
	if (!engine_is_ready(e))
		return false;
	for (size_t i = 0; i < e->adapters.n; i++)
		more |= adapter_step(e, &e->adapters.list[i]);
	return more;
}
