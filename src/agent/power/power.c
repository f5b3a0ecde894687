/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/power/power.h"

#include <stdlib.h>
#include <string.h>

#include "joint/power/powersrc/powersrc.h"

#define READ_INTERVAL CGN_SEC
#define READ_MAX_AGE  (5 * CGN_SEC)

/* Belongs to the pool while |is_reading|. */
struct host_job {
	struct powersrc_host host;
	char node[POWER_NAME_BYTES];
	struct power_reading reading[POWERSRC_MAX_READINGS];
	size_t n;
};
struct node_power {
	struct cgn_loop *loop;
	struct powerpoll *poll;
	const struct gpus *gpus;
	struct cgn_timer timer;
	char node[POWER_NAME_BYTES];
	struct power_reading reading[POWERSRC_MAX_READINGS]; /* As of the last job */
	size_t n;
	bool is_reading, is_closed; /* is_closed: freed when the job is done */
	struct host_job job;
	struct cgn_grave grave;
};

/* ---- the pool ---- */

static void host_work(void *arg)
{
	struct node_power *p = arg;
	p->job.n =
		powersrc_host_read(&p->job.host, p->job.node, cgn_clock_now(), READ_MAX_AGE, p->job.reading);
}

static void host_done(void *arg)
{
	struct node_power *p = arg;
	p->is_reading = false;
	if (p->is_closed) {
		free(p);
		return;
	}
	memcpy(p->reading, p->job.reading, p->job.n * sizeof p->reading[0]);
	p->n = p->job.n;
}

static void on_read_timer(struct cgn_timer *t)
{
	struct node_power *p = CGN_CONTAINER(t, struct node_power, timer);
	if (!p->is_reading)
		cgn_loop_work(p->loop, host_work, host_done, p);
	p->is_reading = true;
	cgn_timer_set(t, READ_INTERVAL);
}

/* ---- readings ---- */

static size_t host_give(void *user, cgn_nsec now, struct power_reading *out, size_t cap)
{
	const struct node_power *p = user;
	size_t n = p->n < cap ? p->n : cap;
	(void)now;
	memcpy(out, p->reading, n * sizeof out[0]);
	return n;
}

static size_t gpus_give(void *user, cgn_nsec now, struct power_reading *out, size_t cap)
{
	const struct node_power *p = user;
	size_t n = 0;
	if (!gpus_are_known(p->gpus))
		return 0;
	for (size_t i = 0; i < p->gpus->view.n && n + POWERSRC_GPU_READINGS <= cap; i++)
		n += powersrc_gpu_read(&p->gpus->view.gpu[i], p->node, now, READ_MAX_AGE, out + n);
	return n;
}

/* ---- open and close ---- */

static void sensors_find(struct powersrc_host *h, const char *sysfs)
{
	char powercap[200], hwmon[200];
	(void)snprintf(powercap, sizeof powercap, "%s/" POWERSRC_POWERCAP, sysfs);
	(void)snprintf(hwmon, sizeof hwmon, "%s/" POWERSRC_HWMON, sysfs);
	powersrc_host_init(h, powercap, hwmon);
}

CGN_RC node_power_open(struct cgn_loop *l, struct telemetry *t, const char *node, const char *sysfs,
	const struct gpus *gpus, struct node_power **out, struct cgn_err *err)
{
	struct node_power *p = CGN_NEW(struct node_power);
	p->loop = l;
	p->gpus = gpus;
	(void)cgn_str_copyz(p->node, sizeof p->node, cgn_str_of(node));
	memcpy(p->job.node, p->node, sizeof p->node);
	cgn_timer_init(&p->timer, l, on_read_timer);
	sensors_find(&p->job.host, sysfs);
	p->poll = powerpoll_new(l, t);
	cgn_rc rc =
		powerpoll_add_reader(p->poll, p->node, power_source_name(POWER_FROM_NVML), gpus_give, p, err);
	if (cgn_ok(rc))
		rc = powerpoll_add_reader(p->poll, p->node, "host", host_give, p, err);
	if (!cgn_ok(rc)) {
		node_power_close(&p);
		return rc;
	}
	if (p->job.host.n > 0)
		cgn_timer_set(&p->timer, 0);
	*out = p;
	return CGN_OK;
}

static void power_release(struct cgn_grave *g)
{
	free(CGN_CONTAINER(g, struct node_power, grave));
}

void node_power_close(struct node_power **take)
{
	struct node_power *p = CGN_TAKE(take);
	if (p == NULL)
		return;
	cgn_timer_cancel(&p->timer);
	if (p->poll != NULL)
		powerpoll_close(&p->poll, NULL, NULL);
	p->is_closed = true;
	if (!p->is_reading)
		cgn_loop_bury(p->loop, &p->grave, power_release);
}

bool node_power_sum(struct node_power *p, struct power_sum *out)
{
	return powerpoll_sum(p->poll, p->node, out);
}

void node_power_fill(struct node_power *p, struct pb_tree *t, Cognitora__V1__Power *to)
{
	powerpoll_fill(p->poll, t, to);
}
