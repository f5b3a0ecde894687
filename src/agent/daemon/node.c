/* SPDX-License-Identifier: Apache-2.0 */
/* node: the node's description and load, and the choice of an engine. */
#include "agent/daemon/agent.h"
#include "base/unlikely/unlikely.h"

/* ---- the description ---- */

/* Copy the host of |address| (host:port, or [v6]:port) without brackets. */
static void address_host(const char *address, char *out, size_t size)
{
	const char *colon = strrchr(address, ':');
	struct cgn_str host = {address, colon != NULL ? (size_t)(colon - address) : strlen(address)};
	if (host.n >= 2 && host.p[0] == '[' && host.p[host.n - 1] == ']')
		host = (struct cgn_str){host.p + 1, host.n - 2};
	if (!cgn_str_copyz(out, size, host))
		out[0] = '\0';
}

/* Describe the hand-off of an engine that has one. False: the scratch arena is too small. */
static bool handoff_describe(struct agent *a, const struct engine *e, Cognitora__V1__Handoff **out)
{
	const struct engine_handoff *h = &e->handoff;
	char text[HANDOFF_TERMS_MAX + 1], host[HANDOFF_HOST_MAX + 1];
	struct cgn_buf terms = cgn_buf_over(text, sizeof text);
	if (!engine_handoff_is_known(e))
		return true;
	Cognitora__V1__Handoff *m = cgn_arena_get(&a->scratch, sizeof *m);
	char **ids = cgn_arena_get(&a->scratch, (h->n_ids + 1) * sizeof *ids);
	if (m == NULL || ids == NULL)
		return false;
	cognitora__v1__handoff__init(m);
	engine_handoff_terms(e, &terms);
	address_host(a->address, host, sizeof host);
	m->kind = cgn_arena_strz(&a->scratch, cgn_str_of(h->ops->name));
	m->terms = cgn_arena_strz(&a->scratch, cgn_buf_view(&terms));
	m->host = cgn_arena_strz(&a->scratch, cgn_str_of(h->host != NULL ? h->host : host));
	m->port = h->port;
	m->engine_ids = ids;
	m->n_engine_ids = h->n_ids;
	bool copied = m->kind != NULL && m->terms != NULL && m->host != NULL;
	for (size_t i = 0; i < h->n_ids; i++) {
		ids[i] = cgn_arena_strz(&a->scratch, cgn_str_of(h->ids[i]));
		copied = copied && ids[i] != NULL;
	}
	*out = m;
	return copied && !terms.bad;
}

/* True if |host| means the machine itself. */
static bool is_loopback(const char *host)
{
	return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

/* Describe how routers reach an engine without the agent, if they may. An address that means another machine to a router
 * elsewhere is for routers on this machine. False: the scratch arena is too small. */
static bool direct_describe(struct agent *a, struct engine *e, Cognitora__V1__Direct **out)
{
	char host[sizeof a->address];
	address_host(a->address, host, sizeof host);
	bool loop = is_loopback(e->door.url.host), here = loop || strcmp(e->door.url.host, host) == 0;
	bool local = a->direct == CONFIG_DIRECT_AUTO || loop;
	if (a->direct == CONFIG_DIRECT_OFF || a->drain.on || a->n_engines != 1 || !engine_needs_no_agent(e) ||
		(local && (!here || a->host_id[0] == '\0')))
		return true;
	Cognitora__V1__Direct *m = cgn_arena_get(&a->scratch, sizeof *m);
	if (m == NULL)
		return false;
	cognitora__v1__direct__init(m);
	m->address = e->door.url.addr;
	m->connections = e->max_conns < a->max_inflight ? e->max_conns : a->max_inflight;
	if (local)
		m->host = a->host_id;
	*out = m;
	return true;
}

/* False: the scratch arena is too small. */
static bool chain_describe(struct agent *a, const struct engine *e, Cognitora__V1__Chain **out)
{
	Cognitora__V1__Chain *m = cgn_arena_get(&a->scratch, sizeof *m);
	if (m == NULL)
		return false;
	*out = engineview_feed_chain(&e->view, m) ? m : NULL;
	return true;
}

/* List the models for routers: those of the engine and the adapters that it loaded, without adapters that go. */
static bool models_describe(struct agent *a, const struct engine *e, Cognitora__V1__Engine *m)
{
	const struct engine_models *l = &e->view.models.list;
	size_t most = l->n + e->adapters.n + 1;
	uint32_t *at = cgn_arena_get(&a->scratch, (l->n + 1) * sizeof *at);
	m->models = cgn_arena_get(&a->scratch, (most + 1) * sizeof *m->models);
	if (m->models == NULL || at == NULL)
		return false;
	for (size_t i = 0; i < l->n; i++) {
		if (engine_adapter_hides(e, l->v[i].name))
			continue;
		at[m->n_models] = (uint32_t)i;
		m->models[m->n_models++] = pb_text(l->v[i].name);
	}
	if (!engineview_describe(&e->view, at, &a->scratch, m))
		return false;
	for (size_t i = 0; i < e->adapters.n && m->n_models < PROTO_MAX_MODELS; i++) {
		const struct engine_adapter *own = &e->adapters.list[i];
		if (own->state == ADAPTER_READY && !engineview_lists(&e->view, cgn_str_of(own->name)))
			m->models[m->n_models++] = cgn_arena_strz(&a->scratch, cgn_str_of(own->name));
	}
	if (m->n_models == 0 && e->planned != NULL) /* The engine was not started yet. */
		m->models[m->n_models++] = cgn_arena_strz(&a->scratch, cgn_str_of(e->planned));
	for (size_t i = 0; i < m->n_models; i++)
		if (m->models[i] == NULL)
			return false;
	return true;
}

/* False: the scratch arena is too small. */
static bool rest_describe(struct agent *a, const struct engine *e, Cognitora__V1__Engine *m)
{
	const char *state = engine_rest_text(e);
	m->managed = e->process.sup.cfg.managed || e->unit.name != NULL;
	m->mixes_salts = e->mixes_salts;
	if (e->rest.wanted == COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED)
		return true;
	m->rest = cgn_arena_get(&a->scratch, sizeof *m->rest);
	if (m->rest == NULL)
		return false;
	cognitora__v1__rest__init(m->rest);
	m->rest->state = pb_text(state);
	m->rest->why = cgn_arena_strz(&a->scratch, cgn_str_of(e->rest.why));
	m->rest->revision = e->rest.revision;
	m->ready = m->ready && !engine_rest_hides(e);
	if (engine_rest_hides(e) && state[0] != '\0')
		m->trouble =
			cgn_arena_fmt(&a->scratch, "%s, as an operator wants it (cgn-ctl model ls)", state);
	return m->rest->why != NULL && m->trouble != NULL;
}

/* Describe an engine that is loaded on demand: routers may send requests at any time. False: the scratch arena is too
 * small. */
static bool swap_describe(struct agent *a, const struct engine *e, Cognitora__V1__Engine *m)
{
	const struct engine_ondemand *d = &e->ondemand;
	char state[32];
	if (!engine_is_offered(e))
		return true;
	m->swap = cgn_arena_get(&a->scratch, sizeof *m->swap);
	if (m->swap == NULL)
		return false;
	cognitora__v1__swap__init(m->swap);
	engine_ondemand_text(e, state, sizeof state);
	m->swap->state = cgn_arena_strz(&a->scratch, cgn_str_of(state));
	m->swap->why = cgn_arena_strz(&a->scratch, cgn_str_of(d->why));
	m->swap->loaded = engine_takes_requests(e);
	m->swap->load_ms = (uint32_t)(d->load_time / CGN_MSEC);
	m->swap->memory_bytes = d->bytes;
	m->swap->expires_unix_ms = engine_expires_unix_ms(e);
	m->ready = true;
	m->slots = 0; /* Requests wait here, for the load or for a slot: routers are not to count places. */
	m->trouble = m->swap->why;
	return m->swap->state != NULL && m->swap->why != NULL;
}

/* False: the scratch arena is too small. */
static bool adapters_describe(struct agent *a, const struct engine *e, Cognitora__V1__Engine *m)
{
	Cognitora__V1__Adapter *rows = cgn_arena_get(&a->scratch, (e->adapters.n + 1) * sizeof *rows);
	m->adapters = cgn_arena_get(&a->scratch, (e->adapters.n + 1) * sizeof *m->adapters);
	if (rows == NULL || m->adapters == NULL)
		return false;
	for (size_t i = 0; i < e->adapters.n; i++) {
		const struct engine_adapter *l = &e->adapters.list[i];
		cognitora__v1__adapter__init(&rows[i]);
		rows[i].name = cgn_arena_strz(&a->scratch, cgn_str_of(l->name));
		rows[i].why = cgn_arena_strz(&a->scratch, cgn_str_of(l->why));
		rows[i].state = pb_text(engine_adapter_text(l));
		rows[i].revision = l->revision;
		m->adapters[m->n_adapters++] = &rows[i];
		if (rows[i].name == NULL || rows[i].why == NULL)
			return false;
	}
	return true;
}

static Cognitora__V1__Engine *engine_describe(struct agent *a, struct engine *e)
{
	Cognitora__V1__Engine *m = cgn_arena_get(&a->scratch, sizeof *m);
	if (m == NULL)
		return NULL;
	cognitora__v1__engine__init(m);
	m->name = e->name;
	m->kind = cgn_arena_strz(&a->scratch, cgn_str_of(config_enum_text(e->ops->kind)));
	m->ready = engine_is_ready(e);
	m->slots = e->view.load.now.slots;
	m->kv_blocks_total = e->view.load.now.kv_blocks_total;
	m->kv_block_tokens = e->view.load.now.kv_block_tokens;
	m->residency = cgn_arena_strz(&a->scratch, cgn_str_of(engine_residency_text(e)));
	m->trouble = cgn_arena_strz(&a->scratch, cgn_str_of(e->health.trouble));
	m->served = cgn_arena_strz(&a->scratch, cgn_str_of(engineview_served(&e->view)));
	m->resume = cgn_arena_strz(&a->scratch, cgn_str_of(e->resume));
	bool copied = m->kind != NULL && m->residency != NULL && m->trouble != NULL && m->served != NULL &&
		m->resume != NULL;
	copied = copied && models_describe(a, e, m) && adapters_describe(a, e, m) && rest_describe(a, e, m) &&
		swap_describe(a, e, m);
	copied = copied && direct_describe(a, e, &m->direct) && chain_describe(a, e, &m->chain);
	return copied && handoff_describe(a, e, &m->handoff) ? m : NULL;
}

/* False: the scratch arena is too small. */
static bool store_describe(struct agent *a, Cognitora__V1__Node *n)
{
	n->store_address = a->store.grpc;
	if (a->store.quic[0] == '\0')
		return true;
	n->kv = cgn_arena_get(&a->scratch, sizeof *n->kv);
	if (n->kv == NULL)
		return false;
	cognitora__v1__kv_store__init(n->kv);
	n->kv->quic_address = a->store.quic;
	n->kv->rack = a->store.rack;
	n->kv->region = a->store.region;
	return true;
}

/* Return the description, in the scratch arena; NULL when the arena is too small. */
static Cognitora__V1__Node *node_describe(struct agent *a)
{
	cgn_arena_reset(&a->scratch);
	Cognitora__V1__Node *n = cgn_arena_get(&a->scratch, sizeof *n);
	Cognitora__V1__Engine **engines = cgn_arena_get(&a->scratch, a->n_engines * sizeof(void *));
	char *version = cgn_arena_strz(&a->scratch, CGN_STR(CGN_VERSION));
	if (n == NULL || engines == NULL || version == NULL)
		return NULL;
	cognitora__v1__node__init(n);
	for (size_t i = 0; i < a->n_engines; i++)
		if ((engines[i] = engine_describe(a, &a->engines[i])) == NULL)
			return NULL;
	n->id = a->node_id;
	n->address = a->address;
	n->role = (Cognitora__V1__Role)a->role;
	n->engines = engines;
	n->n_engines = a->n_engines;
	n->draining = a->drain.on;
	n->insecure = a->insecure;
	n->version = version;
	n->started_unix_ms = a->started_unix_ms;
	return store_describe(a, n) ? n : NULL;
}

void agent_changed(struct agent *a)
{
	CGN_LIVE(a, AGENT_TAG);
	const Cognitora__V1__Node *now = node_describe(a);
	if (now == NULL || a->announce == NULL || a->grpc == NULL ||
		(a->node != NULL && proto_node_equal(now, a->node) && !unlikely_way(UNLIKELY_node_told)))
		return;
	Cognitora__V1__Node *copy = proto_node_dup(now);
	if (copy == NULL) /* The next change announces this one too */
		return;
	proto_node_free(&a->node);
	a->node = copy;
	a->direct_told = a->direct_told || copy->engines[0]->direct != NULL;
	grpc_server_serving(a->grpc, !a->drain.on && agent_is_ready(a));
	watch_node_changed(&a->watch, a->node);
	if (!a->drain.leaving)
		state_announce_update(a->announce, a->node);
}

bool agent_is_ready(const struct agent *a)
{
	for (size_t i = 0; i < a->n_engines; i++)
		if (engine_is_ready(&a->engines[i]) || engine_is_offered(&a->engines[i]))
			return true;
	return false;
}

/* ---- the load ---- */

static void row_add(struct share_row *to, struct share_row more)
{
	to->inflight += more.inflight;
	to->decoding += more.decoding;
	to->queued_tokens += more.queued_tokens;
	to->wholes += more.wholes;
	to->whole_us += more.whole_us;
}

struct energy_load agent_energy_load(const struct agent *a)
{
	struct share_row all = a->relays.share.all;
	row_add(&all, watch_direct(&a->watch, 0));
	return (struct energy_load){.streams = all.decoding,
		.prompts = all.inflight - all.asides - all.decoding,
		.prompt_tokens = all.queued_tokens,
		.wholes = all.wholes,
		.whole_us = all.whole_us};
}

static bool engine_is_busy(const struct engine *e)
{
	return e->requests.inflight > 0 || e->requests.direct > 0;
}

/* An engine that starts answers nothing, and need not. */
static bool engine_must_answer(const struct engine *e)
{
	return e->process.sup.state == SUPERVISE_READY || e->process.sup.state == SUPERVISE_UNHEALTHY;
}

/* Tell the signs of life of the engine that shows them best. An engine without requests does not speak for one that has
 * some. */
static void life_fill(const struct agent *a, Cognitora__V1__Load *out)
{
	bool busy = false, ready = false, stalled = false;
	struct pulse_witness best = {.mute = UINT64_MAX, .still = UINT64_MAX};
	for (size_t i = 0; i < a->n_engines; i++)
		busy |= engine_is_busy(&a->engines[i]);
	for (size_t i = 0; i < a->n_engines; i++) {
		struct engine *e = &a->engines[i];
		const struct pulse_witness w = engineview_witness(&e->view);
		cgn_nsec mute = engine_must_answer(e) ? w.mute : 0;
		if (engine_is_busy(e) == busy && mute < best.mute)
			best.mute = mute;
		if (w.still < best.still)
			best.still = w.still;
		ready |= engine_is_ready(e);
		stalled |= e->health.stalled;
	}
	proto_load_witness(out, &best);
	out->stalled = stalled && !ready;
}

void agent_load(const struct agent *a, uint64_t router, Cognitora__V1__Load *out)
{
	const struct share *share = &a->relays.share;
	struct share_row yours = share_of(share, router), all = share->all;
	row_add(&all, watch_direct(&a->watch, 0));
	if (router != 0)
		row_add(&yours, watch_direct(&a->watch, router));
	cognitora__v1__load__init(out);
	out->shared = true;
	out->inflight = all.inflight - all.asides;
	out->queued_tokens = all.queued_tokens;
	out->decoding = all.decoding;
	out->yours = yours.inflight - yours.asides;
	out->yours_queued_tokens = yours.queued_tokens;
	out->yours_decoding = yours.decoding;
	out->wholes = all.wholes;
	out->yours_wholes = yours.wholes;
	out->requests_total = a->relays.requests_total;
	out->power_headroom = (float)a->power.headroom;
	gpus_load(&a->gpus, out);
	life_fill(a, out);
	for (size_t i = 0; i < a->n_engines; i++) {
		const struct engine_load *l = &a->engines[i].view.load.now;
		out->running += l->running;
		out->waiting += l->waiting;
		out->foreign += a->engines[i].gauges.foreign;
		if ((float)l->kv_usage > out->kv_usage)
			out->kv_usage = (float)l->kv_usage;
	}
}

/* ---- the choice of an engine ---- */

static struct engine *engine_by_name(struct agent *a, struct cgn_str name)
{
	for (size_t i = 0; i < a->n_engines; i++)
		if (cgn_str_is(name, a->engines[i].name))
			return &a->engines[i];
	return NULL;
}

/* |*unready| becomes an engine that may serve the model and is not ready, if there is one. */
static struct engine *engine_by_model(struct agent *a, struct cgn_str model, const struct engine **unready)
{
	struct engine *best = NULL;
	for (size_t i = 0; i < a->n_engines; i++) {
		struct engine *e = &a->engines[i];
		if (model.n > 0 && e->view.models.known && !engine_serves(e, model))
			continue;
		if (!engine_is_ready(e) && !engine_is_offered(e))
			*unready = e;
		else if (best == NULL || e->requests.inflight < best->requests.inflight)
			best = e;
	}
	return best;
}

static struct engine *engine_not_ready(const struct engine *e, struct cgn_err *err)
{
	(void)CGN_FAIL(err, UNAVAILABLE, "engine %s is %s: %s", e->name,
		supervise_state_name(e->process.sup.state),
		e->health.trouble[0] != '\0' ? e->health.trouble : "its models are not known yet");
	return NULL;
}

struct engine *agent_pick(struct agent *a, struct cgn_str name, struct cgn_str model, struct cgn_err *err)
{
	const struct engine *unready = NULL;
	if (name.n > 0) {
		struct engine *e = engine_by_name(a, name);
		if (e == NULL)
			(void)CGN_FAIL(err, NOT_FOUND, "node %s has no engine \"%.*s\"", a->node_id,
				(int)(name.n < 64 ? name.n : 64), name.p);
		return e == NULL || engine_is_ready(e) || engine_is_offered(e) ? e : engine_not_ready(e, err);
	}
	struct engine *best = engine_by_model(a, model, &unready);
	if (best != NULL)
		return best;
	if (unready != NULL)
		return engine_not_ready(unready, err);
	(void)CGN_FAIL(err, NOT_FOUND, "no engine of node %s serves model \"%.*s\"", a->node_id,
		(int)(model.n < 200 ? model.n : 200), model.p);
	return NULL;
}
