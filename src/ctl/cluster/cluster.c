/* SPDX-License-Identifier: Apache-2.0 */
/* cluster: shows the nodes that a router knows, and cordons or drains one. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/pb/pb.h"
#include "base/pb/pb_json.h"
#include "ctl/cluster/policy.h"
#include "ctl/cluster/status.h"
#include "ctl/ctl.h"
#include "joint/ctl/line/progress.h"
#include "policy/kv/block/tier.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)

CGN_RC ctl_status_ask(const struct ctl_args *a, cgn_nsec fallback, Cognitora__V1__StatusResponse **out,
	struct cgn_err *err)
{
	const Cognitora__V1__StatusRequest rq = COGNITORA__V1__STATUS_REQUEST__INIT;
	struct ctl_call call = {.method = "Status",
		.answer = &cognitora__v1__status_response__descriptor,
		.request = &rq,
		.first = out};
	CGN_TRY(ctl_timeout(a, fallback, &call.timeout, err));
	return ctl_client_call(a, CTL_ROUTER, &call, err);
}

#define SHOWN_MODELS 16 /* Models of an engine that the table shows */

/* Return how the engine's model |k| is loaded; empty: it is there all the time. |*at|: the facts to look at next. */
static const char *model_state(const Cognitora__V1__Engine *e, size_t k, size_t *at)
{
	while (*at < e->n_facts && e->facts[*at]->model < k)
		(*at)++;
	bool told = *at < e->n_facts && e->facts[*at]->model == k;
	return !told ? "" : strcmp(e->facts[*at]->state, "ready") == 0 ? "loaded" : e->facts[*at]->state;
}

static void engine_models_put(const Cognitora__V1__Engine *e, size_t most, struct cgn_buf *out)
{
	size_t at = 0, k = 0;
	for (; k < e->n_models && k < most; k++) {
		const char *state = model_state(e, k, &at);
		cgn_buf_fmt(out, "%s%s", out->n > 0 ? "," : "", e->models[k]);
		if (state[0] != '\0')
			cgn_buf_fmt(out, " (%s)", state);
	}
	if (e->swap != NULL)
		cgn_buf_fmt(out, " (%s)", e->swap->loaded ? "loaded" : e->swap->state);
	if (k < e->n_models)
		cgn_buf_fmt(out, " and %zu more", e->n_models - k);
	if (e->models_left_out > 0)
		cgn_buf_fmt(out, " (%u further ones are not taken)", e->models_left_out);
}

void ctl_status_models(const Cognitora__V1__Node *node, size_t most, struct cgn_buf *out)
{
	for (size_t i = 0; i < node->n_engines; i++)
		engine_models_put(node->engines[i], most, out);
}

/* Summarize the state of the engines' KV events in a word; the router's /nodes has the details. */
static const char *events_trouble(const Cognitora__V1__Node *node)
{
	const char *worst = "";
	for (size_t i = 0; i < node->n_engines; i++) {
		struct cgn_str text = cgn_str_of(node->engines[i]->residency);
		if (cgn_str_starts(text, "demoted"))
			return ", demoted";
		if (cgn_str_starts(text, "events: partial"))
			worst = ", partial";
	}
	return worst;
}

/* ---- the table of nodes ---- */

struct node_row {
	const Cognitora__V1__NodeStatus *s;
	const Cognitora__V1__Node *node;
	const Cognitora__V1__Load *load;
	size_t most;         /* Models of an engine that are shown. */
	struct cgn_buf text; /* The cell that is made. */
};

static const char *role_text(struct node_row *n)
{
	char word[PB_ENUM_WORD];
	cgn_buf_putz(&n->text, pb_enum_word(&cognitora__v1__role__descriptor, (int)n->node->role, word));
	return cgn_buf_z(&n->text);
}

static unsigned long long tier_blocks(const struct node_row *n, enum block_tier tier)
{
	return tier < n->s->n_tier_blocks ? n->s->tier_blocks[tier] : 0;
}

/* "61.2/79.6", used of all; empty for a node without GPUs that its agent can read. */
static const char *gpu_memory_text(struct node_row *n)
{
	if (n->load->gpu_memory_total > 0)
		cgn_buf_fmt(&n->text, "%.1f/%.1f", (double)n->load->gpu_memory_used / 1e9,
			(double)n->load->gpu_memory_total / 1e9);
	return cgn_buf_z(&n->text);
}

static const char *gpu_power_text(struct node_row *n)
{
	if (n->load->gpus > 0 && n->load->gpu_power_limit_mw > 0)
		cgn_buf_fmt(&n->text, "%.0f/%.0f", (double)n->load->gpu_power_mw / 1e3,
			(double)n->load->gpu_power_limit_mw / 1e3);
	return cgn_buf_z(&n->text);
}

/* List how the node's engines hand prompts over: kind and terms. */
static const char *handoffs_text(struct node_row *n)
{
	for (size_t i = 0; i < n->node->n_engines; i++) {
		const Cognitora__V1__Handoff *h = n->node->engines[i]->handoff;
		if (h != NULL)
			cgn_buf_fmt(&n->text, "%s%s %s", n->text.n > 0 ? ", " : "", h->kind, h->terms);
	}
	return cgn_buf_z(&n->text);
}

static const char *models_text(struct node_row *n)
{
	ctl_status_models(n->node, n->most, &n->text);
	return cgn_buf_z(&n->text);
}

#define FIELD(field, name, number, wide, format, value) COLUMN(field, name, number, wide, format, n->s->field)
#define COLUMN(id, name, number, wide, ...)                            \
	static void id##_cell(struct ctl_table *t, struct node_row *n) \
	{                                                              \
		n->text.n = 0;                                         \
		ctl_table_cell(t, __VA_ARGS__);                        \
	}
#include "policy/node/proto/node_columns.def"
#undef COLUMN

static const struct {
	const char *name;
	bool number, wide;
	void (*cell)(struct ctl_table *t, struct node_row *n);
} node_columns[] = {
#define COLUMN(id, name, number, wide, ...) {name, number, wide, id##_cell},
#include "policy/node/proto/node_columns.def"
#undef COLUMN
#undef FIELD
};
static_assert(CGN_COUNT(node_columns) <= CTL_MAX_COLUMNS,
	"a table has room for each row of node_columns.def");

static void node_row_add(struct ctl_table *t, const Cognitora__V1__NodeStatus *s, size_t most)
{
	static const Cognitora__V1__Node no_node = COGNITORA__V1__NODE__INIT;
	static const Cognitora__V1__Load no_load = COGNITORA__V1__LOAD__INIT;
	struct node_row n = {.s = s,
		.node = s->node != NULL ? s->node : &no_node,
		.load = s->load != NULL ? s->load : &no_load,
		.most = most};
	for (size_t i = 0; i < CGN_COUNT(node_columns); i++)
		node_columns[i].cell(t, &n);
	cgn_buf_fini(&n.text);
}

/* Below the narrow table, which has no room for a sentence. */
static CGN_RC reasons_print(const Cognitora__V1__StatusResponse *status, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	for (size_t i = 0; i < status->n_nodes; i++) {
		const Cognitora__V1__NodeStatus *s = status->nodes[i];
		if (s->reason[0] != '\0')
			cgn_buf_fmt(&out, "%s is %s: %s\n", ctl_shown(s->node != NULL ? s->node->id : ""),
				ctl_shown(s->state), ctl_shown(s->reason));
		for (size_t k = 0; s->node != NULL && k < s->node->n_engines; k++)
			if (s->node->engines[k]->models_left_out > 0)
				cgn_buf_fmt(&out,
					"%s: %u names of its engine's list of models are not taken, and are answered 404\n",
					ctl_shown(s->node->id), s->node->engines[k]->models_left_out);
	}
	for (size_t i = 0; i < status->n_pools; i++)
		if (status->pools[i]->why[0] != '\0')
			cgn_buf_fmt(&out, "InferencePool %s has %u nodes: %s\n",
				ctl_shown(status->pools[i]->name), status->pools[i]->nodes,
				ctl_shown(status->pools[i]->why));
	return ctl_print(&out, err);
}

CGN_RC ctl_cluster_nodes(const struct ctl_args *a, struct cgn_err *err)
{
	Cognitora__V1__StatusResponse *status = NULL;
	struct ctl_table t = {.wide = a->wide};
	CGN_TRY(ctl_status_ask(a, DEFAULT_TIMEOUT, &status, err));
	for (size_t i = 0; i < CGN_COUNT(node_columns); i++)
		(node_columns[i].wide ? ctl_table_wide_column : ctl_table_column)(&t, node_columns[i].name,
			node_columns[i].number);
	for (size_t i = 0; i < status->n_nodes; i++)
		node_row_add(&t, status->nodes[i], a->json ? SIZE_MAX : SHOWN_MODELS);
	cgn_rc rc = ctl_table_print(&t, a->json, err);
	if (cgn_ok(rc) && !a->json && !a->wide)
		rc = reasons_print(status, err);
	pb_free(&status);
	return rc;
}

size_t ctl_status_nodes_in(const Cognitora__V1__StatusResponse *s, const char *state)
{
	size_t n = 0;
	for (size_t i = 0; i < s->n_nodes; i++)
		n += strcmp(s->nodes[i]->state, state) == 0;
	return n;
}

static const char *const node_states[] = {"ready", "joining", "cordoned", "draining", "down"};

static void model_line(const Cognitora__V1__StatusResponse *s, size_t i, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%s%s", i == 0 ? "models    " : "          ", ctl_shown(s->models[i]));
	if (i < s->n_model_status) { /* Routers of earlier versions send no model status. */
		const Cognitora__V1__ModelStatus *m = s->model_status[i];
		bool bytes = strcmp(m->tokens, "bytes") == 0;
		cgn_buf_fmt(out, ": blocks of %u %s (%s%s%s)", m->block, bytes ? "bytes" : "tokens",
			bytes ? "" : ctl_shown(m->tokens), bytes ? "" : ": ", ctl_shown(m->why));
		if (m->queued > 0)
			cgn_buf_fmt(out, ", %u waiting", m->queued);
	}
	cgn_buf_char(out, '\n');
}

static void figure_line(const Cognitora__V1__ShadowFigure *f, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "          measured %-6s ", ctl_shown(f->figure));
	if (isnan(f->live)) {
		cgn_buf_fmt(out, "too few: %llu requests, live %llu\n", (unsigned long long)f->n_shadow,
			(unsigned long long)f->n_live);
		return;
	}
	cgn_buf_fmt(out, "%.4g %s, live %.4g: ", f->shadow, ctl_shown(f->unit), f->live);
	if (!isnan(f->low))
		cgn_buf_fmt(out, "%+.4g (%+.4g to %+.4g), ", f->shadow - f->live, f->low, f->high);
	cgn_buf_fmt(out, "%s; %llu requests, live %llu\n", ctl_shown(f->verdict),
		(unsigned long long)f->n_shadow, (unsigned long long)f->n_live);
}

static void shadow_line(const Cognitora__V1__ShadowStatus *s, struct cgn_buf *out)
{
	cgn_buf_fmt(out,
		"shadow    %s: %llu of %llu decisions the same; %llu tokens held, chosen ones %llu; the router believes the others %.1f ms cheaper, %.1f ms dearer in all\n",
		ctl_shown(s->policy), (unsigned long long)s->agreed,
		(unsigned long long)(s->agreed + s->differed), (unsigned long long)s->cached_tokens,
		(unsigned long long)s->chosen_cached_tokens, s->cheaper_ms, s->dearer_ms);
	if (s->n_figures > 0)
		cgn_buf_fmt(out, "          %.3g %% of the sessions follow it\n", 100 * s->share);
	for (size_t i = 0; i < s->n_figures; i++)
		figure_line(s->figures[i], out);
}

static void traffic_line(const Cognitora__V1__TrafficStatus *t, struct cgn_buf *out)
{
	double seconds = (double)t->window_ms / 1e3;
	if (t->requests == 0) {
		cgn_buf_fmt(out, "traffic   no request in the last %.0f s\n", seconds);
		return;
	}
	cgn_buf_fmt(out, "traffic   %.1f requests/s in the last %.0f s", t->requests_per_second, seconds);
	if (t->failed > 0 || t->refused > 0)
		cgn_buf_fmt(out, ", of %llu requests %llu failed, %llu were refused",
			(unsigned long long)t->requests, (unsigned long long)t->failed,
			(unsigned long long)t->refused);
	cgn_buf_putz(out, "; ");
	if (t->prompt_tokens > 0)
		cgn_buf_fmt(out, "hit ratio %.1f %%; ",
			100 * (double)t->cached_tokens / (double)t->prompt_tokens);
	else
		cgn_buf_putz(out, "hit ratio unknown: no engine reported tokens; ");
	if (t->ttft_p50_ms > 0)
		cgn_buf_fmt(out, "TTFT p50 %.1f ms, p95 %.1f ms\n", t->ttft_p50_ms, t->ttft_p95_ms);
	else
		cgn_buf_putz(out, "no answer had a byte\n");
}

static void power_line(const Cognitora__V1__PowerStatus *p, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "power     %.0f W of a budget of %.0f W (router.energy.budget)\n", p->watts,
		p->budget_watts);
	if (p->least_watts > p->limit_watts)
		cgn_buf_fmt(out,
			"NO POWER  the budget lets no request pass: with one stream the nodes would draw %.0f W, and %.0f W may be drawn\n",
			p->least_watts, p->limit_watts);
	if (p->measured_watts > p->budget_watts)
		cgn_buf_fmt(out,
			"OVER POWER  the nodes draw %.0f W, as their agents measured: no request is sent until they draw less\n",
			p->measured_watts);
}

static const char *state_note(const Cognitora__V1__StatusResponse *s)
{
	if (s->state_stale)
		return s->state_connected ? " (STALE: nodes of the router's last run)"
					  : " (NOT REACHABLE; STALE: nodes of the router's last run)";
	return s->state_connected ? "" : " (NOT REACHABLE)";
}

/* Warn of ports that need no certificate. */
static void insecure_lines(const Cognitora__V1__StatusResponse *s, struct cgn_buf *out)
{
	size_t n = 0;
	for (size_t i = 0; i < s->n_nodes; i++)
		n += s->nodes[i]->node != NULL && s->nodes[i]->node->insecure;
	if (s->insecure[0] != '\0')
		cgn_buf_fmt(out, "INSECURE  router: everybody who reaches %s may do everything\n",
			ctl_shown(s->insecure));
	if (n > 0)
		cgn_buf_fmt(out, "INSECURE  %zu node%s: everybody who reaches the agent may do everything\n",
			n, n == 1 ? "" : "s");
}

static void versions_line(const Cognitora__V1__StatusResponse *s, struct cgn_buf *out)
{
	size_t n = 0;
	for (size_t i = 0; i < s->n_nodes; i++)
		n += s->nodes[i]->node != NULL && s->nodes[i]->node->version[0] != '\0' &&
			strcmp(s->nodes[i]->node->version, s->router_version) != 0;
	if (n > 0)
		cgn_buf_fmt(out,
			"VERSIONS  %zu node%s of another version than this router: cgn-ctl cluster nodes -o wide\n",
			n, n == 1 ? " is" : "s are");
}

static void status_text(const Cognitora__V1__StatusResponse *s, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "cluster   %s\nrouter    %s, up %llu s\nstate     %s%s\n", ctl_shown(s->cluster),
		ctl_shown(s->router_version), (unsigned long long)(s->uptime_ms / 1000),
		ctl_shown(s->state_backend), state_note(s));
	versions_line(s, out);
	insecure_lines(s, out);
	if (s->not_isolated[0] != '\0')
		cgn_buf_fmt(out, "NOT ISOLATED  tenants can measure each other's prompts on %s\n",
			ctl_shown(s->not_isolated));
	if (s->policy != NULL) /* Routers of earlier versions send no policy. */
		ctl_policy_text(s->policy, out);
	if (s->traffic != NULL) /* The same for the traffic. */
		traffic_line(s->traffic, out);
	if (s->power != NULL)
		power_line(s->power, out);
	for (size_t i = 0; i < s->n_shadows; i++)
		shadow_line(s->shadows[i], out);
	cgn_buf_fmt(out, "nodes     %zu", s->n_nodes);
	for (size_t i = 0; i < CGN_COUNT(node_states); i++)
		if (ctl_status_nodes_in(s, node_states[i]) > 0)
			cgn_buf_fmt(out, ", %zu %s", ctl_status_nodes_in(s, node_states[i]), node_states[i]);
	cgn_buf_putz(out, s->n_models == 0 ? "\nmodels    none\n" : "\n");
	for (size_t i = 0; i < s->n_models; i++)
		model_line(s, i, out);
}

static void status_json(const Cognitora__V1__StatusResponse *s, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	pb_json_members(&o, s,
		"cluster router_version uptime_ms state_backend state_connected state_stale insecure not_isolated");
	if (s->policy != NULL) {
		json_key(&o, "routing");
		ctl_policy_json(s->policy, &o);
	}
	pb_json_members(&o, s, "shadows traffic power");
	json_key_open(&o, "nodes", '{');
	for (size_t i = 0; i < CGN_COUNT(node_states); i++) {
		json_key_u64(&o, node_states[i], ctl_status_nodes_in(s, node_states[i]));
	}
	json_close(&o, '}');
	pb_json_members(&o, s, "models prompts=model_status{model=name tokens why block queued ready_nodes}");
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

CGN_RC ctl_cluster_status(const struct ctl_args *a, struct cgn_err *err)
{
	Cognitora__V1__StatusResponse *status = NULL;
	struct cgn_buf out = {0};
	CGN_TRY(ctl_status_ask(a, DEFAULT_TIMEOUT, &status, err));
	(a->json ? status_json : status_text)(status, &out);
	pb_free(&status);
	return ctl_print(&out, err);
}

/* Send the order |method| for the node on the command line; |call| has what else the caller wants. */
static CGN_RC order_node(const struct ctl_args *a, struct ctl_call *call, cgn_nsec timeout,
	struct cgn_err *err)
{
	char node[256];
	if (!cgn_str_copyz(node, sizeof node, cgn_str_of(a->words[0])))
		return CGN_FAIL(err, INVALID, "a node's name has at most %zu bytes", sizeof node - 1);
	Cognitora__V1__CordonRequest rq = COGNITORA__V1__CORDON_REQUEST__INIT;
	rq.node_id = node;
	call->request = &rq;
	CGN_TRY(ctl_timeout(a, timeout, &call->timeout, err));
	return ctl_client_call(a, CTL_ROUTER, call, err);
}

static CGN_RC print_node_state(const struct ctl_args *a, const char *state, const char *text,
	struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	if (!a->json) {
		cgn_buf_fmt(&out, "%s %s\n", ctl_shown(a->words[0]), text);
		return ctl_print(&out, err);
	}
	json_open(&o, '{');
	json_key_z(&o, "node", a->words[0]);
	json_key_z(&o, "state", state);
	json_close(&o, '}');
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

static CGN_RC change_cordon(const struct ctl_args *a, const char *method, const char *state,
	struct cgn_err *err)
{
	struct ctl_call call = {.method = method};
	CGN_TRY(order_node(a, &call, DEFAULT_TIMEOUT, err));
	return print_node_state(a, state, state, err);
}

CGN_RC ctl_cluster_cordon(const struct ctl_args *a, struct cgn_err *err)
{
	return change_cordon(a, "Cordon", "cordoned", err);
}

CGN_RC ctl_cluster_uncordon(const struct ctl_args *a, struct cgn_err *err)
{
	return change_cordon(a, "Uncordon", "uncordoned", err);
}

struct drain_view {
	const char *node;
	uint32_t last;
};

static void show_drain(void *user, const void *message)
{
	struct drain_view *v = user;
	const Cognitora__V1__DrainProgress *progress = message;
	ctl_progress("%s: %u in flight", v->node, progress->inflight);
	if (!ctl_progress_shown() && progress->inflight != v->last)
		(void)fprintf(stderr, "%s: %u in flight\n", v->node, progress->inflight);
	v->last = progress->inflight;
}

CGN_RC ctl_cluster_drain(const struct ctl_args *a, struct cgn_err *err)
{
	struct drain_view view = {.node = a->words[0], .last = UINT32_MAX};
	struct ctl_call call = {.method = "Drain",
		.answer = &cognitora__v1__drain_progress__descriptor,
		.on_answer = show_drain,
		.user = &view};
	cgn_rc rc = order_node(a, &call, 0, err);
	ctl_progress_end();
	CGN_TRY(rc);
	return print_node_state(a, "drained",
		"drained: no request is in flight there, and the node is cordoned", err);
}
