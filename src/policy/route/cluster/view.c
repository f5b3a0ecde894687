/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/cluster/view.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/json/json.h"

#define VIEW_TAG 0xc1057e03U
#define AHEAD    8
/* Milliseconds. A longer load in a node's report is not believed. */
#define LOAD_MOST (3600U * 1000)
/* 4096 nodes at every bound of proto.h stay below this limit. */
#define VIEW_LIMIT ((size_t)256 * 1024 * 1024)

/* A (model, node) pair while the view is built. */
struct pair {
	struct cgn_str model, served;
	struct cgn_str base; /* Requests to the engine have it before the name, with a ':'; empty: nothing. */
	const struct view_node *node;
	const struct engine_ops *kind;
	const struct engine_tokens_ops *tokens;
	const struct engine_resume *resume;
	bool mixes;
	const Cognitora__V1__ModelFacts *facts; /* NULL: none. */
	struct view_swap swap;
	bool has_swap;
	const Cognitora__V1__Handoff *handoff;
	uint32_t chain;
	bool ready;
};

static int pair_order(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;
	int d = cgn_str_order(x->model, y->model);
	if (d != 0)
		return d;
	if (x->node->slot != y->node->slot)
		return x->node->slot < y->node->slot ? -1 : 1;
	return cgn_str_order(x->served, y->served);
}

/* Copy the way to an engine without an agent. False: out of memory. */
static bool door_fill(struct cluster_view *v, const struct cluster_node *n, struct view_direct *out)
{
	struct cluster_door *to = cgn_arena_get(&v->arena, sizeof *to);
	if (to == NULL)
		return false;
	*to = *n->door;
	if (to->authorization != NULL)
		to->authorization = cgn_arena_strz(&v->arena, cgn_str_of(to->authorization));
	const Cognitora__V1__Engine *e = n->info->n_engines == 1 ? n->info->engines[0] : NULL;
	*out = (struct view_direct){.address = to->url.addr,
		.host = "",
		.connections = to->connections,
		.kind = e != NULL ? engine_ops_named(cgn_str_of(e->kind)) : NULL,
		.door = to};
	return (to->authorization == NULL) == (n->door->authorization == NULL);
}

/* False: out of memory. */
static bool direct_fill(struct cluster_view *v, const Cognitora__V1__Node *info, struct view_direct *out)
{
	const Cognitora__V1__Engine *e = info->n_engines == 1 ? info->engines[0] : NULL;
	if (e == NULL || !e->ready || e->direct == NULL || e->direct->connections == 0)
		return true;
	*out = (struct view_direct){.address = cgn_arena_strz(&v->arena, cgn_str_of(e->direct->address)),
		.host = cgn_arena_strz(&v->arena, cgn_str_of(e->direct->host)),
		.connections = e->direct->connections,
		.kind = engine_ops_named(cgn_str_of(e->kind))};
	return out->address != NULL && out->host != NULL;
}

static bool nodes_fill(struct cluster_view *v, const struct cluster *c)
{
	size_t n_nodes = 1; /* The array must not be empty. */
	for (size_t i = 0; i < NODE_STATE_COUNT; i++)
		n_nodes += c->count[i];
	v->nodes = cgn_arena_zero(&v->arena, n_nodes * sizeof *v->nodes);
	if (v->nodes == NULL)
		return false;
	for (uint16_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *n = c->by_slot[s];
		if (n == NULL)
			continue;
		struct view_node *to = &v->nodes[v->n_nodes++];
		*to = (struct view_node){.slot = s,
			.state = n->state,
			.width = cluster_node_width(n),
			.role = (int)n->info->role,
			.kv_block = cluster_node_kv_block(n),
			.index_id = n->index_id,
			.fed = n->fed && n->has_index_id,
			.fed_bytes = n->fed_bytes,
			.keeps_none = n->keeps_none,
			.record_until = n->record_until,
			.stores = n->info->kv != NULL};
		to->id = cgn_arena_strz(&v->arena, cgn_str_of(n->info->id));
		to->address = cgn_arena_strz(&v->arena, cgn_str_of(n->address));
		bool filled =
			n->door != NULL ? door_fill(v, n, &to->direct) : direct_fill(v, n->info, &to->direct);
		if (to->id == NULL || to->address == NULL || !filled)
			return false;
		to->node_id_hash = route_hash(to->id, strlen(to->id));
	}
	return true;
}

static bool models_are_told(const Cognitora__V1__Node *info)
{
	bool told = info->n_engines > 0;
	for (size_t e = 0; e < info->n_engines; e++)
		told = told && info->engines[e]->n_models > 0;
	return told;
}

static void settled_fill(struct cluster_view *v, const struct cluster *c)
{
	for (size_t i = 0; i < v->n_nodes; i++)
		v->n_untold += !models_are_told(c->by_slot[v->nodes[i].slot]->info);
	v->heard = c->heard;
	v->away = c->away;
	v->settled = c->heard && !c->away && v->n_nodes > 0 && v->n_untold == 0;
}

static size_t pairs_count(const struct cluster *c)
{
	size_t n = 0;
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const Cognitora__V1__Node *info = c->by_slot[s] != NULL ? c->by_slot[s]->info : NULL;
		for (size_t e = 0; info != NULL && e < info->n_engines; e++)
			n += info->engines[e]->n_models;
	}
	return n;
}

/* Return view_model.chain for model |name|, which the engine serves as e->models[at]. Adapters after the first model have
 * chains of their own. */
static uint32_t chain_of(const Cognitora__V1__Engine *e, size_t at, struct cgn_str name)
{
	const Cognitora__V1__Chain *c = e->chain;
	if (c == NULL)
		return 0;
	bool same = c->version == DIGEST_VERSION && (at > 0 || cgn_str_is(name, c->model));
	return same ? c->block_tokens : VIEW_OTHER_CHAIN;
}

/* Return the name by which the engine knows its model e->models[at]. */
static struct cgn_str served_of(const Cognitora__V1__Engine *e, size_t at)
{
	return cgn_str_of(at == 0 && e->served[0] != '\0' ? e->served : e->models[at]);
}

/* Return the text that requests put before the name of the model e->models[at]. */
static struct cgn_str base_of(const Cognitora__V1__Engine *e, size_t at, const struct engine_ops *kind)
{
	bool named = kind != NULL && kind->adapter_after_base && at > 0;
	return named ? served_of(e, 0) : CGN_STR("");
}

static bool facts_are_loaded(const Cognitora__V1__ModelFacts *f)
{
	return strcmp(f->state, "ready") == 0 || strcmp(f->state, "loading") == 0;
}

/* Return how many models of |e|, or as an engine on demand of its agent |e| itself, are loaded or being loaded. */
static uint32_t engine_loads(const Cognitora__V1__Engine *e)
{
	uint32_t n = e->swap != NULL && (e->swap->loaded || strncmp(e->swap->state, "loading", 7) == 0);
	for (size_t i = 0; i < e->n_facts; i++)
		n += facts_are_loaded(e->facts[i]);
	return n;
}

/* Fill in how the model of |p| is loaded, if it is on demand. |loads|: the node's models that are loaded. */
static void pair_swap(struct pair *p, const Cognitora__V1__Engine *e, uint32_t loads)
{
	const Cognitora__V1__Swap *s = e->swap;
	p->has_swap = s != NULL || (p->facts != NULL && p->facts->state[0] != '\0');
	if (!p->has_swap)
		return;
	if (s != NULL)
		p->swap = (struct view_swap){.loaded = s->loaded,
			.loading = !s->loaded && strncmp(s->state, "loading", 7) == 0,
			.by_agent = true,
			.load_ms = s->load_ms,
			.memory_bytes = s->memory_bytes,
			.expires_unix_ms = s->expires_unix_ms};
	else
		p->swap = (struct view_swap){.loaded = strcmp(p->facts->state, "ready") == 0,
			.loading = strcmp(p->facts->state, "loading") == 0,
			.load_ms = p->facts->load_ms,
			.holds = e->models_held};
	p->swap.others = loads - (p->swap.loaded || p->swap.loading);
	/* Questions for tokens would load the model, anywhere. */
	if (!p->swap.by_agent)
		p->tokens = NULL;
}

static size_t pairs_fill(const struct cluster_view *v, const struct cluster *c, view_name_fn name_of,
	const void *arg, struct pair *out)
{
	size_t n = 0;
	for (size_t i = 0; i < v->n_nodes; i++) {
		const Cognitora__V1__Node *info = c->by_slot[v->nodes[i].slot]->info;
		uint32_t loads = 0;
		for (size_t e = 0; e < info->n_engines; e++)
			loads += engine_loads(info->engines[e]);
		for (size_t e = 0; e < info->n_engines; e++) {
			Cognitora__V1__ModelFacts **facts = info->engines[e]->facts,
						  **end = facts + info->engines[e]->n_facts;
			for (size_t m = 0; m < info->engines[e]->n_models; m++) {
				struct cgn_str told = cgn_str_of(info->engines[e]->models[m]);
				struct cgn_str served = served_of(info->engines[e], m);
				struct cgn_str name = name_of != NULL ? name_of(arg, told) : told;
				const struct engine_ops *kind =
					engine_ops_named(cgn_str_of(info->engines[e]->kind));
				while (facts < end && (*facts)->model < m)
					facts++;
				out[n] = (struct pair){.model = name,
					.served = served,
					.base = base_of(info->engines[e], m, kind),
					.node = &v->nodes[i],
					.kind = kind,
					.tokens = engine_tokens_of(cgn_str_of(info->engines[e]->kind)),
					.resume = engine_resume_named(cgn_str_of(info->engines[e]->resume)),
					.handoff = info->engines[e]->handoff,
					.chain = chain_of(info->engines[e], m, name),
					.mixes = info->engines[e]->mixes_salts,
					.facts = facts < end && (*facts)->model == m ? *facts : NULL,
					.ready = v->nodes[i].state == NODE_READY && info->engines[e]->ready};
				pair_swap(&out[n++], info->engines[e], loads);
			}
		}
	}
	return n;
}

/* Arrays of a view_model, one entry for each pair. */
struct model_columns {
	const struct view_node **ready;
	const struct engine_ops **kinds;
	const struct engine_tokens_ops **tokens;
	const struct engine_resume **resume;
	const struct handoff_end **handoff;
	uint32_t *chain;
	bool *mixes;
	const struct view_swap **swap;
	struct view_name *served;
};

/* False: out of memory. */
static bool name_fill(struct cluster_view *v, const struct pair *p, struct view_name *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0}, name = {0};
	struct json_out o = json_out_to(&b);
	if (p->base.n > 0)
		cgn_buf_fmt(&name, "%.*s:", CGN_STR_ARG(p->base));
	cgn_buf_str(&name, p->served);
	json_put_str(&o, cgn_buf_view(&name));
	*out = (struct view_name){cgn_arena_str(&v->arena, p->served),
		cgn_arena_str(&v->arena, cgn_buf_view(&b))};
	return out->text.p != NULL && out->json.p != NULL;
}

/* Begin the model of |p| with its columns at |at|. False: out of memory. */
static bool model_begin(struct cluster_view *v, const struct pair *p, const struct model_columns *at)
{
	struct view_model *m = &v->models[v->n_models++];
	m->name = cgn_arena_str(&v->arena, p->model);
	m->key = route_hash(p->model.p, p->model.n);
	m->ready = at->ready;
	m->kinds = at->kinds;
	m->tokens = at->tokens;
	m->resume = at->resume;
	m->handoff = at->handoff;
	m->chain = at->chain;
	m->mixes = at->mixes;
	m->swap = at->swap;
	m->served = at->served;
	return m->name.p != NULL;
}

/* Copy the node's facts of its engine. An engine without facts hands over through the node's block store, if
 * the node has one. False: out of memory. */
static bool handoff_fill(struct cluster_view *v, const struct pair *p, const struct handoff_end **out)
{
	static const struct handoff_end store = {.kind = HANDOFF_STORE, .fingerprint = 1};
	const Cognitora__V1__Handoff *h = p->handoff;
	enum handoff_kind kind = h != NULL ? handoff_kind_named(cgn_str_of(h->kind)) : HANDOFF_NONE;
	*out = h == NULL && p->node->stores ? &store : NULL;
	if (kind == HANDOFF_NONE)
		return true;
	struct handoff_end *to = cgn_arena_zero(&v->arena, sizeof *to);
	struct cgn_str *ids = cgn_arena_get(&v->arena, (h->n_engine_ids + 1) * sizeof *ids);
	if (to == NULL || ids == NULL)
		return false;
	for (size_t i = 0; i < h->n_engine_ids; i++)
		ids[i] = cgn_arena_str(&v->arena, cgn_str_of(h->engine_ids[i]));
	*to = (struct handoff_end){.kind = kind,
		.port = (uint16_t)h->port,
		.host = cgn_arena_str(&v->arena, cgn_str_of(h->host)),
		.engine_ids = ids,
		.n_engine_ids = h->n_engine_ids,
		.terms = cgn_arena_str(&v->arena, cgn_str_of(h->terms)),
		.fingerprint = handoff_fingerprint(kind, cgn_str_of(h->terms))};
	*out = to;
	return to->host.p != NULL && to->terms.p != NULL;
}

/* False: out of memory. */
static bool swap_fill(struct cluster_view *v, const struct pair *p, const struct view_swap **out)
{
	struct view_swap *to = p->has_swap ? cgn_arena_get(&v->arena, sizeof *to) : NULL;
	*out = to;
	if (to != NULL)
		*to = p->swap;
	return to != NULL || !p->has_swap;
}

/* Return true if the card of |a| wins over that of |b|. */
static bool card_wins(const struct pair *a, const struct pair *b)
{
	uint64_t x = a->facts->context, y = b->facts->context;
	if (x != y)
		return y == 0 || (x != 0 && x < y);
	return strcmp(a->node->id, b->node->id) < 0;
}

/* Copy the card of |p|. False: out of memory. */
static bool card_fill(struct cluster_view *v, const struct pair *p, struct view_card *out)
{
	if (p == NULL)
		return true;
	*out = (struct view_card){.members = cgn_arena_str(&v->arena, cgn_str_of(p->facts->card)),
		.created = p->facts->created,
		.context = p->facts->context};
	return out->members.p != NULL;
}

/* Add the ready node of |p| to its model, behind the columns at |at|. False: out of memory. */
static bool model_add_ready(struct cluster_view *v, const struct pair *p, struct model_columns *at)
{
	struct view_model *m = &v->models[v->n_models - 1];
	const uint64_t key[] = {m->key, p->node->node_id_hash};
	m->key = route_hash(key, sizeof key);
	*at->ready++ = p->node;
	*at->kinds++ = p->kind;
	*at->tokens++ = p->tokens;
	*at->resume++ = p->resume;
	*at->chain++ = p->chain;
	*at->mixes++ = p->mixes;
	if (!handoff_fill(v, p, at->handoff++) || !swap_fill(v, p, at->swap++))
		return false;
	const struct view_name *last = m->n_ready > 0 ? &m->served[m->n_ready - 1] : NULL;
	bool plain = p->base.n == 0 && last != NULL && last->json.n == last->text.n + 2;
	uint32_t load = p->swap.load_ms < LOAD_MOST ? p->swap.load_ms : LOAD_MOST;
	m->load_most = load > m->load_most ? load : m->load_most;
	m->n_ready++;
	if (!plain || !cgn_str_eq(last->text, p->served))
		return name_fill(v, p, at->served++);
	*at->served++ = *last; /* Mostly all nodes have the same name for a model. */
	return true;
}

/* Group the sorted pairs by model. */
static bool models_fill(struct cluster_view *v, const struct pair *pairs, size_t n)
{
	struct model_columns at = {
		.ready = cgn_arena_get(&v->arena, n * sizeof *at.ready),
		.kinds = cgn_arena_get(&v->arena, n * sizeof *at.kinds),
		.tokens = cgn_arena_get(&v->arena, n * sizeof *at.tokens),
		.resume = cgn_arena_get(&v->arena, n * sizeof *at.resume),
		.handoff = cgn_arena_get(&v->arena, n * sizeof *at.handoff),
		.chain = cgn_arena_get(&v->arena, n * sizeof *at.chain),
		.mixes = cgn_arena_get(&v->arena, n * sizeof *at.mixes),
		.swap = cgn_arena_get(&v->arena, n * sizeof *at.swap),
		.served = cgn_arena_get(&v->arena, n * sizeof *at.served),
	};
	v->models = cgn_arena_zero(&v->arena, n * sizeof *v->models);
	if (n > 0 &&
		(v->models == NULL || at.ready == NULL || at.kinds == NULL || at.tokens == NULL ||
			at.resume == NULL || at.handoff == NULL || at.chain == NULL || at.mixes == NULL ||
			at.swap == NULL || at.served == NULL))
		return false;
	const struct pair *card = NULL;
	for (size_t i = 0; i < n; i++) {
		struct view_model *m = v->n_models > 0 ? &v->models[v->n_models - 1] : NULL;
		if (m == NULL || !cgn_str_eq(m->name, pairs[i].model)) {
			if ((m != NULL && !card_fill(v, card, &m->card)) || !model_begin(v, &pairs[i], &at))
				return false;
			card = NULL;
		}
		m = &v->models[v->n_models - 1];
		m->may_tokenize = m->may_tokenize || pairs[i].tokens != NULL;
		m->tokenizes = m->tokenizes || (pairs[i].tokens != NULL && !pairs[i].tokens->guess);
		if (!pairs[i].ready || (m->n_ready > 0 && m->ready[m->n_ready - 1] == pairs[i].node))
			continue;
		if (!model_add_ready(v, &pairs[i], &at))
			return false;
		if (pairs[i].facts != NULL && (card == NULL || card_wins(&pairs[i], card)))
			card = &pairs[i];
	}
	return n == 0 || card_fill(v, card, &v->models[v->n_models - 1].card);
}

static void view_free(struct cluster_view *v)
{
	v->tag = 0;
	cgn_arena_fini(&v->arena);
	free(v);
}

CGN_RC cluster_view_new(const struct cluster *c, view_name_fn name_of, const void *arg,
	struct cluster_view **out, struct cgn_err *err)
{
	struct cluster_view *v = CGN_NEW(struct cluster_view);
	size_t n = pairs_count(c);
	struct pair *pairs = malloc((n + 1) * sizeof *pairs);
	v->tag = VIEW_TAG;
	atomic_init(&v->refs, 1);
	cgn_arena_init(&v->arena, VIEW_LIMIT);
	bool made = pairs != NULL && nodes_fill(v, c);
	if (made) {
		CGN_MUST(pairs_fill(v, c, name_of, arg, pairs) == n);
		qsort(pairs, n, sizeof *pairs, pair_order);
		made = models_fill(v, pairs, n);
		settled_fill(v, c);
	}
	free(pairs);
	if (made) {
		*out = v;
		return CGN_OK;
	}
	view_free(v);
	return CGN_FAIL(err, NO_MEMORY, "view of the cluster: out of memory");
}

void cluster_view_ref(struct cluster_view *v)
{
	CGN_LIVE(v, VIEW_TAG);
	atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
}

void cluster_view_unref(struct cluster_view **take)
{
	struct cluster_view *v = CGN_TAKE_LIVE(take, VIEW_TAG);
	if (v == NULL)
		return;
	if (atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1)
		view_free(v);
}

const struct view_model *view_model_find(const struct cluster_view *v, struct cgn_str name)
{
	CGN_LIVE(v, VIEW_TAG);
	for (size_t lo = 0, hi = v->n_models; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;
		int d = cgn_str_order(name, v->models[mid].name);
		if (d == 0)
			return &v->models[mid];
		if (d < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

bool view_lacks(const struct view_model *m, size_t i, struct cgn_str path)
{
	return m->kinds[i] != NULL && engine_lacks(m->kinds[i], path);
}

/* Return the index of the node in |slot| in m->ready; m->n_ready: it is not there. */
static size_t ready_find(const struct view_model *m, uint16_t slot)
{
	for (size_t lo = 0, hi = m->n_ready; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;
		if (m->ready[mid]->slot == slot)
			return mid;
		if (slot < m->ready[mid]->slot)
			hi = mid;
		else
			lo = mid + 1;
	}
	return m->n_ready;
}

const struct view_name *view_served_name(const struct view_model *m, uint16_t slot)
{
	size_t i = ready_find(m, slot);
	CGN_MUST(i < m->n_ready); /* the node is ready */
	return &m->served[i];
}

const struct engine_ops *view_kind(const struct view_model *m, uint16_t slot)
{
	size_t i = ready_find(m, slot);
	CGN_MUST(i < m->n_ready); /* the node is ready */
	return m->kinds[i];
}

bool view_salts(const struct view_model *m, uint16_t slot, struct cgn_str path)
{
	const struct engine_ops *kind = view_kind(m, slot);
	return kind != NULL && engine_salts(kind, path);
}

bool view_isolates(const struct view_model *m, size_t i, struct cgn_str path)
{
	return m->kinds[i] != NULL && engine_salts(m->kinds[i], path) && !m->mixes[i];
}

const struct handoff_end *view_handoff(const struct view_model *m, uint16_t slot)
{
	size_t i = ready_find(m, slot);
	return i < m->n_ready ? m->handoff[i] : NULL;
}

const struct view_node *view_node_find(const struct cluster_view *v, struct cgn_str id)
{
	CGN_LIVE(v, VIEW_TAG);
	for (size_t i = 0; i < v->n_nodes; i++)
		if (cgn_str_is(id, v->nodes[i].id))
			return &v->nodes[i];
	return NULL;
}

const struct view_node *view_node_at(const struct cluster_view *v, uint16_t slot)
{
	CGN_LIVE(v, VIEW_TAG);
	for (size_t lo = 0, hi = v->n_nodes; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;
		if (v->nodes[mid].slot == slot)
			return &v->nodes[mid];
		if (slot < v->nodes[mid].slot)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

static bool slot_is_in(const uint16_t *slots, size_t n, uint16_t slot)
{
	for (size_t i = 0; i < n; i++)
		if (slots[i] == slot)
			return true;
	return false;
}

static uint32_t u32_of(const _Atomic uint32_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

/* Fill in the work that waits at the node: prompt tokens and streams, of this router and, as far as reported,
 * of others. Requests that are not reported by kind count as streams. */
static void work_fill(struct route_cand *c, const struct node_stats *stats)
{
	uint64_t waiting = atomic_load_explicit(&stats->others_tokens, memory_order_relaxed);
	uint32_t streams = u32_of(&stats->others_decoding);
	c->queued_tokens =
		(float)(atomic_load_explicit(&stats->queued_tokens, memory_order_relaxed) + waiting);
	c->decoding = u32_of(&stats->decoding) + (waiting == 0 && streams == 0 ? c->others : streams);
}

/* Fill in the cost of a load for this request, and the models that would have to leave. The node's
 * description is seconds old: requests that this router sent there since count too. */
static void load_fill(struct route_cand *c, const struct view_model *m, size_t i,
	const struct node_stats *stats, cgn_nsec now)
{
	const struct view_swap *s = m->swap[i];
	if (s == NULL)
		return;
	cgn_nsec load = (cgn_nsec)(s->load_ms > 0 ? s->load_ms : 1) * CGN_MSEC;
	struct warm_seen seen = warm_look(&stats->warm, m->name, load, now);
	uint32_t holds = s->holds > 0 ? s->holds : 1,
		 others = seen.others > s->others ? seen.others : s->others;
	bool driven_out = s->holds > 0 && seen.later >= s->holds;
	c->on_demand = true;
	c->load_ms = s->loaded && !driven_out ? 0 : (uint32_t)(load / CGN_MSEC);
	if (c->load_ms == 0 || (s->loading && !driven_out))
		return;
	if (seen.noted && !driven_out)
		c->load_ms = seen.ago + CGN_MSEC < load ? (uint32_t)((load - seen.ago) / CGN_MSEC) : 1;
	else if (others >= holds)
		c->evict_ms = 2 * (m->load_most > 0 ? m->load_most : 1);
}

uint32_t view_load_ms(const struct view_model *m, size_t i)
{
	const struct view_swap *s = m->swap[i];
	return s == NULL || s->loaded ? 0 : s->load_ms > 0 ? s->load_ms : 1;
}

/* The candidate m->ready[i]. */
static struct route_cand cand_of(const struct view_model *m, size_t i, const struct node_stats *stats,
	cgn_nsec now)
{
	const struct view_node *node = m->ready[i];
	const struct handoff_end *end = m->handoff[i];
	struct cluster_spare spare = node_stats_spare(stats);
	struct route_cand c = {
		.slot = node->slot,
		.inflight = u32_of(&stats->inflight),
		.others = u32_of(&stats->others),
		.width = node->width,
		.kv_usage = spare.kv_usage,
		.power_headroom = spare.power_headroom,
		.node_id_hash = node->node_id_hash,
		.index_id = node->index_id,
		.fed = node->fed,
		.fed_bytes = node->fed_bytes,
		.keeps_none = node->keeps_none,
		.chain_tokens = m->chain[i],
		.fed_lately = node->fed && node->record_until > now,
		.role = (uint8_t)node->role,
		.stores = node->stores,
		.handoff = end != NULL ? end->fingerprint : 0,
		.alone = end == NULL || handoff_ops_of(end->kind)->alone ||
			node->role == COGNITORA__V1__ROLE__ROLE_BOTH,
		.pulls = end != NULL && end->kind == HANDOFF_STORE,
		.speed = node_stats_speed(stats),
	};
	work_fill(&c, stats);
	load_fill(&c, m, i, stats, now);
	return c;
}

static uint64_t breaker_of(const struct node_stats *stats)
{
	return atomic_load_explicit(&stats->breaker, memory_order_relaxed);
}

/* When every breaker is open, return the nodes with the least bad breakers. */
static size_t least_bad(const struct view_model *m, const struct node_stats *stats,
	const struct view_ask *ask, struct route_cand *out)
{
	size_t n = 0;
	unsigned least = UINT_MAX;
	for (size_t i = 0; i < m->n_ready; i++) {
		const struct node_stats *own = &stats[m->ready[i]->slot];
		unsigned badness = breaker_badness(breaker_of(own));
		if (slot_is_in(ask->excluded, ask->n_excluded, m->ready[i]->slot) || badness > least)
			continue;
		if (badness < least)
			n = 0;
		least = badness;
		out[n++] = cand_of(m, i, own, ask->now);
	}
	return n;
}

/* Prefetch some lines ahead: with a thousand nodes, the stats are not cached when a request arrives. */
static void fetch_ahead(const struct view_model *m, const struct node_stats *stats, size_t i)
{
	size_t far = i + 2 * AHEAD, near = i + AHEAD;
	if (far < m->n_ready)
		__builtin_prefetch(m->ready[far]);
	if (near >= m->n_ready)
		return;
	__builtin_prefetch(&stats[m->ready[near]->slot]);
}

size_t view_candidates(const struct view_model *m, const struct node_stats *stats, const struct view_ask *ask,
	struct route_cand *out)
{
	size_t n = 0;
	bool any = ask->all;
	for (size_t i = 0; i < m->n_ready; i++) {
		const struct node_stats *own = &stats[m->ready[i]->slot];
		fetch_ahead(m, stats, i);
		uint64_t word = breaker_of(own);
		if (!ask->all && word != 0 && breaker_gate(word, ask->now) == BREAKER_SHUT)
			continue;
		any = true;
		if (!slot_is_in(ask->excluded, ask->n_excluded, m->ready[i]->slot))
			out[n++] = cand_of(m, i, own, ask->now);
	}
	return any ? n : least_bad(m, stats, ask, out);
}
