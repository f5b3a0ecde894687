/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/gpu/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "agent/metrics.h"
#include "base/log/log.h"

#define GPU_INTERVAL   CGN_SEC
#define GPU_MOST_WATTS 5000 /* No GPU draws more */
#define GPU_HOT_C      86   /* An H100 slows down from 87 on */
#define GPU_MOST_W     5000
#define GPU_SILENT     (5 * CGN_SEC) /* A call that takes longer is not expected to return */

bool gpus_are_known(const struct gpus *g)
{
	return g->nvml != NULL && g->view.state == NVML_READING && !g->is_silent;
}

/* ---- metrics ---- */

static void series_forget(struct gpus *g, struct gpu_series *s)
{
	if (s->uuid[0] != '\0')
		telemetry_forget(g->telemetry, "uuid", s->uuid);
	*s = (struct gpu_series){.uuid = ""};
}

static void gauge_set(struct gpus *g, unsigned id, const struct nvml_gpu *gpu, const char *kind, double v)
{
	char index[12];
	(void)snprintf(index, sizeof index, "%u", gpu->index);
	const char *const labels[] = {index, gpu->uuid, kind};
	metric_set(metric_get(g->telemetry, id, labels, kind != NULL ? 3 : 2), v);
}

/* Count whole joules; the rest stays for the next reading. After a reload of the driver the GPU counts from 0. A step that
 * no GPU can take in the time, forward or back, is a fault of the counter: counting begins again behind it. */
static void energy_count(struct gpus *g, struct gpu_series *s, const struct nvml_gpu *gpu, cgn_nsec now)
{
	char index[12];
	cgn_nsec since = s->energy_at != 0 ? cgn_since(now, s->energy_at) + CGN_SEC : 0;
	uint64_t step = gpu->energy_mj >= s->energy_mj ? gpu->energy_mj - s->energy_mj : gpu->energy_mj;
	s->energy_at = now;
	(void)snprintf(index, sizeof index, "%u", gpu->index);
	if (s->energy == NULL)
		s->energy = METRIC_OF(g->telemetry, GPU_ENERGY, index, gpu->uuid);
	if (since != 0 && (double)step * 1e-3 > GPU_MOST_W * (double)since * 1e-9) {
		s->energy_mj = gpu->energy_mj;
		return;
	}
	uint64_t from = gpu->energy_mj >= s->energy_mj ? s->energy_mj : 0;
	uint64_t joules = (gpu->energy_mj - from) / 1000;
	metric_add(s->energy, joules);
	s->energy_mj = from + joules * 1000;
}

/* Count the GPU's energy, or its power over time where it counts none. */
static void joules_count(struct gpus *g, struct gpu_series *s, const struct nvml_gpu *gpu, cgn_nsec now)
{
	double watts = 0, before = s->counter.joules;
	if ((gpu->have & NVML_ENERGY) != 0) {
		if (s->counter.max_watts <= 0)
			power_counter_init(&s->counter, 0, GPU_MOST_W);
		(void)power_counter_step(&s->counter, gpu->energy_mj * 1000, now, &watts);
		g->joules += s->counter.joules - before;
	} else if ((gpu->have & NVML_POWER) != 0) {
		if (s->power_at != 0 && cgn_since(now, s->power_at) < GPU_SILENT)
			g->joules += gpu->power_mw * 1e-3 * (double)cgn_since(now, s->power_at) * 1e-9;
		s->power_at = now;
	}
}

static void series_set(struct gpus *g, struct gpu_series *s, const struct nvml_gpu *gpu, cgn_nsec now)
{
	const struct {
		enum nvml_have have;
		unsigned id;
		const char *kind;
		double v;
	} rows[] = {
		{NVML_MEMORY, METRIC_GPU_MEMORY, "used", (double)gpu->memory_used},
		{NVML_MEMORY, METRIC_GPU_MEMORY, "total", (double)gpu->memory_total},
		{NVML_USE, METRIC_GPU_SM, NULL, gpu->sm_percent / 100.0},
		{NVML_POWER, METRIC_GPU_POWER, NULL, gpu->power_mw / 1e3},
		{NVML_POWER_LIMIT, METRIC_GPU_POWER_LIMIT, NULL, gpu->power_limit_mw / 1e3},
		{NVML_TEMPERATURE, METRIC_GPU_TEMPERATURE, NULL, gpu->temperature_c},
		{NVML_SM_CLOCK, METRIC_GPU_CLOCK, "sm", gpu->sm_mhz * 1e6},
		{NVML_MEMORY_CLOCK, METRIC_GPU_CLOCK, "memory", gpu->memory_mhz * 1e6},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if ((gpu->have & rows[i].have) != 0)
			gauge_set(g, rows[i].id, gpu, rows[i].kind, rows[i].v);
	for (size_t i = 0; (gpu->have & NVML_SLOWED) != 0 && i < power_n_slow_reasons; i++)
		gauge_set(g, METRIC_GPU_SLOWED, gpu, power_slow_reasons[i].name,
			(gpu->slowed & power_slow_reasons[i].bit) != 0 ? 1 : 0);
	if ((gpu->have & NVML_ENERGY) != 0)
		energy_count(g, s, gpu, now);
}

static void metrics_follow(struct gpus *g)
{
	size_t n = gpus_are_known(g) ? g->view.n : 0;
	for (size_t i = 0; i < NVML_MAX_GPUS; i++) {
		const char *uuid = i < n ? g->view.gpu[i].uuid : "";
		if (strcmp(g->series[i].uuid, uuid) != 0)
			series_forget(g, &g->series[i]);
	}
	for (size_t i = 0; i < n; i++) {
		(void)cgn_str_copyz(g->series[i].uuid, sizeof g->series[i].uuid,
			cgn_str_of(g->view.gpu[i].uuid));
		series_set(g, &g->series[i], &g->view.gpu[i], cgn_clock_now());
		joules_count(g, &g->series[i], &g->view.gpu[i], cgn_clock_now());
	}
	metric_set(METRIC_ONE(g->telemetry, GPUS), (double)n);
}

/* ---- the log ---- */

static void tell_change(struct gpus *g)
{
	const struct nvml_view *v = &g->view;
	const char *now = g->is_silent ? "the library does not return from a call" : v->why;
	if (v->state == NVML_STARTING && !g->is_silent)
		return;
	if (g->told && strncmp(g->said, now, sizeof g->said - 1) == 0)
		return;
	g->told = true;
	(void)cgn_str_copyz(g->said, sizeof g->said, cgn_str_of(now));
	if (v->state == NVML_ABSENT)
		cgn_log(INFO, "agent.no_gpus", F_STR("why", now), F_STR("then", "GPUs are not shown"));
	else if (now[0] != '\0')
		cgn_log_limited(WARN, "agent.gpus_unreadable", F_STR("why", now),
			F_U64("readable", g->is_silent ? 0 : v->n));
	else
		cgn_log_limited(INFO, "agent.gpus", F_U64("gpus", v->n), F_STR("driver", v->driver),
			F_STR("first", v->n > 0 ? v->gpu[0].name : ""));
}

static void on_gpu_timer(struct cgn_timer *t)
{
	struct gpus *g = CGN_CONTAINER(t, struct gpus, timer);
	cgn_nsec now = cgn_clock_now();
	nvml_read(g->nvml, &g->view);
	g->is_silent = g->view.call_since != 0 && now > g->view.call_since + GPU_SILENT;
	tell_change(g);
	metrics_follow(g);
	if (g->view.state == NVML_ABSENT) {
		nvml_close(&g->nvml);
		return;
	}
	cgn_timer_set(t, GPU_INTERVAL);
}

/* ---- open and close ---- */

void gpus_open(struct gpus *g, struct cgn_loop *l, struct telemetry *t, const struct config *cfg)
{
	struct cgn_err err = {0};
	/* An empty variable hides all GPUs from the engines, and an absent one none. */
	const struct nvml_cfg nvml = {.library = cfg->agent.nvml,
		.gpus = cfg->agent.gpu_index != NULL ? cfg->agent.gpu_index : getenv("CUDA_VISIBLE_DEVICES"),
		.interval = GPU_INTERVAL};
	g->loop = l;
	g->telemetry = t;
	cgn_timer_init(&g->timer, l, on_gpu_timer);
	if (cfg->agent.nvml[0] == '\0')
		return;
	if (cgn_ok(nvml_open(&nvml, &g->nvml, &err)))
		cgn_timer_set(&g->timer, 0);
	else
		cgn_log(WARN, "agent.gpus_unreadable", F_STR("why", err.msg), F_U64("readable", 0));
}

void gpus_close(struct gpus *g)
{
	if (g->loop == NULL)
		return;
	cgn_timer_cancel(&g->timer);
	nvml_close(&g->nvml);
}

/* ---- load and /gpus ---- */

void gpus_load(const struct gpus *g, Cognitora__V1__Load *out)
{
	if (!gpus_are_known(g))
		return;
	out->gpus = (uint32_t)g->view.n;
	for (size_t i = 0; i < g->view.n; i++) {
		const struct nvml_gpu *gpu = &g->view.gpu[i];
		out->gpu_memory_used += gpu->memory_used;
		out->gpu_memory_total += gpu->memory_total;
		out->gpu_power_mw += gpu->power_mw;
		out->gpu_power_limit_mw += gpu->power_limit_mw;
	}
}

double gpus_limit_watts(const struct gpus *g)
{
	double sum = 0;
	for (size_t i = 0; gpus_are_known(g) && i < g->view.n; i++)
		sum += g->view.gpu[i].power_limit_mw * 1e-3;
	return sum;
}

double gpus_most_watts(const struct gpus *g)
{
	double sum = 0;
	for (size_t i = 0; gpus_are_known(g) && i < g->view.n; i++)
		sum += g->view.gpu[i].power_limit_mw > 0 ? g->view.gpu[i].power_limit_mw * 1e-3
							 : GPU_MOST_WATTS;
	return sum;
}

bool gpus_hot(const struct gpus *g)
{
	uint64_t hot = 0;
	for (size_t i = 0; i < power_n_slow_reasons; i++)
		hot |= power_slow_reasons[i].is_heat ? power_slow_reasons[i].bit : 0;
	for (size_t i = 0; gpus_are_known(g) && i < g->view.n; i++)
		if ((g->view.gpu[i].slowed & hot) != 0 || g->view.gpu[i].temperature_c >= GPU_HOT_C)
			return true;
	return false;
}

static double known_value(const struct nvml_gpu *gpu, enum nvml_have have, uint64_t v)
{
	return (gpu->have & have) != 0 ? (double)v : (double)NAN;
}

static void slowed_fill(const struct nvml_gpu *gpu, struct pb_tree *t, Cognitora__V1__GpuSlowed *to)
{
	to->slowed = pb_tree_array(t, power_n_slow_reasons, sizeof *to->slowed);
	for (size_t i = 0; to->slowed != NULL && i < power_n_slow_reasons; i++)
		if ((gpu->slowed & power_slow_reasons[i].bit) != 0)
			to->slowed[to->n_slowed++] = pb_text(power_slow_reasons[i].name);
}

static void gpu_fill(const struct nvml_gpu *gpu, struct pb_tree *t, Cognitora__V1__Gpu *to)
{
	to->index = gpu->index;
	to->uuid = pb_text(gpu->uuid);
	to->name = pb_text(gpu->name);
	to->memory_used = known_value(gpu, NVML_MEMORY, gpu->memory_used);
	to->memory_total = known_value(gpu, NVML_MEMORY, gpu->memory_total);
	to->sm_percent = known_value(gpu, NVML_USE, gpu->sm_percent);
	to->memory_percent = known_value(gpu, NVML_USE, gpu->memory_percent);
	to->power_mw = known_value(gpu, NVML_POWER, gpu->power_mw);
	to->power_limit_mw = known_value(gpu, NVML_POWER_LIMIT, gpu->power_limit_mw);
	to->temperature_c = known_value(gpu, NVML_TEMPERATURE, gpu->temperature_c);
	to->sm_mhz = known_value(gpu, NVML_SM_CLOCK, gpu->sm_mhz);
	to->memory_mhz = known_value(gpu, NVML_MEMORY_CLOCK, gpu->memory_mhz);
	if ((gpu->have & NVML_ENERGY) != 0) {
		to->energy_case = COGNITORA__V1__GPU__ENERGY_ENERGY_MJ;
		to->energy_mj = gpu->energy_mj; /* A double would round it. */
	}
	if ((gpu->have & NVML_SLOWED) != 0)
		slowed_fill(gpu, t, to->slowed = PB_NEW(t, gpu_slowed));
}

void gpus_fill(const struct gpus *g, struct pb_tree *t, Cognitora__V1__Gpus *to)
{
	static const char *const states[] = {[NVML_STARTING] = "starting",
		[NVML_ABSENT] = "absent",
		[NVML_FAILING] = "failing",
		[NVML_READING] = "reading"};
	to->state = pb_text(g->is_silent ? "silent" : states[g->view.state]);
	to->why = pb_text(g->is_silent ? g->said : g->view.why);
	to->driver = pb_text(g->view.driver);
	for (size_t i = 0; gpus_are_known(g) && i < g->view.n; i++)
		gpu_fill(&g->view.gpu[i], t, PB_ADD(t, to, gpus, gpu));
}
