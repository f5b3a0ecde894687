/* SPDX-License-Identifier: Apache-2.0 */
/* models: the engine's list of models, and which of them are loaded. */
#include "base/log/log.h"
#include "base/mix/mix.h"
#include "joint/node/engineview/engineview_priv.h"
#include "policy/node/engine/lastwords.h"
#include "policy/node/swap/swap.h"

#define MODELS_TIMEOUT (5 * CGN_SEC)
#define MODELS_BYTES   ((size_t)16 * 1024 * 1024) /* About 1 MB for 400 models of a hosted API */
#define MODELS_ARENA   ((size_t)2 * 1024 * 1024)
#define MODELS_AGAIN   (2 * CGN_SEC) /* An engine may load or unload a model or a LoRA while it runs */
/* A list of so many bytes without a load in progress is asked less often. */
#define MODELS_LONG  ((size_t)64 * 1024)
#define LONG_AGAIN   (30 * CGN_SEC)
#define LOAD_LEAST   1.0 /* Milliseconds */
#define LOAD_MOST    (3600 * 1e3)
#define MODELS_DOUBT (200 * CGN_MSEC) /* Between two readings after a request was refused */
#define EMPTY_TWICE  2                /* Readings in a row that make an empty list true */

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

/* ---- how long loads take ---- */

static uint64_t pace_name(const char *model)
{
	return mix_murmur(mix_fnv1a(MIX_FNV1A, model, strlen(model)));
}

static const struct engineview_pace *pace_find(const struct engineview_models *m, const char *model)
{
	uint64_t name = pace_name(model);
	for (size_t i = 0; i < m->n_paces && i < ENGINEVIEW_PACES; i++)
		if (m->paces[i].name == name)
			return &m->paces[i];
	return NULL;
}

static struct engineview_pace *pace_of(struct engineview_models *m, const char *model)
{
	const struct engineview_pace *known = pace_find(m, model);
	if (known != NULL)
		return &m->paces[known - m->paces];
	struct engineview_pace *p = &m->paces[m->n_paces++ % ENGINEVIEW_PACES];
	*p = (struct engineview_pace){.name = pace_name(model)};
	return p;
}

static bool model_is_out(enum engine_model_state s)
{
	return s == ENGINE_MODEL_OUT || s == ENGINE_MODEL_ASLEEP;
}

/* Learn from the changes since the last reading. A load began after that reading. */
static void pace_learn(struct engineview_models *m, const char *model, enum engine_model_state before,
	enum engine_model_state now, cgn_nsec at)
{
	if (before == now || !(model_is_out(before) || before == ENGINE_MODEL_LOADING))
		return;
	struct engineview_pace *p = pace_of(m, model);
	cgn_nsec began = p->began != 0 ? p->began : m->told_at;
	p->began = now == ENGINE_MODEL_LOADING ? began : 0;
	if (now != ENGINE_MODEL_LOADED && now != ENGINE_MODEL_UNTOLD)
		return;
	double ms = (double)cgn_since(at, began) / 1e6;
	ms = ms < LOAD_LEAST ? LOAD_LEAST : ms < LOAD_MOST ? ms : LOAD_MOST;
	p->ms = p->ms > 0 ? p->ms + (ms - p->ms) / 4 : ms;
}

static void paces_learn(struct engineview_models *m, cgn_nsec at)
{
	for (size_t i = 0; m->known && i < m->next.n; i++) {
		const struct engine_model *is = &m->next.v[i];
		const struct engine_model *was = i < m->list.n && strcmp(m->list.v[i].name, is->name) == 0
			? &m->list.v[i]
			: engine_models_find(&m->list, cgn_str_of(is->name));
		if (was != NULL)
			pace_learn(m, is->name, was->state, is->state, at);
	}
}

/* Return the milliseconds that the engine takes to load the model: as measured, or as its other models took, or SWAP_LOAD_GUESS. */
static uint32_t model_load_ms(const struct engineview *v, const char *model)
{
	const struct engineview_models *m = &v->models;
	const struct engineview_pace *p = pace_find(m, model);
	double sum = 0;
	size_t n = 0;
	if (p != NULL && p->ms > 0)
		return (uint32_t)p->ms;
	for (size_t i = 0; i < m->n_paces && i < ENGINEVIEW_PACES; i++) {
		sum += m->paces[i].ms;
		n += m->paces[i].ms > 0;
	}
	return n > 0 ? (uint32_t)(sum / (double)n) : (uint32_t)(SWAP_LOAD_GUESS / CGN_MSEC);
}

/* ---- a reading ---- */

static void models_log(const struct engineview *v)
{
	const struct engine_models *l = &v->models.list;
	cgn_log(INFO, "engine.models", F_STR("engine", v->name), F_STR("first", l->v[0].name),
		F_U64("models", l->n));
	if (l->left_out > 0)
		cgn_log(WARN, "engine.models_cut", F_STR("engine", v->name), F_U64("models", l->n),
			F_U64("left_out", l->left_out),
			F_STR("why",
				"at most 4096 names of 512 bytes, and 256 KiB together, are taken of an engine"),
			F_STR("then", "requests for the others are answered 404"));
}

/* The engine slept when |l| was read. */
static bool list_sleeps(const struct engine_models *l)
{
	bool asleep = l->n > 0;
	for (size_t i = 0; i < l->n; i++)
		asleep = asleep && l->v[i].state == ENGINE_MODEL_ASLEEP;
	return asleep;
}

/* |next| is whole: it becomes the list if it says something else. */
static void models_settle(struct engineview *v)
{
	struct engineview_models *m = &v->models;
	bool named = !m->known || !engine_models_named_alike(&m->list, &m->next);
	bool same = !named && engine_models_equal(&m->list, &m->next);
	bool emptied = list_sleeps(&m->next) && !list_sleeps(&m->list);
	cgn_nsec now = cgn_loop_now(v->loop);
	paces_learn(m, now);
	m->told_at = now;
	if (same)
		return;
	struct cgn_arena old = m->arena;
	m->arena = m->next_arena;
	m->next_arena = old;
	m->list = m->next;
	m->next = (struct engine_models){.n = 0};
	m->known = true;
	m->why[0] = '\0';
	if (!named || m->configured) {
		v->ops->models_changed(v->user, emptied);
		return;
	}
	models_log(v);
	engineview_feed_models_known(v);
	v->ops->models_known(v->user);
}

static void loaded_ask(struct engineview *v);

static void on_loaded(void *user, const struct webask_answer *r)
{
	struct engineview *v = user;
	struct engineview_models *m = &v->models;
	m->fetch = NULL;
	engineview_answered(v, r->err->code);
	if (webask_is_ok(r) && v->kind->loaded[m->source].read(r->body, &m->next)) {
		models_settle(v);
		return;
	}
	bool lacks = r->err->code == CGN_FINE && r->status < 500;
	if (!lacks && m->known)
		return; /* The list stays as it was */
	m->source_gone[m->source] = lacks;
	m->source++;
	loaded_ask(v);
}

/* Ask the next source of loaded models, or take the list as it is. */
static void loaded_ask(struct engineview *v)
{
	struct engineview_models *m = &v->models;
	for (; m->source < ENGINE_MAX_LOADED; m->source++) {
		const struct webask_question ask = {.path = v->kind->loaded[m->source].path,
			.max_bytes = MODELS_BYTES,
			.timeout = MODELS_TIMEOUT};
		if (ask.path == NULL || m->source_gone[m->source])
			continue;
		if (!cgn_ok(webask_start(v->loop, &v->at, &ask, on_loaded, v, &m->fetch, NULL)))
			continue;
		engineview_asked(v);
		return;
	}
	models_settle(v);
}

/* The list is empty. An engine that starts or loads may say so for a moment: its models are forgotten at the second time. */
static void models_none(struct engineview *v)
{
	struct engineview_models *m = &v->models;
	m->empties += m->empties < EMPTY_TWICE;
	if (m->known && m->empties < EMPTY_TWICE)
		return;
	m->known = false;
	m->list = (struct engine_models){.n = 0};
	models_unknown(v, "/v1/models lists none");
}

/* The list was answered. */
static void models_read(struct engineview *v, struct cgn_str body)
{
	struct engineview_models *m = &v->models;
	struct cgn_err err = {0};
	cgn_arena_reset(&m->next_arena);
	bool read = cgn_ok(engine_models_read(body, &m->next_arena, PROTO_MAX_MODELS, &m->next, &err));
	m->bytes = body.n;
	if (read && m->next.n == 0) {
		models_none(v);
		return;
	}
	if (!read) {
		if (m->known)
			return; /* An answer that cannot be used changes nothing */
		m->list = (struct engine_models){.n = 0};
		models_unknown(v, err.msg);
		return;
	}
	m->empties = 0;
	if (!m->known || !engine_models_named_alike(&m->list, &m->next))
		v->ops->models_told(v->user, body);
	m->source = 0;
	loaded_ask(v);
}

static void on_models(void *user, const struct webask_answer *r)
{
	struct engineview *v = user;
	char why[200];
	v->models.fetch = NULL;
	v->models.asked_at = cgn_loop_now(v->loop);
	engineview_answered(v, r->err->code);
	if (webask_is_ok(r)) {
		models_read(v, r->body);
		return;
	}
	if (r->err->code == CGN_TOO_LARGE)
		v->models.bytes = MODELS_BYTES; /* The list is long, and is read less often. */
	if (v->models.known)
		return;
	(void)snprintf(why, sizeof why, "/v1/models: %.150s",
		r->err->code != CGN_FINE ? r->err->msg : "not answered with 200");
	models_unknown(v, why);
}

/* Make the list of one name, which is described as |like| is. False: out of memory. */
static bool names_fill(struct cgn_arena *a, struct engine_models *out, const char *name,
	const struct engine_model *like)
{
	*out = (struct engine_models){.v = cgn_arena_get(a, sizeof *out->v), .n = 1};
	if (out->v == NULL)
		return false;
	*out->v = *like;
	out->v[0].name = cgn_arena_strz(a, cgn_str_of(name));
	out->v[0].card = cgn_arena_strz(a, cgn_str_of(like->card));
	return out->v[0].name != NULL && out->v[0].card != NULL;
}

/* The configured model is described as |like| is: ask whether it is loaded. */
static void configured_ask(struct engineview *v, const struct engine_model *like)
{
	struct engineview_models *m = &v->models;
	m->source = 0;
	if (names_fill(&m->next_arena, &m->next, m->list.v[0].name, like))
		loaded_ask(v);
}

/* Return the entry of the configured model in |l|, under its name or that of the engine; NULL: nothing. */
static const struct engine_model *configured_find(const struct engineview *v, const struct engine_models *l)
{
	const char *served = engineview_served(v);
	return engine_models_find(l, cgn_str_of(served[0] != '\0' ? served : v->models.list.v[0].name));
}

static void on_configured(void *user, const struct webask_answer *r)
{
	struct engineview *v = user;
	struct engineview_models *m = &v->models;
	struct engine_models l;
	const struct engine_model none = {.card = ""}, *like = NULL;
	m->fetch = NULL;
	engineview_answered(v, r->err->code);
	m->list_gone = r->err->code == CGN_FINE && r->status >= 400 && r->status < 500;
	if (!webask_is_ok(r) && !m->list_gone)
		return; /* The description stays as it was */
	m->bytes = r->body.n;
	if (webask_is_ok(r) &&
		cgn_ok(engine_models_read(r->body, &m->next_arena, PROTO_MAX_MODELS, &l, NULL)))
		like = configured_find(v, &l);
	configured_ask(v, like != NULL ? like : &none);
}

static void configured_fetch(struct engineview *v, const struct webask_question *list)
{
	struct engineview_models *m = &v->models;
	const struct engine_model none = {.card = ""};
	cgn_arena_reset(&m->next_arena);
	m->asked_at = cgn_loop_now(v->loop);
	if (m->list_gone)
		configured_ask(v, &none);
	else if (cgn_ok(webask_start(v->loop, &v->at, list, on_configured, v, &m->fetch, NULL)))
		engineview_asked(v);
}

static void models_fetch(struct engineview *v)
{
	const struct webask_question ask = {.path = "/v1/models",
		.max_bytes = MODELS_BYTES,
		.timeout = MODELS_TIMEOUT};
	if (v->models.fetch != NULL)
		return;
	if (v->models.configured)
		configured_fetch(v, &ask);
	else if (cgn_ok(webask_start(v->loop, &v->at, &ask, on_models, v, &v->models.fetch, NULL)))
		engineview_asked(v);
	/* A fetch that cannot start is retried at the next reading of the load. */
}

void engineview_models_ask(struct engineview *v)
{
	if (!v->models.known)
		models_fetch(v);
}

/* Return true if the engine says which of its models are loaded. */
static bool models_are_loaded_on_demand(const struct engineview_models *m)
{
	return m->list.n > 0 && m->list.v[0].state != ENGINE_MODEL_UNTOLD;
}

/* Read the list again if it is older than |age|. */
static void models_reread(struct engineview *v, cgn_nsec age)
{
	const struct engineview_models *m = &v->models;
	if (m->known && cgn_since(cgn_loop_now(v->loop), m->asked_at) >= age)
		cgn_loop_defer(v->loop, &v->models.again);
}

void engineview_models_ask_again(struct engineview *v)
{
	const struct engineview_models *m = &v->models;
	bool is_long = m->bytes > MODELS_LONG && !models_are_loaded_on_demand(m);
	models_reread(v, is_long ? LONG_AGAIN : MODELS_AGAIN);
}

void engineview_models_doubt(struct engineview *v)
{
	models_reread(v, v->models.bytes > MODELS_LONG ? MODELS_AGAIN : MODELS_DOUBT);
}

void engineview_models_reset(struct engineview *v)
{
	v->models.why[0] = '\0';
	v->models.list_gone = false;
	v->models.empties = 0;
	for (size_t i = 0; i < ENGINE_MAX_LOADED; i++)
		v->models.source_gone[i] = false;
	if (!v->models.configured)
		v->models.known = false;
}

bool engineview_lists(const struct engineview *v, struct cgn_str model)
{
	const struct engine_models *l = &v->models.list;
	return v->models.configured ? cgn_str_is(model, l->v[0].name) : engine_models_find(l, model) != NULL;
}

bool engineview_sleeps(const struct engineview *v)
{
	return list_sleeps(&v->models.list);
}

const char *engineview_first(const struct engineview *v)
{
	return v->models.list.n > 0 ? v->models.list.v[0].name : NULL;
}

/* ---- the description ---- */

static bool model_has_facts(const struct engine_model *m)
{
	return m->card[0] != '\0' || m->created > 0 || m->context > 0 || m->state != ENGINE_MODEL_UNTOLD;
}

static void facts_fill(const struct engineview *v, const struct engine_model *m, uint32_t index,
	Cognitora__V1__ModelFacts *out)
{
	cognitora__v1__model_facts__init(out);
	out->model = index;
	out->card = pb_text(m->card);
	out->created = m->created;
	out->context = m->context;
	out->state = pb_text(engine_model_state_text(m->state));
	if (m->state != ENGINE_MODEL_UNTOLD)
		out->load_ms = model_load_ms(v, m->name);
}

bool engineview_describe(const struct engineview *v, const uint32_t *at, struct cgn_arena *a,
	Cognitora__V1__Engine *e)
{
	const struct engine_models *l = &v->models.list;
	size_t n = l->n < e->n_models ? l->n : e->n_models;
	Cognitora__V1__ModelFacts *rows = cgn_arena_get(a, (n + 1) * sizeof *rows);
	e->facts = cgn_arena_get(a, (n + 1) * sizeof *e->facts);
	e->models_left_out = l->left_out < UINT32_MAX ? (uint32_t)l->left_out : UINT32_MAX;
	e->models_held = l->holds;
	for (size_t i = 0; rows != NULL && e->facts != NULL && i < n; i++) {
		const struct engine_model *m = &l->v[at[i]];
		if (!model_has_facts(m))
			continue;
		facts_fill(v, m, (uint32_t)i, &rows[e->n_facts]);
		e->facts[e->n_facts] = &rows[e->n_facts];
		e->n_facts++;
	}
	return rows != NULL && e->facts != NULL;
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
	cgn_arena_init(&m->next_arena, MODELS_ARENA);
	if (ce->model == NULL)
		return CGN_OK;
	const struct engine_model none = {.card = ""};
	if (!names_fill(&m->arena, &m->list, ce->model, &none))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the model of engine %s", v->name);
	m->configured = m->known = true;
	return CGN_OK;
}
