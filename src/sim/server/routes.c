/* SPDX-License-Identifier: Apache-2.0 */
/* routes: the routes with short answers: models, health, metrics, control of the simulator, vectors. */
#include <stdatomic.h>

#include "sim/server/call_priv.h"

void sim_call_answer(struct sim_call *c, int status, struct cgn_str body)
{
	static const struct http_field fields[] = {{{"content-type", 12}, {"application/json", 16}},
		{{"retry-after", 11}, {"1", 1}}};
	c->done = true;
	http_exchange_reply(c->x, status, fields, status == 503 || status == 429 ? 2 : 1, body);
}

void sim_call_refuse(struct sim_call *c, const struct sim_refusal *no)
{
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	sim_error_body(b, no);
	c->w->counts.refused++;
	sim_call_answer(c, no->status, cgn_buf_view(b));
}

void sim_call_refuse_as(struct sim_call *c, int status, const char *why)
{
	struct sim_refusal no;
	(void)sim_refuse(&no, status, NULL, NULL, "%s", why);
	sim_call_refuse(c, &no);
}

void sim_route_health(struct sim_call *c)
{
	sim_call_answer(c, 200, CGN_STR(""));
}

void sim_route_version(struct sim_call *c)
{
	struct cgn_buf *b = &c->w->scratch;
	const char *build = c->w->cfg->build;
	b->n = 0;
	struct json_out o = json_out_to(b);
	json_open(&o, '{');
	json_key_z(&o, "version", build != NULL && build[0] != '\0' ? build : CGN_VERSION "+sim");
	json_close(&o, '}');
	sim_call_answer(c, 200, cgn_buf_view(b));
}

void sim_route_handoff(struct sim_call *c)
{
	static const struct http_field type = {{"content-type", 12}, {"application/octet-stream", 24}};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	const char *why = "the simulator was started without --handoff";
	int status = c->w->handoff == NULL ? 404
					   : sim_offer_serve(c->w->handoff, cgn_buf_view(&c->body),
						     cgn_loop_now(c->w->loop), &out, &why);
	c->done = true;
	http_exchange_reply(c->x, status, &type, 1, status == 200 ? cgn_buf_view(&out) : cgn_str_of(why));
}

void sim_route_ranks(struct sim_call *c)
{
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	if (c->w->handoff == NULL || c->w->cfg->handoff.kind != HANDOFF_MOONCAKE) {
		sim_call_refuse_as(c, 404, "no bootstrap server: --handoff is not mooncake");
		return;
	}
	cgn_buf_fmt(b, "{\"0\":{\"engine_id\":\"%s\"}}", sim_handoff_engine(c->w->handoff));
	sim_call_answer(c, 200, cgn_buf_view(b));
}

static void put_model_card(struct sim_call *c, unsigned i, struct cgn_buf *b)
{
	const struct sim_team *team = c->w->team;
	cgn_buf_putz(b, i > 0 ? ",{\"id\":" : "{\"id\":");
	cgn_buf_str(b, team->models[i]);
	cgn_buf_fmt(b, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"vllm\",\"root\":",
		(unsigned long long)c->reply.created);
	cgn_buf_str(b, team->models[i]);
	cgn_buf_fmt(b, ",\"parent\":null,\"max_model_len\":%u,\"permission\":[]}", c->w->cfg->max_model_len);
}

void sim_route_models(struct sim_call *c)
{
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	c->reply.created = cgn_clock_wall_ms() / 1000;
	cgn_buf_putz(b, "{\"object\":\"list\",\"data\":[");
	for (unsigned i = 0; i < c->w->cfg->n_models; i++)
		if (c->w->cfg->model_state[i] != SIM_MODEL_UNLOADED)
			put_model_card(c, i, b);
	cgn_buf_putz(b, "]}");
	sim_call_answer(c, 200, cgn_buf_view(b));
}

void sim_route_metrics(struct sim_call *c)
{
	sim_gather_start(c->w, c->x, &(struct sim_gather_task){.kind = SIM_GATHER_METRICS}, &c->gather);
}

void sim_route_state(struct sim_call *c)
{
	sim_gather_start(c->w, c->x, &(struct sim_gather_task){.kind = SIM_GATHER_STATE}, &c->gather);
}

void sim_route_reset(struct sim_call *c)
{
	sim_gather_start(c->w, c->x,
		&(struct sim_gather_task){.kind = SIM_GATHER_RESET, .even_running = c->even_running},
		&c->gather);
}

/* Without --sleep the routes are not there, as in an engine that was not started for it. */
static bool can_sleep(struct sim_call *c)
{
	if (!c->w->cfg->can_sleep)
		sim_call_refuse_as(c, 404, "Not Found");
	return c->w->cfg->can_sleep;
}

void sim_route_sleep(struct sim_call *c)
{
	if (!can_sleep(c))
		return;
	atomic_store(&c->w->team->asleep, true);
	c->even_running = true;
	sim_route_reset(c);
}

void sim_route_wake(struct sim_call *c)
{
	if (!can_sleep(c))
		return;
	atomic_store(&c->w->team->asleep, false);
	sim_call_answer(c, 200, CGN_STR("{}"));
}

void sim_route_blocks(struct sim_call *c)
{
	if (sim_keeps_contents(c->w->cfg))
		sim_gather_start(c->w, c->x, &(struct sim_gather_task){.kind = SIM_GATHER_BLOCKS},
			&c->gather);
	else
		sim_call_refuse_as(c, 404,
			"no digests are kept: start with --kv-digests, --kv-events or --kv-uds");
}

void sim_route_fill(struct sim_call *c)
{
	struct sim_gather_task task = {.kind = SIM_GATHER_FILL};
	struct sim_refusal no;
	if (sim_fill_parse(c->w->cfg, cgn_buf_view(&c->body), &task.fill, &no))
		sim_gather_start(c->w, c->x, &task, &c->gather);
	else
		sim_call_refuse(c, &no);
}

/* Take {"share": 0.6}: the simulated GPU runs at this share of its highest SM clock. */
void sim_route_clock(struct sim_call *c)
{
	struct sim_gather_task task = {.kind = SIM_GATHER_CLOCK};
	struct sim_refusal no;
	struct sim_fields f;
	struct json_val share;
	bool ok = sim_body_parse(cgn_buf_view(&c->body), &f, &no);
	if (ok &&
		(!json_get(f.root, "share", &share) || !json_f64(share, &task.clock_share) ||
			!(task.clock_share > 0 && task.clock_share <= 1)))
		ok = sim_refuse(&no, 400, "invalid_value", "share",
			"share: a number above 0, at most 1 (the highest clock)");
	if (ok)
		sim_gather_start(c->w, c->x, &task, &c->gather);
	else
		sim_call_refuse(c, &no);
}

/* Parse {"faults": ["http500@0.5", ...]}. */
static bool read_faults(struct sim_call *c, struct sim_faults *out, struct sim_refusal *no)
{
	struct sim_fields f;
	struct json_val list, each;
	struct cgn_err err = {0};
	*out = (struct sim_faults){0};
	if (!sim_body_parse(cgn_buf_view(&c->body), &f, no))
		return false;
	if (!json_get(f.root, "faults", &list) || list.type != JSON_ARRAY)
		return sim_refuse(no, 400, "missing", "faults",
			"faults: a list like [\"http500@0.5\"] is required");
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &each)) {
		if (out->n == SIM_FAULTS_MAX)
			return sim_refuse(no, 400, "invalid_value", "faults", "faults: at most %d",
				SIM_FAULTS_MAX);
		struct cgn_str text = each.type == JSON_STRING ? json_str(each, &c->w->arena) : CGN_STR("");
		if (!cgn_ok(sim_fault_parse(text, &out->list[out->n++], &err)))
			return sim_refuse(no, 400, "invalid_value", "faults", "%s", err.msg);
	}
	return true;
}

void sim_route_faults(struct sim_call *c)
{
	struct sim_gather_task task = {.kind = SIM_GATHER_FAULTS};
	struct sim_refusal no;
	bool ok = read_faults(c, &task.faults, &no);
	cgn_arena_reset(&c->w->arena);
	if (ok)
		sim_gather_start(c->w, c->x, &task, &c->gather);
	else
		sim_call_refuse(c, &no);
}

void sim_route_vector(struct sim_call *c)
{
	struct sim_refusal no;
	struct sim_request_env env = {c->w->cfg, &c->w->arena, c->w->reader, cgn_clock_wall_ms() / 1000};
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	struct sim_vector_call v = {&env, cgn_buf_view(&c->body), c->reply.id, cgn_clock_wall_ms() / 1000};
	bool ok = c->route->vector(&v, b, &no);
	if (ok && b->bad) {
		cgn_buf_fini(b);
		ok = sim_refuse(&no, 500, NULL, NULL, "out of memory");
	}
	cgn_arena_reset(&c->w->arena);
	if (ok)
		sim_call_answer(c, 200, cgn_buf_view(b));
	else
		sim_call_refuse(c, &no);
}
