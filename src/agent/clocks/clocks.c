/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/clocks/clocks.h"

#include <math.h>
#include <stdlib.h>

#include "agent/metrics.h"
#include "base/log/log.h"
#include "io/os/disk/disk.h"

#define CLOCKS_INTERVAL CGN_SEC
#define ORDER_SILENT    (3 * CGN_SEC)
#define ORDER_RETRY     (60 * CGN_SEC)
#define BACKOFF_FIRST   (500 * CGN_MSEC)
#define BACKOFF_MOST    (60 * CGN_SEC)
#define CLOSE_MOST      CGN_SEC
#define RIGHTS_HELP                                                                                                           \
	"clocks stay as they are; run the agent as root or with CAP_SYS_ADMIN (systemd: AmbientCapabilities=CAP_SYS_ADMIN), " \
	"then restart it"

static const char *const state_names[] = {[CLOCKS_OFF] = "off",
	[CLOCKS_STARTING] = "starting",
	[CLOCKS_RUNNING] = "running",
	[CLOCKS_SILENT] = "silent",
	[CLOCKS_STOPPED] = "stopped"};

static const char *phase_name(enum governor_phase p)
{
	return p == GOVERNOR_FOR_PREFILL ? "prefill" : "decode";
}

static void clocks_step(struct node_clocks *c);

static struct clocks_gpu *clocks_find(struct node_clocks *c, const char *uuid)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->gpu[i].is.uuid, uuid) == 0)
			return &c->gpu[i];
	return NULL;
}

/* ---- metrics ---- */

static void clocks_measure(struct node_clocks *c)
{
	char index[12];
	for (size_t i = 0; i < c->n; i++) {
		const struct clocks_gpu *g = &c->gpu[i];
		(void)snprintf(index, sizeof index, "%u", g->is.index);
		metric_set(METRIC_OF(c->telemetry, GPU_CLOCK_WANTED, index, g->is.uuid), g->wanted_mhz * 1e6);
		metric_set(METRIC_OF(c->telemetry, GPU_CLOCK_LIMIT, index, g->is.uuid), g->locked_mhz * 1e6);
	}
}

static void order_count(struct node_clocks *c, bool lifts, bool ok)
{
	metric_add(METRIC_OF(c->telemetry, GPU_CLOCK_ORDERS, lifts ? "lift" : "limit", ok ? "ok" : "failed"),
		1);
}

static void clocks_forget(struct node_clocks *c)
{
	for (size_t i = 0; i < c->n; i++) {
		metric_forget(c->telemetry, METRIC_GPU_CLOCK_WANTED, "uuid", c->gpu[i].is.uuid);
		metric_forget(c->telemetry, METRIC_GPU_CLOCK_LIMIT, "uuid", c->gpu[i].is.uuid);
	}
	c->n = 0;
}

/* ---- the helper ---- */

static void on_helper_gpu(void *user, const struct nvml_clock_gpu *gpu)
{
	struct node_clocks *c = user;
	if (c->n < NVML_MAX_GPUS)
		c->gpu[c->n++] = (struct clocks_gpu){.is = *gpu};
}

static void on_helper_ready(void *user, uint32_t lifted, uint32_t failed, const char *why)
{
	struct node_clocks *c = user;
	c->state = c->ending ? c->state : CLOCKS_RUNNING;
	c->why[0] = '\0';
	c->backoff = BACKOFF_FIRST;
	if (lifted > 0)
		cgn_log(INFO, "agent.clocks_recovered", F_U64("gpus", lifted),
			F_STR("why", "an earlier helper or agent was killed and had left its limits"));
	if (failed > 0)
		cgn_log(WARN, "agent.clocks_stay", F_U64("gpus", failed), F_STR("why", why),
			F_STR("then", "tried again when the agent ends and when it starts"));
	if (c->n == 0 && !c->ending)
		cgn_log(WARN, "agent.clocks_no_gpus",
			F_STR("why", "the library shows no GPU of agent.gpu_index"));
	clocks_step(c);
}

static void on_helper_waiting(void *user)
{
	struct node_clocks *c = user;
	(void)snprintf(c->why, sizeof c->why, "another process has %s; waiting for its end", c->record);
	cgn_log(INFO, "agent.clocks_waiting", F_STR("why", c->why));
}

/* Log each failure of a GPU once. */
static void failure_tell(struct clocks_gpu *g, const struct clockhold_done *d)
{
	bool known = strcmp(g->why, d->why) == 0;
	(void)cgn_str_copyz(g->why, sizeof g->why, cgn_str_of(d->why));
	if (known)
		return;
	if (d->code == CGN_FORBIDDEN)
		cgn_log(WARN, "agent.clocks_refused", F_U64("gpu", g->is.index), F_STR("why", d->why),
			F_STR("then", RIGHTS_HELP));
	else
		cgn_log(WARN, "agent.clocks_failed", F_U64("gpu", g->is.index), F_U64("mhz", d->high_mhz),
			F_STR("why", d->why),
			F_STR("then", "the clock stays as it is; tried again in a minute"));
}

static void on_helper_done(void *user, const struct clockhold_done *d)
{
	struct node_clocks *c = user;
	struct clocks_gpu *g = clocks_find(c, d->uuid);
	order_count(c, d->high_mhz == 0, d->code == CGN_FINE);
	if (g == NULL)
		return;
	if (c->state == CLOCKS_SILENT) {
		c->state = CLOCKS_RUNNING;
		c->why[0] = '\0';
	}
	g->asked = false;
	if (d->code == CGN_FINE) {
		g->locked_mhz = d->high_mhz;
		g->why[0] = '\0';
	} else {
		g->refused = d->code == CGN_FORBIDDEN;
		g->retry_at = cgn_loop_now(c->loop) + ORDER_RETRY;
		failure_tell(g, d);
	}
	clocks_step(c);
}

static void on_helper_ended(void *user, enum cgn_code code, const char *why)
{
	struct node_clocks *c = user;
	bool asked = c->ending;
	clocks_forget(c);
	clockhold_free(&c->hold, 0);
	c->ending = false;
	c->state = code == CGN_FINE ? CLOCKS_OFF : CLOCKS_STOPPED;
	(void)cgn_str_copyz(c->why, sizeof c->why, cgn_str_of(why));
	bool lasts = code == CGN_NOT_FOUND || code == CGN_UNSUPPORTED;
	if (code != CGN_FINE)
		cgn_log(WARN, "agent.clocks_stopped", F_STR("why", why),
			F_STR("then",
				lasts ? "clocks are not limited until a reload or a restart"
				      : "another helper is started"));
	if (asked)
		cgn_timer_set(&c->timer, 0);
	else if (!lasts) {
		cgn_timer_set(&c->timer, c->backoff);
		c->backoff = c->backoff * 2 < BACKOFF_MOST ? c->backoff * 2 : BACKOFF_MOST;
	}
}

static void helper_start(struct node_clocks *c)
{
	static const struct clockhold_ops ops = {.gpu = on_helper_gpu,
		.ready = on_helper_ready,
		.waiting = on_helper_waiting,
		.done = on_helper_done,
		.ended = on_helper_ended};
	const struct clockhold_cfg cfg = {.library = c->library,
		.gpus = c->list,
		.record = c->record,
		.log_format = c->log_format};
	struct cgn_err err = {0};
	if (c->gpu == NULL)
		c->gpu = CGN_NEW_ARRAY(struct clocks_gpu, NVML_MAX_GPUS);
	if (cgn_ok(clockhold_open(c->loop, &cfg, &ops, c, &c->hold, &err))) {
		metric_add(METRIC_ONE(c->telemetry, CLOCK_HELPERS), 1);
		c->state = CLOCKS_STARTING;
		cgn_timer_set(&c->timer, ORDER_SILENT);
		return;
	}
	c->state = CLOCKS_STOPPED;
	(void)cgn_str_copyz(c->why, sizeof c->why, cgn_str_of(err.msg));
	cgn_log_limited(WARN, "agent.clocks_stopped", F_STR("why", err.msg),
		F_STR("then", "tried again in a minute"));
	cgn_timer_set(&c->timer, BACKOFF_MOST);
}

/* Tell the helper to lift all limits and to end; on_helper_ended follows. */
static void helper_end(struct node_clocks *c)
{
	if (c->hold == NULL || c->ending)
		return;
	c->ending = true;
	clockhold_end(c->hold);
}

/* ---- orders ---- */

static uint32_t lowest_of(const struct nvml_clock_gpu *g, uint32_t high_mhz)
{
	uint32_t lowest = high_mhz;
	for (uint32_t i = 0; i < g->n; i++)
		lowest = g->mhz[i] < lowest ? g->mhz[i] : lowest;
	return lowest;
}

/* The helper waits for the library. It is left alone: where the driver hangs, another one would hang too. */
static void clocks_silent(struct node_clocks *c, const char *why)
{
	c->state = CLOCKS_SILENT;
	if (c->why[0] != '\0') /* The log has told that another helper is waited for. */
		return;
	(void)cgn_str_copyz(c->why, sizeof c->why, cgn_str_of(why));
	cgn_log(WARN, "agent.clocks_silent", F_STR("why", why),
		F_STR("then", "clocks stay as they are until it returns"));
}

/* Order the wanted clocks of a GPU where it has others. */
static void gpu_order(struct node_clocks *c, struct clocks_gpu *g, cgn_nsec now)
{
	uint32_t want = c->mode == ENERGY_MODE_ON ? g->wanted_mhz : 0;
	if (g->asked) {
		if (now > g->asked_at + ORDER_SILENT && c->state == CLOCKS_RUNNING)
			clocks_silent(c, "the library does not return from a call for 3 s");
		return;
	}
	if (g->locked_mhz == want || g->refused || now < g->retry_at)
		return;
	g->asked = want != 0
		? clockhold_lock(c->hold, g->is.uuid, lowest_of(&g->is, want), want, c->take_over)
		: clockhold_reset(c->hold, g->is.uuid);
	g->asked_mhz = want;
	g->asked_at = now;
}

static void phase_tell(struct node_clocks *c, enum governor_phase before)
{
	if (c->n == 0 || (c->told && before == c->phase))
		return;
	if (c->told)
		cgn_log(DEBUG, "agent.clocks", F_STR("for", phase_name(c->phase)),
			F_U64("mhz", c->gpu[0].wanted_mhz));
	else
		cgn_log(INFO, "agent.clocks", F_STR("mode", config_enum_text(c->mode)),
			F_STR("for", phase_name(c->phase)), F_U64("mhz", c->gpu[0].wanted_mhz),
			F_U64("gpus", c->n));
	c->told = true;
}

/* Compare the wanted clocks with the actual ones, and order the difference. */
static void clocks_step(struct node_clocks *c)
{
	cgn_nsec now = cgn_loop_now(c->loop), again = 0;
	const struct governor_input in = {.role = c->role,
		.prompts = c->load.prompts,
		.hold = c->hold_for,
		.now = now};
	enum governor_phase before = c->phase;
	if (c->hold == NULL || c->ending || c->state < CLOCKS_RUNNING)
		return;
	c->phase = governor_step(&c->governor, &in, &again);
	for (size_t i = 0; i < c->n; i++) {
		struct clocks_gpu *g = &c->gpu[i];
		g->wanted_mhz = governor_limit(g->is.mhz, g->is.n, c->phase,
			c->phase == GOVERNOR_FOR_PREFILL ? c->prefill_mhz : c->decode_mhz);
		gpu_order(c, g, now);
	}
	phase_tell(c, before);
	clocks_measure(c);
	cgn_timer_set(&c->timer, again != 0 && again < CLOCKS_INTERVAL ? again : CLOCKS_INTERVAL);
}

static void on_clocks_timer(struct cgn_timer *t)
{
	struct node_clocks *c = CGN_CONTAINER(t, struct node_clocks, timer);
	if (c->hold != NULL && c->state == CLOCKS_STARTING)
		clocks_silent(c, "the library does not return from its start for 3 s");
	else if (c->hold != NULL)
		clocks_step(c);
	else if (c->mode != ENERGY_MODE_OFF)
		helper_start(c);
}

/* ---- open, follow, close ---- */

/* Make the path of the file of limits, and its folder. Without a folder the helper says why. */
static void record_place(struct node_clocks *c, const struct config *cfg, const char *node_id)
{
	char folder[4200], path[4400];
	struct cgn_err err;
	(void)snprintf(folder, sizeof folder, "%s/clocks", cfg->cluster.state_dir);
	(void)snprintf(path, sizeof path, "%s/%s", folder, node_id);
	if (cfg->agent.clocks.mode != ENERGY_MODE_OFF)
		(void)!cgn_ok(disk_mkdirs(folder, 0750, &err));
	c->record = cgn_str_dupz(cgn_str_of(path));
}

static void settings_take(struct node_clocks *c, const struct config *cfg)
{
	c->mode = cfg->agent.clocks.mode;
	c->prefill_mhz = cfg->agent.clocks.prefill_mhz;
	c->decode_mhz = cfg->agent.clocks.decode_mhz;
	c->hold_for = cfg->agent.clocks.hold;
	c->take_over = cfg->agent.clocks.take_over;
	c->log_format = config_enum_text(cfg->log.format);
}

void node_clocks_open(struct node_clocks *c, struct cgn_loop *l, struct telemetry *t,
	const struct config *cfg, const char *node_id)
{
	const char *list =
		cfg->agent.gpu_index != NULL ? cfg->agent.gpu_index : getenv("CUDA_VISIBLE_DEVICES");
	*c = (struct node_clocks){.loop = l,
		.telemetry = t,
		.role = (enum governor_role)(cfg->agent.role - ROLE_BOTH),
		.backoff = BACKOFF_FIRST,
		.library = cgn_str_dupz(cgn_str_of(cfg->agent.nvml)),
		.list = cgn_str_dup_maybe(list)};
	cgn_timer_init(&c->timer, l, on_clocks_timer);
	record_place(c, cfg, node_id);
	settings_take(c, cfg);
	if (c->library == NULL || c->record == NULL || c->library[0] == '\0')
		return;
	if (c->mode != ENERGY_MODE_OFF || clockhold_recorded(c->record))
		helper_start(c);
	if (c->mode == ENERGY_MODE_OFF)
		helper_end(c);
}

void node_clocks_follow(struct node_clocks *c, const struct config *cfg)
{
	if (c->loop == NULL || c->library == NULL || c->record == NULL || c->library[0] == '\0')
		return;
	settings_take(c, cfg);
	c->told = false;
	c->backoff = BACKOFF_FIRST;
	for (size_t i = 0; i < c->n; i++) {
		c->gpu[i].refused = false;
		c->gpu[i].retry_at = 0;
		c->gpu[i].why[0] = '\0';
	}
	if (c->mode == ENERGY_MODE_OFF)
		helper_end(c);
	else if (c->hold != NULL)
		clocks_step(c);
	else
		cgn_timer_set(&c->timer, 0);
}

void node_clocks_load(struct node_clocks *c, const struct energy_load *load)
{
	bool changed = (load->prompts > 0) != (c->load.prompts > 0);
	c->load = *load;
	if (changed && c->role == GOVERNOR_BOTH && c->hold != NULL)
		clocks_step(c);
}

void node_clocks_close(struct node_clocks *c)
{
	if (c->loop == NULL)
		return;
	cgn_timer_cancel(&c->timer);
	clockhold_free(&c->hold, CLOSE_MOST);
	free(c->library);
	free(c->list);
	free(c->record);
	free(c->gpu);
	c->loop = NULL;
}

/* ---- /clocks ---- */

static double measured_mhz(const struct clocks_gpu *g, const struct gpus *gpus)
{
	for (size_t i = 0; gpus_are_known(gpus) && i < gpus->view.n; i++)
		if (strcmp(gpus->view.gpu[i].uuid, g->is.uuid) == 0 &&
			(gpus->view.gpu[i].have & NVML_SM_CLOCK) != 0)
			return gpus->view.gpu[i].sm_mhz;
	return (double)NAN;
}

static void gpu_fill(const struct clocks_gpu *g, const struct gpus *gpus, Cognitora__V1__GpuClock *to)
{
	to->index = g->is.index;
	to->uuid = pb_text(g->is.uuid);
	to->wanted_mhz = g->wanted_mhz;
	to->limit_mhz = g->locked_mhz;
	to->sm_mhz = measured_mhz(g, gpus);
	to->supported = g->is.n;
	to->why = pb_text(g->why);
}

void node_clocks_fill(const struct node_clocks *c, const struct gpus *gpus, struct pb_tree *t,
	Cognitora__V1__Clocks *to)
{
	to->mode = pb_text(config_enum_text(c->mode));
	to->state = pb_text(state_names[c->state]);
	to->why = pb_text(c->why);
	to->for_ = pb_text(phase_name(c->phase));
	to->helper_pid = c->hold != NULL ? (uint64_t)clockhold_pid(c->hold) : 0;
	for (size_t i = 0; i < c->n; i++)
		gpu_fill(&c->gpu[i], gpus, PB_ADD(t, to, gpus, gpu_clock));
}
