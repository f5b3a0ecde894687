/* SPDX-License-Identifier: Apache-2.0 */
/* models: the engine's list of models. */
#include "base/log/log.h"
#include "joint/engineview/engineview_priv.h"
#include "policy/engine/lastwords.h"

#define MODELS_TIMEOUT (3 * CGN_SEC)
#define MODELS_BYTES   ((size_t)4 * 1024 * 1024)
#define MODELS_ARENA   ((size_t)1024 * 1024)
#define MODELS_AGAIN   (2 * CGN_SEC) /* An engine may load or unload a LoRA while it runs */

static void models_unknown(struct engineview *v, const char *why)
{
	struct engineview_models *m = &v->models;
	if (strncmp(m->why, why, sizeof m->why - 1) == 0) /* Logged already */
		return;
	engine_text_keep(m->why, sizeof m->why, cgn_str_of(why));
	cgn_log(WARN, "engine.models_unknown", F_STR("engine", v->name), F_STR("why", why),
		F_STR("then", "asked again; or set the engine's model"));
	v->ops->models_unknown(v->user, m->why);
}

/* Check whether |body| lists the models that are known already, or none that can be read. */
static bool models_are_same(const struct engineview_models *m, struct cgn_str body)
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

static void models_read(struct engineview *v, struct cgn_str body)
{
	struct engineview_models *m = &v->models;
	struct cgn_err err = {0};
	cgn_arena_reset(&m->arena);
	m->n = 0;
	if (!cgn_ok(engine_models_read(body, &m->arena, PROTO_MAX_MODELS, &m->names, &m->n, &err))) {
		m->n = 0;
		models_unknown(v, err.msg);
		return;
	}
	if (m->n == 0) {
		models_unknown(v, "/v1/models lists none");
		return;
	}
	m->known = true;
	m->why[0] = '\0';
	cgn_log(INFO, "engine.models", F_STR("engine", v->name), F_STR("first", m->names[0]),
		F_U64("models", m->n));
	v->ops->models_told(v->user, body);
	engineview_feed_models_known(v);
	v->ops->models_known(v->user);
}

static void on_models(void *user, const struct enginefetch_answer *r)
{
	struct engineview *v = user;
	char why[200];
	v->models.fetch = NULL;
	v->models.asked_at = cgn_loop_now(v->loop);
	engineview_answered(v, r->err->code);
	if (v->models.known && (!enginefetch_is_ok(r) || models_are_same(&v->models, r->body)))
		return;
	if (enginefetch_is_ok(r)) {
		models_read(v, r->body);
		return;
	}
	(void)snprintf(why, sizeof why, "/v1/models: %.150s",
		r->err->code != CGN_FINE ? r->err->msg : "not answered with 200");
	models_unknown(v, why);
}

static void models_fetch(struct engineview *v)
{
	const struct enginefetch_ask ask = {.path = "/v1/models",
		.max_bytes = MODELS_BYTES,
		.timeout = MODELS_TIMEOUT};
	if (v->models.fetch != NULL)
		return;
	if (cgn_ok(enginefetch_start(v->loop, &v->at, &ask, on_models, v, &v->models.fetch, NULL)))
		engineview_asked(v);
	/* A fetch that cannot start is retried at the next reading of the load. */
}

void engineview_models_ask(struct engineview *v)
{
	if (!v->models.known)
		models_fetch(v);
}

void engineview_models_ask_again(struct engineview *v)
{
	const struct engineview_models *m = &v->models;
	if (m->known && !m->configured && cgn_since(cgn_loop_now(v->loop), m->asked_at) >= MODELS_AGAIN)
		cgn_loop_defer(v->loop, &v->models.again);
}

void engineview_models_reset(struct engineview *v)
{
	v->models.why[0] = '\0';
	if (!v->models.configured)
		v->models.known = false;
}

bool engineview_lists(const struct engineview *v, struct cgn_str model)
{
	for (size_t i = 0; i < v->models.n; i++)
		if (cgn_str_is(model, v->models.names[i]))
			return true;
	return false;
}

static void on_models_again(struct cgn_hook *h)
{
	models_fetch(CGN_CONTAINER(h, struct engineview, models.again));
}

CGN_RC engineview_models_init(struct engineview *v, const struct config_engine *ce, struct cgn_err *err)
{
	struct engineview_models *m = &v->models;
	cgn_hook_init(&m->again, on_models_again);
	cgn_arena_init(&m->arena, MODELS_ARENA);
	if (ce->model == NULL)
		return CGN_OK;
	m->names = cgn_arena_get(&m->arena, sizeof *m->names);
	const char *name = cgn_arena_strz(&m->arena, cgn_str_of(ce->model));
	if (m->names == NULL || name == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the model of engine %s", v->name);
	m->names[0] = name;
	m->n = 1;
	m->configured = m->known = true;
	return CGN_OK;
}
