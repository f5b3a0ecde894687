/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/engine.h"
#include "policy/node/wanted/wanted.h"

/* ---- able nodes ---- */

static bool is_served(const Cognitora__V1__Engine *e, const char *name)
{
	for (size_t i = 0; i < e->n_models; i++)
		if (strcmp(e->models[i], name) == 0)
			return true;
	return false;
}

/* Does the engine load adapters, and sleep, while it runs? */
static bool engine_changes(const Cognitora__V1__Engine *e)
{
	const struct engine_ops *ops = engine_ops_named(cgn_str_of(e->kind));
	return ops != NULL && ops->changes != NULL;
}

CGN_RC wanted_able(const Cognitora__V1__Node *n, const char *base, struct cgn_err *err)
{
	const Cognitora__V1__Engine *unable = NULL;
	for (size_t i = 0; i < n->n_engines; i++) {
		if (!is_served(n->engines[i], base))
			continue;
		if (engine_changes(n->engines[i]))
			return CGN_OK;
		unable = n->engines[i];
	}
	if (unable != NULL)
		return CGN_FAIL(err, UNSUPPORTED,
			"engine %s is of kind %s, which loads no LoRA adapters while it runs (vllm and sglang do)",
			unable->name, unable->kind);
	return CGN_FAIL(err, UNSUPPORTED, "none of its engines serves the base model \"%.200s\"", base);
}

static bool is_adapter(const Cognitora__V1__Engine *e, const char *name)
{
	for (size_t i = 0; i < e->n_adapters; i++)
		if (strcmp(e->adapters[i]->name, name) == 0)
			return true;
	return false;
}

static const Cognitora__V1__Engine *engine_with(const Cognitora__V1__Node *n, const char *name)
{
	for (size_t i = 0; i < n->n_engines; i++)
		if (is_served(n->engines[i], name) && !is_adapter(n->engines[i], name))
			return n->engines[i];
	return NULL;
}

CGN_RC wanted_able_own(const Cognitora__V1__Node *n, const char *name, Cognitora__V1__WantedState state,
	struct cgn_err *err)
{
	const Cognitora__V1__Engine *e = engine_with(n, name);
	if (e == NULL)
		return CGN_FAIL(err, UNSUPPORTED, "none of its engines has the model \"%.200s\"", name);
	if (state == COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED && !e->managed)
		return CGN_FAIL(err, UNSUPPORTED,
			"its agent does not manage engine %s: stop it where it was started", e->name);
	if (state == COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP && !engine_changes(e))
		return CGN_FAIL(err, UNSUPPORTED,
			"engine %s is of kind %s, which cannot sleep (vllm and sglang can)", e->name,
			e->kind);
	return CGN_OK;
}

/* 0: the model runs there; 1: it rests with its memory given back; 2: it must be started. */
static int effort_of(const Cognitora__V1__Node *n, const char *name)
{
	const Cognitora__V1__Engine *e = engine_with(n, name);
	if (e != NULL && e->ready)
		return 0;
	return e != NULL && e->rest != NULL && strcmp(e->rest->state, "asleep") == 0 ? 1 : 2;
}

void wanted_rank(const Cognitora__V1__Node **nodes, size_t n, const char *name)
{
	for (size_t i = 1; i < n; i++) { /* By insertion: a cluster has few nodes of one model. */
		const Cognitora__V1__Node *one = nodes[i];
		size_t at = i;
		for (; at > 0; at--) {
			int before = effort_of(nodes[at - 1], name), own = effort_of(one, name);
			if (before < own || (before == own && strcmp(nodes[at - 1]->id, one->id) <= 0))
				break;
			nodes[at] = nodes[at - 1];
		}
		nodes[at] = one;
	}
}

/* ---- places ---- */

/* Fill |out| with how far the engine is with its own model. */
static void own_place(const Cognitora__V1__Engine *e, const Cognitora__V1__WantedModel *m,
	Cognitora__V1__ModelPlace *out)
{
	const Cognitora__V1__Rest *r = e->rest;
	bool said = m != NULL && out->wanted != COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED;
	bool obeys = !said || (r != NULL && r->revision >= m->revision);
	out->engine = e->name;
	out->state = pb_text(e->ready ? "ready" : "loading");
	out->why = e->trouble;
	if (e->swap != NULL) {
		out->state = e->swap->state;
		out->why = e->swap->why;
	} else if (r != NULL && r->state[0] != '\0') {
		out->state = r->state;
		out->why = r->why;
	}
	if (!obeys)
		out->why = pb_text("the agent was not told of the last order yet");
}

/* Fill |out| if the engine has the model, or was asked to load it. An adapter that was asked for is shown
 * before one that the engine had from elsewhere. */
static bool engine_place(const Cognitora__V1__Engine *e, const char *name,
	const Cognitora__V1__WantedModel *m, Cognitora__V1__ModelPlace *out)
{
	for (size_t i = 0; i < e->n_adapters; i++) {
		const Cognitora__V1__Adapter *a = e->adapters[i];
		if (strcmp(a->name, name) != 0)
			continue;
		bool obeys = m == NULL || a->revision >= m->revision;
		out->engine = e->name;
		out->state = !obeys ? pb_text("loading") : a->state;
		out->why = pb_text(!obeys ? "the agent was not told of the last order yet"
				: a->why[0] != '\0' || e->ready ? a->why
								: e->trouble);
		return true;
	}
	if ((m != NULL && m->base_model[0] != '\0') || !is_served(e, name))
		return false;
	own_place(e, m, out);
	return true;
}

static bool is_named(const Cognitora__V1__WantedModel *m, const char *node)
{
	for (size_t i = 0; i < m->n_nodes; i++)
		if (strcmp(m->nodes[i]->id, node) == 0)
			return true;
	return false;
}

bool wanted_place(const Cognitora__V1__Node *n, bool heard, const char *name,
	const Cognitora__V1__WantedModel *m, char *why, size_t cap, Cognitora__V1__ModelPlace *out)
{
	struct cgn_err err;
	bool found = false;
	cognitora__v1__model_place__init(out);
	out->node = n->id;
	out->wanted = wanted_on(m, n->id);
	const struct wanted_adapter a =
		m != NULL ? wanted_adapter_on(m, n->id) : (struct wanted_adapter){"", ""};
	out->base_model = pb_text(a.base);
	out->lora_path = pb_text(a.path);
	out->state = pb_text("absent");
	for (size_t i = 0; i < n->n_engines && !found; i++)
		found = engine_place(n->engines[i], name, m, out);
	if (found && heard)
		return true;
	if (found) {
		out->state = pb_text("unknown");
		out->why = pb_text("the node's agent does not answer");
		return true;
	}
	if (out->wanted != COGNITORA__V1__WANTED_STATE__WANTED_LOADED)
		return false;
	bool able = cgn_ok(wanted_able(n, a.base, &err));
	(void)cgn_str_copyz(why, cap,
		cgn_str_of(!heard      ? "the node's agent does not answer"
				: able ? "the agent was not told yet, or is of an earlier version"
				       : err.msg));
	out->why = why;
	return able || is_named(m, n->id); /* With --all, only nodes that can are meant. */
}
