/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/wanted/wanted.h"

#include <limits.h>

#include "base/log/log.h"
#include "base/pb/pb_json.h"
#include "joint/cluster/statefile/statefile.h"

#define STEP_EVERY (100 * CGN_MSEC)
#define FILE_BYTES ((size_t)1024 * 1024)

/* ---- steps ---- */

/* True if |name| is the engine's model, also while it does not run. */
static bool is_engines(const struct engine *e, const char *name)
{
	return strcmp(e->name, name) == 0 || engine_serves(e, cgn_str_of(name)) ||
		(e->planned != NULL && strcmp(e->planned, name) == 0);
}

/* Tell the engine the newest order about one of its own models. */
static void rest_told(const struct wanted *w, struct engine *e)
{
	const Cognitora__V1__WantedModel *newest = NULL;
	for (size_t i = 0; i < w->doc->n_models; i++) {
		const Cognitora__V1__WantedModel *m = w->doc->models[i];
		bool said = m->base_model[0] == '\0' &&
			wanted_on(m, w->node) != COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED;
		if (said && is_engines(e, m->name) && (newest == NULL || m->revision > newest->revision))
			newest = m;
	}
	if (newest != NULL)
		engine_rest_want(e, newest, wanted_on(newest, w->node), wanted_is_parked(newest, w->node));
}

static void adapters_told(const struct wanted *w, struct engine *e)
{
	if (e->ops->changes == NULL)
		return;
	for (size_t i = 0; i < w->doc->n_models; i++) {
		const Cognitora__V1__WantedModel *m = w->doc->models[i];
		Cognitora__V1__WantedState here = wanted_on(m, w->node);
		const struct wanted_adapter a = wanted_adapter_on(m, w->node);
		if (a.base[0] != '\0' && here != COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED &&
			is_engines(e, a.base))
			engine_adapter_want(e, m, a.path, here == COGNITORA__V1__WANTED_STATE__WANTED_LOADED);
	}
}

void wanted_step(struct wanted *w)
{
	bool more = false;
	if (w->doc == NULL || w->stepping)
		return;
	w->stepping = true; /* Steps change engines, which leads here again. */
	for (size_t i = 0; i < w->n_engines; i++) {
		struct engine *e = &w->engines[i];
		adapters_told(w, e);
		rest_told(w, e);
		more |= engine_adapters_step(e);
		more |= engine_rest_step(e);
	}
	w->stepping = false;
	if (more && w->timer.at == 0)
		cgn_timer_set(&w->timer, STEP_EVERY);
}

/* ---- the document ---- */

static void document_text(const struct wanted *w, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	pb_json_put(&o, w->doc, PB_JSON_PROTO3);
}

/* Write the document in the background: streams are relayed on this loop. */
static void document_keep(struct wanted *w)
{
	struct cgn_buf text = {0};
	if (!w->unkept || w->file == NULL)
		return;
	if (statefile_is_busy(w->file)) {
		if (w->timer.at == 0)
			cgn_timer_set(&w->timer, STEP_EVERY);
		return;
	}
	document_text(w, &text);
	w->unkept = false;
	statefile_write(w->file, &text);
}

static void on_wanted_timer(struct cgn_timer *t)
{
	struct wanted *w = CGN_CONTAINER(t, struct wanted, timer);
	document_keep(w);
	wanted_step(w);
}

void wanted_told(struct wanted *w, const Cognitora__V1__WantedModels *doc)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf packed = {0};
	Cognitora__V1__WantedModels *copy = NULL;
	if (w->doc != NULL && doc->revision <= w->doc->revision)
		return;
	pb_pack(doc, &packed);
	if (packed.bad ||
		!cgn_ok(pb_unpack(&cognitora__v1__wanted_models__descriptor, cgn_buf_view(&packed), &copy,
			NULL))) {
		cgn_log(ERROR, "agent.wanted_ignored", F_STR("why", "out of memory"));
		return;
	}
	pb_free(&w->doc);
	w->doc = copy;
	cgn_log(INFO, "agent.wanted", F_U64("revision", doc->revision), F_U64("models", doc->n_models));
	w->unkept = true;
	document_keep(w);
	wanted_step(w);
}

void wanted_open(struct wanted *w, struct cgn_loop *l, const struct config *cfg, const char *node)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err err;
	*w = (struct wanted){.loop = l, .node = node};
	cgn_timer_init(&w->timer, l, on_wanted_timer);
	char path[PATH_MAX];
	int n = snprintf(path, sizeof path, "%s/%s.wanted", cfg->cluster.state_dir, node);
	if (n < 0 || (size_t)n >= sizeof path)
		return;
	w->file = statefile_open(l, path, "wanted models");
	if (statefile_read(w->file, FILE_BYTES, &text) &&
		!cgn_ok(wanted_read(cgn_buf_view(&text), &w->doc, &err)))
		cgn_log(WARN, "agent.wanted_unreadable", F_STR("file", path), F_STR("why", err.msg),
			F_STR("then", "a router tells it"));
}

void wanted_close(struct wanted *w)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (w->loop != NULL)
		cgn_timer_cancel(&w->timer);
	if (w->unkept)
		document_text(w, &text);
	statefile_close(&w->file, w->unkept && !text.bad ? &text : NULL);
	pb_free(&w->doc);
}
