/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/engine/change.h"
#include "policy/wanted/wanted.h"

/* ---- able nodes ---- */

static bool is_served(const Cognitora__V1__Engine *e, const char *name)
{
	for (size_t i = 0; i < e->n_models; i++)
		if (strcmp(e->models[i], name) == 0)
			return true;
	return false;
}

static bool loads_adapters(const Cognitora__V1__Engine *e)
{
	const struct engine_ops *ops = engine_ops_named(cgn_str_of(e->kind));
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf unused = {0};
	return ops != NULL &&
		engine_change_ask(ops->kind, ENGINE_LORA_LOAD, CGN_STR(""), CGN_STR(""), &unused) != NULL;
}

CGN_RC wanted_able(const Cognitora__V1__Node *n, const char *base, struct cgn_err *err)
{
	const Cognitora__V1__Engine *unable = NULL;
	for (size_t i = 0; i < n->n_engines; i++) {
		if (!is_served(n->engines[i], base))
			continue;
		if (loads_adapters(n->engines[i]))
			return CGN_OK;
		unable = n->engines[i];
	}
	if (unable != NULL)
		return CGN_FAIL(err, UNSUPPORTED,
			"engine %s is of kind %s, which loads no LoRA adapters while it runs (vllm and sglang do)",
			unable->name, unable->kind);
	return CGN_FAIL(err, UNSUPPORTED, "none of its engines serves the base model \"%.200s\"", base);
}

/* ---- places ---- */

/* Fill |out| if the engine has the model, or was told of it. An adapter that was told is shown before one that the engine
 * had from elsewhere. */
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
	if (m != NULL || !is_served(e, name))
		return false;
	out->engine = e->name;
	out->state = pb_text(e->ready ? "ready" : "loading");
	out->why = e->trouble;
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
	bool able = cgn_ok(wanted_able(n, m->base_model, &err));
	(void)cgn_str_copyz(why, cap,
		cgn_str_of(!heard      ? "the node's agent does not answer"
				: able ? "the agent was not told yet, or is of an earlier version"
				       : err.msg));
	out->why = why;
	return able || is_named(m, n->id); /* With --all, only nodes that can are meant. */
}
