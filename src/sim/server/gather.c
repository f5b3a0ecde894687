/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/server/gather.h"

#include <stdlib.h>

#include "lab/gpu/gpu.h"

#define TOUR_TAG 0x51b70015U

struct sim_gather {
	uint32_t tag;
	struct cgn_post post;
	struct sim_gather_task task;
	struct sim_worker *home;
	struct http_exchange *x;  /* NULL: the client closed. */
	struct sim_gather **slot; /* The caller's pointer to this object; NULL: the caller is gone. */
	struct cgn_buf text;      /* Results of the workers so far, each followed by a comma. */
	bool refused;             /* A worker refused the task. */
	unsigned next;            /* The worker to visit. */
	struct sim_snapshot each[];
};

static void write_answer(struct sim_gather *t, struct cgn_buf *out)
{
	const struct sim_worker *home = t->home;
	struct cgn_str resumed = {t->text.p, t->text.n > 0 ? t->text.n - 1 : 0};
	struct gpu_clocked clocked;
	out->bad = t->text.bad;
	switch (t->task.kind) {
	case SIM_GATHER_METRICS:
		sim_report_metrics(home->cfg, t->each, home->team->n, out);
		break;
	case SIM_GATHER_STATE:
	case SIM_GATHER_FAULTS:
		sim_report_state(home, t->each, home->team->n, resumed, out);
		break;
	case SIM_GATHER_BLOCKS:
		cgn_buf_fmt(out, "{\"block_tokens\":%u,\"ranks\":[", home->cfg->block_tokens);
		cgn_buf_str(out, resumed);
		cgn_buf_putz(out, "]}");
		break;
	case SIM_GATHER_FILL:
		cgn_buf_putz(out, "{\"filled\":[");
		cgn_buf_str(out, resumed);
		cgn_buf_putz(out, "]}");
		break;
	case SIM_GATHER_RESET:
		cgn_buf_fmt(out, "{\"success\":%s}", t->refused ? "false" : "true");
		break;
	case SIM_GATHER_CLOCK:
		clocked = gpu_at_clock(t->task.clock_share);
		cgn_buf_fmt(out, "{\"decode_time\":%.4f,\"prefill_time\":%.4f,\"watts_above_idle\":%.4f}",
			clocked.decode_time, clocked.prefill_time, clocked.watts);
		break;
	}
}

static void gather_end(struct sim_gather *t)
{
	struct cgn_buf out = {0};
	struct http_field type = {CGN_STR("content-type"), CGN_STR("application/json")};
	if (t->task.kind == SIM_GATHER_METRICS)
		type.value = CGN_STR("text/plain; version=0.0.4; charset=utf-8");
	if (t->x != NULL) {
		write_answer(t, &out);
		*t->slot = NULL;
		http_exchange_reply(t->x, out.bad ? 500 : 200, &type, 1,
			out.bad ? CGN_STR("") : cgn_buf_view(&out));
	}
	cgn_buf_fini(&out);
	cgn_buf_fini(&t->text);
	t->tag = 0;
	free(t);
}

/* Run the task on a worker. False: visit this worker again. */
static bool gather_visit(struct sim_gather *t, struct sim_worker *w)
{
	uint64_t rng = w->faults.rng;
	uint32_t vocab = w->team->vocab != NULL ? sim_vocab_size(w->team->vocab) : 0;
	struct gpu_clocked clocked;
	bool done = true;
	switch (t->task.kind) {
	case SIM_GATHER_FAULTS:
		w->faults = t->task.faults;
		w->faults.rng = rng;
		break;
	case SIM_GATHER_BLOCKS:
		sim_report_blocks(w, &t->text);
		return true;
	case SIM_GATHER_FILL:
		w->filling = true;
		done = w->stopping || sim_fill_step(&t->task.fill, w->cfg, w->rank, vocab, w->model);
		w->filling = false;
		if (done)
			cgn_buf_fmt(&t->text, "%u,", t->task.fill.made);
		if (!w->stopping)
			sim_worker_run(w); /* Publishes the events of the change. */
		return done;
	case SIM_GATHER_RESET:
		t->refused |= w->stopping || !enginemodel_reset(w->model, t->task.even_running, false);
		if (!w->stopping)
			sim_worker_run(w);
		return true;
	case SIM_GATHER_CLOCK:
		clocked = gpu_at_clock(t->task.clock_share);
		enginemodel_slow(w->model, clocked.decode_time, clocked.prefill_time);
		return true;
	case SIM_GATHER_METRICS:
	case SIM_GATHER_STATE:
		break;
	}
	t->each[w->rank] = (struct sim_snapshot){w->counts, enginemodel_stats(w->model),
		sim_store_stats(w->store), sim_handoff_stats(w->handoff, cgn_loop_now(w->loop))};
	sim_report_recent(w, &t->text);
	return true;
}

/* Runs on the loop of worker |next|, and at the end on the caller's loop. */
static void on_gather_post(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct sim_gather *t = CGN_CONTAINER(p, struct sim_gather, post);
	CGN_LIVE(t, TOUR_TAG);
	struct sim_team *team = t->home->team;
	if (t->next == team->n) {
		gather_end(t);
		return;
	}
	t->next += gather_visit(t, &team->workers[t->next]);
	struct sim_worker *to = t->next < team->n ? &team->workers[t->next] : t->home;
	cgn_loop_post(to->loop, &t->post, on_gather_post);
}

void sim_gather_start(struct sim_worker *w, struct http_exchange *x, const struct sim_gather_task *task,
	struct sim_gather **out)
{
	*out = NULL;
	struct sim_gather *t = cgn_zeroed(1, sizeof *t + w->team->n * sizeof t->each[0], CGN_HERE);
	t->tag = TOUR_TAG;
	t->task = *task;
	t->home = w;
	t->x = x;
	t->slot = out;
	*out = t;
	cgn_loop_post(w->team->workers[0].loop, &t->post, on_gather_post);
}

void sim_gather_forget(struct sim_gather *t)
{
	CGN_LIVE(t, TOUR_TAG);
	t->x = NULL;
	t->slot = NULL;
}
