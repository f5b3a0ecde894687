/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "router/control/scaler/scaler_priv.h"

static bool is_shadow(const struct scaler *s)
{
	return s->r->cfg->router.autoscaler.mode == CONFIG_SCALE_SHADOW;
}

static void order_done(void *user, const struct cgn_err *err)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	r->scaler->pending = false;
	if (err->code != CGN_FINE && err->code != CGN_CONFLICT)
		cgn_log_limited(WARN, "router.scale_failed", F_STR("why", err->msg),
			F_STR("then", "decided again"));
}

/* ---- the choice of nodes ---- */

/* Take at most |most| resting nodes: those that sleep first, then by id. */
static size_t wakes_choose(struct scaler_nodes *nodes, const char *model, uint32_t most,
	const struct cluster_node *out[])
{
	const Cognitora__V1__Node *infos[WANTED_MAX_NODES];
	size_t n = 0;
	for (uint32_t i = 0; i < nodes->n_resting; i++)
		infos[i] = nodes->resting[i]->info;
	wanted_rank(infos, nodes->n_resting, model);
	for (; n < nodes->n_resting && n < most; n++)
		for (uint32_t i = 0; i < nodes->n_resting; i++)
			if (nodes->resting[i]->info == infos[n])
				out[n] = nodes->resting[i];
	return n;
}

size_t scaler_rests_choose(const struct scaler *s, struct scaler_nodes *nodes, uint32_t most, cgn_nsec now,
	const struct cluster_node *out[])
{
	size_t n = 0;
	while (n < most && nodes->ours > 0) {
		uint32_t i = scaler_least_worth(s, nodes, nodes->ours, now);
		out[n++] = nodes->ready[i];
		nodes->ready[i] = nodes->ready[--nodes->ours];
	}
	return n;
}

/* ---- the order ---- */

static void nodes_say(struct scaler_event *e, const struct cluster_node *const list[], size_t n)
{
	struct cgn_buf text = cgn_buf_over(e->nodes, sizeof e->nodes);
	for (size_t i = 0; i < n; i++)
		cgn_buf_fmt(&text, i > 0 ? ", %s" : "%s", list[i]->info->id);
	(void)cgn_buf_z(&text);
}

static void order_send(struct scaler *s, struct scaler_group *g, const struct cluster_node *const list[],
	size_t n, struct scaler_event *e)
{
	const char *ids[WANTED_MAX_NODES];
	struct cgn_err err;
	bool up = g->decision.action == AUTOSCALE_UP;
	for (size_t i = 0; i < n; i++)
		ids[i] = list[i]->info->id;
	const struct router_rest_order o = {.model = g->model,
		.state = up ? COGNITORA__V1__WANTED_STATE__WANTED_LOADED : scaler_rest(s->r),
		.nodes = ids,
		.n = n,
		.by = "router.autoscaler"};
	cgn_rc rc = router_rest_order(s->r, &o, order_done, &err);
	s->pending = cgn_ok(rc);
	(void)cgn_str_copyz(e->then, sizeof e->then,
		cgn_str_of(!cgn_ok(rc) ? err.msg
				: up
				? "ordered to wake"
				: "ordered to rest: new requests go elsewhere, those that run end first"));
}

void scaler_carry_out(struct scaler *s, struct scaler_group *g, struct scaler_nodes *nodes, cgn_nsec now,
	struct scaler_event *e)
{
	const struct cluster_node *list[WANTED_MAX_NODES];
	if (scaler_has_target(s) && !is_shadow(s)) {
		scaler_job_begin(s, g, nodes, now, e);
		return;
	}
	bool up = g->decision.action == AUTOSCALE_UP;
	uint32_t by = g->decision.by < WANTED_MAX_NODES ? g->decision.by : WANTED_MAX_NODES;
	size_t n =
		up ? wakes_choose(nodes, g->model, by, list) : scaler_rests_choose(s, nodes, by, now, list);
	nodes_say(e, list, n);
	e->shadow = is_shadow(s);
	e->done = n > 0;
	if (e->shadow)
		(void)snprintf(e->then, sizeof e->then, "nothing: router.autoscaler.mode is shadow");
	else if (n == 0)
		(void)snprintf(e->then, sizeof e->then, "nothing: %s",
			up ? "no node of the model rests by this router's order"
			   : "an operator spoke about all its nodes (cgn-ctl model)");
	else
		order_send(s, g, list, n, e);
	for (size_t i = 0; up && s->pending && i < n; i++)
		s->wakes[list[i]->slot] = (struct scaler_wake){now, g};
}
