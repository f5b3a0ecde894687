/* SPDX-License-Identifier: Apache-2.0 */
/* load: says where LoRA adapters are wanted and what engines shall do with their own models, shows how far the nodes are,
 * and waits for them. */
#include <string.h>
#include <unistd.h>

#include "base/pb/pb.h"
#include "base/pb/pb_json.h"
#include "cognitora/v1/control.pb-c.h"
#include "ctl/ctl.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/client/client.h"
#include "joint/ctl/line/progress.h"

#define CALL_TIMEOUT (10 * CGN_SEC)
#define WAIT_TIMEOUT (300 * CGN_SEC)
#define ASK_EVERY_US 200000
#define MAX_NODES    CTL_MAX_FLAGS

typedef Cognitora__V1__ChangeModelRequest change_request;
typedef Cognitora__V1__ModelsResponse models_response;

static CGN_RC models_ask(const struct ctl_args *a, const change_request *rq, cgn_nsec timeout,
	models_response **out, struct cgn_err *err)
{
	struct ctl_call call = {.method = "ChangeModel",
		.answer = &cognitora__v1__models_response__descriptor,
		.request = rq,
		.first = out,
		.timeout = timeout};
	return ctl_client_call(a, CTL_ROUTER, &call, err);
}

static const char *wanted_text(Cognitora__V1__WantedState s)
{
	return s == COGNITORA__V1__WANTED_STATE__WANTED_LOADED      ? "loaded"
		: s == COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED ? "unloaded"
		: s == COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP   ? "asleep"
								    : "";
}

/* ---- ls ---- */

/* A model at a place; |p| is NULL where the model is wanted and no node has it. */
struct place {
	const Cognitora__V1__ModelPlaces *m;
	const Cognitora__V1__ModelPlace *p;
};

static void place_row(struct ctl_table *t, const void *of)
{
	static const Cognitora__V1__WantedModel not_wanted = COGNITORA__V1__WANTED_MODEL__INIT;
	static const Cognitora__V1__ModelPlace nowhere = COGNITORA__V1__MODEL_PLACE__INIT;
	const struct place *at = of;
	const Cognitora__V1__ModelPlace *p = !t->heading && at->p != NULL ? at->p : &nowhere;
	const Cognitora__V1__WantedModel *w =
		!t->heading && at->m->wanted != NULL ? at->m->wanted : &not_wanted;
	bool told = p->lora_path[0] !=
		'\0'; /* Routers of an earlier version do not tell base and path for each node. */
	CTL_CELL(t, "MODEL", "%s", at->m->name);
	CTL_CELL(t, "NODE", "%s", p->node);
	CTL_CELL(t, "WANTED", "%s", wanted_text(at->p != NULL ? p->wanted : w->others));
	CTL_CELL(t, "STATE", "%s", at->p != NULL ? p->state : "absent");
	CTL_CELL_WIDE(t, "ENGINE", "%s", p->engine);
	CTL_CELL_WIDE(t, "BASE", "%s", told ? p->base_model : w->base_model);
	CTL_CELL_WIDE(t, "PATH", "%s", told ? p->lora_path : w->lora_path);
	CTL_CELL_WIDE(t, "BY", "%s", w->by);
	CTL_CELL_WIDE(t, "WHY", "%s", p->why);
}

/* Below the narrow table, which has no room for a sentence. */
static CGN_RC reasons_print(const models_response *rs, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	if (rs->trouble[0] != '\0')
		cgn_buf_fmt(&out, "TROUBLE: what stands in %s now is not obeyed: %s\n", ctl_shown(rs->where),
			ctl_shown(rs->trouble));
	for (size_t i = 0; i < rs->n_models; i++)
		for (size_t k = 0; k < rs->models[i]->n_places; k++) {
			const Cognitora__V1__ModelPlace *p = rs->models[i]->places[k];
			if (p->why[0] != '\0')
				cgn_buf_fmt(&out, "%s on %s is %s: %s\n", ctl_shown(rs->models[i]->name),
					ctl_shown(p->node), ctl_shown(p->state), ctl_shown(p->why));
		}
	return ctl_print(&out, err);
}

static CGN_RC models_print(const struct ctl_args *a, const models_response *rs, struct cgn_err *err)
{
	struct ctl_table t = {.wide = a->wide};
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	if (a->json) {
		pb_json_put(&o, rs, PB_JSON_PROTO3);
		cgn_buf_char(&out, '\n');
		return ctl_print(&out, err);
	}
	ctl_table_head(&t, place_row);
	for (size_t i = 0; i < rs->n_models; i++) {
		const Cognitora__V1__ModelPlaces *m = rs->models[i];
		for (size_t k = 0; k < m->n_places; k++)
			place_row(&t, &(struct place){m, m->places[k]});
		if (m->n_places == 0 && m->wanted != NULL)
			place_row(&t, &(struct place){m, NULL});
	}
	CGN_TRY(ctl_table_print(&t, false, err));
	return a->wide ? CGN_OK : reasons_print(rs, err);
}

CGN_RC ctl_model_ls(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) models_response *rs = NULL;
	const change_request rq = COGNITORA__V1__CHANGE_MODEL_REQUEST__INIT;
	cgn_nsec timeout = 0;
	CGN_TRY(ctl_timeout(a, CALL_TIMEOUT, &timeout, err));
	CGN_TRY(models_ask(a, &rq, timeout, &rs, err));
	return models_print(a, rs, err);
}

/* ---- load and unload ---- */

static const Cognitora__V1__ModelPlaces *places_find(const models_response *rs, const char *name)
{
	for (size_t i = 0; i < rs->n_models; i++)
		if (strcmp(rs->models[i]->name, name) == 0)
			return rs->models[i];
	return NULL;
}

/* True if the order is about this place. Without named nodes it is about all. */
static bool is_meant(const change_request *rq, const char *node)
{
	for (size_t i = 0; i < rq->n_nodes; i++)
		if (strcmp(rq->nodes[i], node) == 0)
			return true;
	return rq->n_nodes == 0;
}

static bool is_done(const change_request *rq, const Cognitora__V1__ModelPlace *p)
{
	if (rq->state != p->wanted && p->wanted != COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED)
		return rq->replicas > 0; /* A node that was not chosen. */
	if (rq->state == COGNITORA__V1__WANTED_STATE__WANTED_LOADED)
		return strcmp(p->state, "ready") == 0;
	if (rq->state == COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP)
		return strcmp(p->state, "asleep") == 0;
	return strcmp(p->state, "unloaded") == 0 || strcmp(p->state, "stopped") == 0 ||
		strcmp(p->state, "absent") == 0;
}

/* Count the nodes that are as ordered. CGN_UNSUPPORTED: an engine refused. */
static CGN_RC places_judge(const change_request *rq, const models_response *rs, size_t *done, size_t *left,
	struct cgn_err *err)
{
	const Cognitora__V1__ModelPlaces *m = places_find(rs, rq->name);
	*done = *left = 0;
	for (size_t i = 0; m != NULL && i < m->n_places; i++) {
		const Cognitora__V1__ModelPlace *p = m->places[i];
		if (!is_meant(rq, p->node))
			continue;
		if (strcmp(p->state, "failed") == 0)
			return CGN_FAIL(err, UNSUPPORTED, "%.200s on node %s failed: %.400s",
				ctl_shown(rq->name), ctl_shown(p->node), ctl_shown(p->why));
		*done += is_done(rq, p);
		*left += !is_done(rq, p);
	}
	if (rq->state == COGNITORA__V1__WANTED_STATE__WANTED_LOADED && *done < rq->n_nodes && *left == 0)
		*left = rq->n_nodes - *done;
	if (rq->state == COGNITORA__V1__WANTED_STATE__WANTED_LOADED && *done + *left == 0)
		*left = 1; /* No node that could load it is there yet. */
	return CGN_OK;
}

/* Write how far the first node is that is not done, behind a comma. */
static const char *first_left(const change_request *rq, const models_response *rs, char *out, size_t cap)
{
	const Cognitora__V1__ModelPlaces *m = places_find(rs, rq->name);
	out[0] = '\0';
	for (size_t i = 0; m != NULL && i < m->n_places && out[0] == '\0'; i++)
		if (is_meant(rq, m->places[i]->node) && !is_done(rq, m->places[i]))
			(void)snprintf(out, cap, ", %s is %s", ctl_shown(m->places[i]->node),
				ctl_shown(m->places[i]->state));
	return out;
}

/* Wait until the nodes are as ordered; *rs is replaced by their reports. */
static CGN_RC nodes_wait(const struct ctl_args *a, const change_request *rq, cgn_nsec timeout,
	models_response **rs, struct cgn_err *err)
{
	const change_request ask = COGNITORA__V1__CHANGE_MODEL_REQUEST__INIT;
	cgn_nsec began = cgn_clock_now();
	size_t done = 0, left = 0;
	char text[160];
	for (;;) {
		cgn_rc rc = places_judge(rq, *rs, &done, &left, err);
		if (!cgn_ok(rc) || left == 0) {
			ctl_progress_end();
			return rc;
		}
		if (cgn_since(cgn_clock_now(), began) >= timeout) {
			ctl_progress_end();
			return CGN_FAIL(err, DEADLINE,
				"%zu of %zu nodes are as ordered; the others go on: see cgn-ctl model ls",
				done, done + left);
		}
		ctl_progress("%s: %zu of %zu nodes%s", ctl_shown(rq->name), done, done + left,
			first_left(rq, *rs, text, sizeof text));
		usleep(ASK_EVERY_US);
		pb_free(rs);
		CGN_TRY(models_ask(a, &ask, CALL_TIMEOUT, rs, err));
	}
}

static CGN_RC order_send(const struct ctl_args *a, change_request *rq, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) models_response *rs = NULL;
	char *nodes[MAX_NODES];
	const char *node = NULL;
	cgn_nsec timeout = 0;
	while (rq->n_nodes < MAX_NODES && (node = ctl_flag_nth(a, "--node", rq->n_nodes)) != NULL)
		nodes[rq->n_nodes++] = pb_text(node);
	rq->nodes = nodes;
	rq->name = pb_text(a->words[0]);
	if (rq->name[0] == '\0')
		return CGN_FAIL(err, INVALID, "the model's name is empty");
	if (rq->n_nodes > 0 && ctl_switch(a, "--all"))
		return CGN_FAIL(err, INVALID, "--node and --all do not go together");
	CGN_TRY(ctl_timeout(a, ctl_switch(a, "--wait") ? WAIT_TIMEOUT : CALL_TIMEOUT, &timeout, err));
	CGN_TRY(models_ask(a, rq, timeout, &rs, err));
	if (ctl_switch(a, "--wait"))
		CGN_TRY(nodes_wait(a, rq, timeout, &rs, err));
	return models_print(a, rs, err);
}

CGN_RC ctl_model_load(const struct ctl_args *a, struct cgn_err *err)
{
	change_request rq = COGNITORA__V1__CHANGE_MODEL_REQUEST__INIT;
	const char *path = ctl_flag(a, "--lora"), *base = ctl_flag(a, "--base");
	uint64_t replicas = 0;
	if ((path == NULL) != (base == NULL) || (path != NULL && (path[0] == '\0' || base[0] == '\0')))
		return CGN_FAIL(err, INVALID, "a LoRA adapter needs both --lora PATH and --base MODEL");
	if (ctl_flag(a, "--replicas") != NULL)
		CGN_TRY(ctl_flag_u64(a, "--replicas", 1, 256, &replicas, err));
	if (replicas > 0 && (path != NULL || ctl_flag_nth(a, "--node", 0) != NULL))
		return CGN_FAIL(err, INVALID,
			"--replicas is for an engine's own model, on nodes that the router chooses: without --lora and --node");
	rq.state = COGNITORA__V1__WANTED_STATE__WANTED_LOADED;
	rq.lora_path = pb_text(path != NULL ? path : "");
	rq.base_model = pb_text(base != NULL ? base : "");
	rq.replicas = (uint32_t)replicas;
	return order_send(a, &rq, err);
}

static CGN_RC state_order(const struct ctl_args *a, Cognitora__V1__WantedState state, struct cgn_err *err)
{
	change_request rq = COGNITORA__V1__CHANGE_MODEL_REQUEST__INIT;
	rq.state = state;
	return order_send(a, &rq, err);
}

CGN_RC ctl_model_unload(const struct ctl_args *a, struct cgn_err *err)
{
	return state_order(a, COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED, err);
}

CGN_RC ctl_model_sleep(const struct ctl_args *a, struct cgn_err *err)
{
	return state_order(a, COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP, err);
}

CGN_RC ctl_model_wake(const struct ctl_args *a, struct cgn_err *err)
{
	return state_order(a, COGNITORA__V1__WANTED_STATE__WANTED_LOADED, err);
}
