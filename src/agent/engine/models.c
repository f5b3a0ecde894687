/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"
#include "base/log/log.h"

#define MODELS_TIMEOUT (3 * CGN_SEC)
#define MODELS_BYTES   ((size_t)4 * 1024 * 1024)
#define MODELS_ARENA   ((size_t)1024 * 1024)
#define MODELS_AGAIN   (2 * CGN_SEC) /* An engine may load or unload a LoRA while it runs */

static void models_unknown(struct engine *e, const char *why)
{
	if (strcmp(e->health.trouble, why) == 0) /* Logged already */
		return;
	engine_trouble_set(e, why);
	cgn_log(WARN, "engine.models_unknown", F_STR("engine", e->name), F_STR("why", why),
		F_STR("then", "asked again; or set engine.model"));
}

/* Check whether |body| lists the models that are known already, or none that can be read. */
static bool models_are_same(const struct engine_models *m, struct cgn_str body)
{
	struct cgn_arena a;
	const char **names = NULL;
	size_t n = 0;
	cgn_arena_init(&a, MODELS_ARENA);
	bool told = cgn_ok(engine_models_read(body, &a, PROTO_MAX_MODELS, &names, &n, NULL)) && n > 0;
	bool same = !told || n == m->n;
	for (size_t i = 0; told && same && i < n; i++)
		same = strcmp(names[i], m->names[i]) == 0;
	cgn_arena_fini(&a);
	return same;
}

static void models_read(struct engine *e, struct cgn_str body)
{
	struct engine_models *m = &e->models;
	struct cgn_err err = {0};
	cgn_arena_reset(&m->arena);
	m->n = 0;
	if (!cgn_ok(engine_models_read(body, &m->arena, PROTO_MAX_MODELS, &m->names, &m->n, &err))) {
		m->n = 0;
		models_unknown(e, err.msg);
		return;
	}
	if (m->n == 0) {
		models_unknown(e, "/v1/models lists none");
		return;
	}
	m->known = true;
	engine_trouble_set(e, "");
	cgn_log(INFO, "engine.models", F_STR("engine", e->name), F_STR("first", m->names[0]),
		F_U64("models", m->n));
	engine_feed_models_known(e);
	slotmgr_models_known(e->slots);
	e->host->ops->changed(e->host->user);
}

static void on_models(void *user, const struct enginefetch_answer *r)
{
	struct engine *e = user;
	char why[sizeof e->health.trouble];
	CGN_LIVE(e, ENGINE_TAG);
	e->models.fetch = NULL;
	e->models.asked_at = cgn_loop_now(e->host->loop);
	if (e->models.known && (!enginefetch_is_ok(r) || models_are_same(&e->models, r->body)))
		return;
	if (enginefetch_is_ok(r)) {
		models_read(e, r->body);
		return;
	}
	(void)snprintf(why, sizeof why, "/v1/models: %.150s",
		r->err->code != CGN_FINE ? r->err->msg : "not answered with 200");
	models_unknown(e, why);
}

static void models_fetch(struct engine *e)
{
	const struct enginefetch_ask ask = {.path = "/v1/models",
		.max_bytes = MODELS_BYTES,
		.timeout = MODELS_TIMEOUT};
	if (e->models.fetch == NULL)
		(void)enginefetch_start(e->host->loop, &e->endpoint, &ask, on_models, e, &e->models.fetch,
			NULL)
			.code; /* A fetch that cannot start is retried at the next reading of the load */
}

void engine_models_ask(struct engine *e)
{
	if (!e->models.known)
		models_fetch(e);
}

void engine_models_ask_again(struct engine *e)
{
	const struct engine_models *m = &e->models;
	if (m->known && !m->configured && cgn_loop_now(e->host->loop) - m->asked_at >= MODELS_AGAIN)
		cgn_loop_defer(e->host->loop, &e->models.again);
}

void engine_models_reset(struct engine *e)
{
	if (!e->models.configured)
		e->models.known = false;
}

bool engine_lists(const struct engine *e, struct cgn_str model)
{
	for (size_t i = 0; i < e->models.n; i++)
		if (cgn_str_is(model, e->models.names[i]))
			return true;
	return false;
}

bool engine_serves(const struct engine *e, struct cgn_str model)
{
	return engine_lists(e, model) || engine_adapter_serves(e, model);
}

static void on_models_again(struct cgn_hook *h)
{
	struct engine *e = CGN_CONTAINER(h, struct engine, models.again);
	CGN_LIVE(e, ENGINE_TAG);
	models_fetch(e);
}

CGN_RC engine_models_init(struct engine *e, const struct config_engine *ce, struct cgn_err *err)
{
	struct engine_models *m = &e->models;
	cgn_hook_init(&m->again, on_models_again);
	cgn_arena_init(&m->arena, MODELS_ARENA);
	if (ce->managed && ce->model == NULL && ce->model_path != NULL)
		m->planned = cgn_arena_strz(&e->arena, cgn_str_of(ce->model_path));
	if (ce->model == NULL)
		return CGN_OK;
	m->names = cgn_arena_get(&m->arena, sizeof *m->names);
	const char *name = cgn_arena_strz(&m->arena, cgn_str_of(ce->model));
	if (m->names == NULL || name == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the model of engine %s", e->name);
	m->names[0] = name;
	m->n = 1;
	m->configured = m->known = true;
	return CGN_OK;
}
