/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/wanted/wanted.h"

#include "base/pb/pb_json.h"

#define TEXT_MOST (WANTED_MAX_MODELS + 1)

/* Return the entry of a node in |m|, which may be NULL, by its id; NULL: there is none. */
static const Cognitora__V1__WantedNode *node_find(const Cognitora__V1__WantedModel *m, const char *node)
{
	for (size_t i = 0; m != NULL && i < m->n_nodes; i++)
		if (strcmp(m->nodes[i]->id, node) == 0)
			return m->nodes[i];
	return NULL;
}

bool wanted_is_parked(const Cognitora__V1__WantedModel *m, const char *node)
{
	const Cognitora__V1__WantedNode *n = node_find(m, node);
	return n != NULL && n->parked;
}

static bool has_own(const Cognitora__V1__WantedNode *n)
{
	return n != NULL && n->lora_path[0] != '\0';
}

struct wanted_adapter wanted_adapter_on(const Cognitora__V1__WantedModel *m, const char *node)
{
	const Cognitora__V1__WantedNode *n = node_find(m, node);
	return has_own(n) ? (struct wanted_adapter){n->base_model, n->lora_path}
			  : (struct wanted_adapter){m->base_model, m->lora_path};
}

const char *wanted_state_text(Cognitora__V1__WantedState s)
{
	return s == COGNITORA__V1__WANTED_STATE__WANTED_LOADED      ? "loaded"
		: s == COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED ? "unloaded"
		: s == COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP   ? "asleep"
								    : "";
}

/* |least|: 1 when the text must not be empty. */
static CGN_RC name_check(const char *what, const char *text, size_t least, size_t most, struct cgn_err *err)
{
	struct cgn_str s = cgn_str_of(text);
	if (s.n >= least && s.n <= most && cgn_utf8_valid(s.p, s.n))
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "%s \"%.80s\" must be UTF-8 text of %zu to %zu bytes", what, text,
		least, most);
}

static CGN_RC adapter_check(const struct wanted_adapter *a, struct cgn_err *err)
{
	CGN_TRY(name_check("the base model's name", a->base, 0, WANTED_MAX_NAME, err));
	return name_check("the path of the LoRA adapter", a->path, 0, WANTED_MAX_PATH, err);
}

static CGN_RC node_check(const Cognitora__V1__WantedNode *n, struct cgn_err *err)
{
	if (!proto_node_id_ok(cgn_str_of(n->id)))
		return CGN_FAIL(err, INVALID, "\"%.64s\" can't be a node's id", n->id);
	return adapter_check(&(struct wanted_adapter){n->base_model, n->lora_path}, err);
}

static CGN_RC model_check(const Cognitora__V1__WantedModel *m, struct cgn_err *err)
{
	CGN_TRY(name_check("the model's name", m->name, 1, WANTED_MAX_NAME, err));
	CGN_TRY(adapter_check(&(struct wanted_adapter){m->base_model, m->lora_path}, err));
	if (m->n_nodes > WANTED_MAX_NODES)
		return CGN_FAIL(err, INVALID,
			"%zu nodes are named for model \"%.80s\", at most %d are possible", m->n_nodes,
			m->name, WANTED_MAX_NODES);
	for (size_t i = 0; i < m->n_nodes; i++)
		CGN_TRY(node_check(m->nodes[i], err));
	return CGN_OK;
}

CGN_RC wanted_read(struct cgn_str text, Cognitora__V1__WantedModels **out, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__WantedModels *doc = NULL;
	CGN_TRY(pb_json_read(&cognitora__v1__wanted_models__descriptor, text, &doc, err));
	if (doc->n_models > WANTED_MAX_MODELS)
		return CGN_FAIL(err, INVALID, "%zu models, at most %d are possible", doc->n_models,
			WANTED_MAX_MODELS);
	for (size_t i = 0; i < doc->n_models; i++)
		CGN_TRY(model_check(doc->models[i], err));
	*out = CGN_TAKE(&doc);
	return CGN_OK;
}

const Cognitora__V1__WantedModel *wanted_find(const Cognitora__V1__WantedModels *doc, const char *name)
{
	for (size_t i = 0; doc != NULL && i < doc->n_models; i++)
		if (strcmp(doc->models[i]->name, name) == 0)
			return doc->models[i];
	return NULL;
}

Cognitora__V1__WantedState wanted_on(const Cognitora__V1__WantedModel *m, const char *node)
{
	const Cognitora__V1__WantedNode *n = node_find(m, node);
	if (m == NULL)
		return COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED;
	return n != NULL ? n->state : m->others;
}

/* ---- changes ---- */

static bool is_named(const struct wanted_change *c, const char *node)
{
	for (size_t i = 0; i < c->n_nodes; i++)
		if (strcmp(c->nodes[i], node) == 0)
			return true;
	return false;
}

/* The entry that is being made, with its nodes. */
struct wanted_draft {
	Cognitora__V1__WantedModel model;
	Cognitora__V1__WantedNode rows[WANTED_MAX_NODES], *list[WANTED_MAX_NODES];
};

static CGN_RC node_add(struct wanted_draft *d, const Cognitora__V1__WantedNode *node, struct cgn_err *err)
{
	size_t i = d->model.n_nodes;
	if (i == WANTED_MAX_NODES)
		return CGN_FAIL(err, OVERLOADED,
			"over %d nodes would be named for model \"%.80s\": use --all", WANTED_MAX_NODES,
			d->model.name);
	d->rows[i] = *node;
	d->list[i] = &d->rows[i];
	d->model.n_nodes++;
	return CGN_OK;
}

static bool same_adapter(const struct wanted_adapter *a, const struct wanted_adapter *b)
{
	return strcmp(a->base, b->base) == 0 && strcmp(a->path, b->path) == 0;
}

/* Does a node that the change does not name have, or get later, the adapter of all nodes? */
static bool is_shared(const Cognitora__V1__WantedModel *old, const struct wanted_change *c)
{
	if (old == NULL || c->n_nodes == 0 || c->elsewhere_unloaded)
		return false;
	for (size_t i = 0; i < old->n_nodes; i++)
		if (!is_named(c, old->nodes[i]->id) && !has_own(old->nodes[i]) &&
			old->nodes[i]->state == COGNITORA__V1__WANTED_STATE__WANTED_LOADED)
			return true;
	return old->others == COGNITORA__V1__WANTED_STATE__WANTED_LOADED;
}

/* Add the change's order for its node |i|. Another adapter than the one of all nodes is the node's own; a
 * node that does not load now keeps its own for the next time. */
static CGN_RC named_add(struct wanted_draft *d, const Cognitora__V1__WantedModel *old,
	const struct wanted_change *c, size_t i, struct cgn_err *err)
{
	Cognitora__V1__WantedNode n = COGNITORA__V1__WANTED_NODE__INIT;
	const Cognitora__V1__WantedNode *before = node_find(old, c->nodes[i]);
	const struct wanted_adapter all = {d->model.base_model, d->model.lora_path},
				    own = {c->base, c->lora_path};
	n.id = pb_text(c->nodes[i]);
	n.state = c->state;
	n.parked = c->parked;
	if (c->state != COGNITORA__V1__WANTED_STATE__WANTED_LOADED && has_own(before)) {
		n.base_model = before->base_model;
		n.lora_path = before->lora_path;
	} else if (!same_adapter(&all, &own)) {
		n.base_model = pb_text(own.base);
		n.lora_path = pb_text(own.path);
	}
	return node_add(d, &n, err);
}

static CGN_RC draft_make(struct wanted_draft *d, const Cognitora__V1__WantedModel *old,
	const struct wanted_change *c, uint64_t revision, struct cgn_err *err)
{
	Cognitora__V1__WantedModel *m = &d->model;
	bool all = c->n_nodes == 0;
	cognitora__v1__wanted_model__init(m);
	m->nodes = d->list;
	m->name = pb_text(c->name);
	bool shared = is_shared(old, c);
	m->base_model = shared ? old->base_model : pb_text(c->base);
	m->lora_path = shared ? old->lora_path : pb_text(c->lora_path);
	m->by = pb_text(c->by);
	m->revision = revision;
	m->changed_unix_ms = c->now_ms;
	m->others = c->elsewhere_unloaded ? COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED
		: all                     ? c->state
		: old != NULL             ? old->others
					  : COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED;
	for (size_t i = 0; !all && !c->elsewhere_unloaded && old != NULL && i < old->n_nodes; i++)
		if (!is_named(c, old->nodes[i]->id))
			CGN_TRY(node_add(d, old->nodes[i], err));
	for (size_t i = 0; i < c->n_nodes; i++)
		CGN_TRY(named_add(d, old, c, i, err));
	return model_check(m, err);
}

/* Return the oldest entry that keeps the model from all nodes, to be dropped when there is no room; NULL: none. */
static const Cognitora__V1__WantedModel *oldest_over(const Cognitora__V1__WantedModels *doc, const char *but)
{
	const Cognitora__V1__WantedModel *best = NULL;
	for (size_t i = 0; i < doc->n_models; i++) {
		const Cognitora__V1__WantedModel *m = doc->models[i];
		bool over = m->base_model[0] != '\0' && m->n_nodes == 0 &&
			m->others == COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED;
		if (over && strcmp(m->name, but) != 0 && (best == NULL || m->revision < best->revision))
			best = m;
	}
	return best;
}

CGN_RC wanted_write(const Cognitora__V1__WantedModels *doc, const struct wanted_change *c,
	struct cgn_buf *out, struct cgn_err *err)
{
	struct wanted_draft draft;
	Cognitora__V1__WantedModels next = COGNITORA__V1__WANTED_MODELS__INIT;
	Cognitora__V1__WantedModel *list[TEXT_MOST];
	const Cognitora__V1__WantedModel *old = wanted_find(doc, c->name), *drop = NULL;
	uint64_t last = doc != NULL ? doc->revision : 0;
	size_t n = doc != NULL ? doc->n_models : 0;
	/* A clock makes the revisions of a cluster whose store was lost newer than those that its agents know. */
	next.revision = last < c->now_ms ? c->now_ms : last + 1;
	CGN_TRY(draft_make(&draft, old, c, next.revision, err));
	if (old == NULL && n >= WANTED_MAX_MODELS && (drop = oldest_over(doc, c->name)) == NULL)
		return CGN_FAIL(err, OVERLOADED, "%d models are kept already: unload one", WANTED_MAX_MODELS);
	for (size_t i = 0; i < n; i++)
		if (doc->models[i] != old && doc->models[i] != drop)
			list[next.n_models++] = doc->models[i];
	list[next.n_models++] = &draft.model;
	next.models = list;
	struct json_out o = json_out_to(out);
	pb_json_put(&o, &next, PB_JSON_PROTO3);
	return out->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the wanted models") : CGN_OK;
}
