/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/log/log.h"
#include "powerpoll_priv.h"

#define POLL_INTERVAL CGN_SEC

/* ---- sources ---- */

void powerpoll_look(struct powerpoll_source *s, cgn_nsec now)
{
	if (s->redfish != NULL) {
		struct redfish_bmc_view v = redfish_bmc_view(s->redfish);
		s->reading = v.reading;
		s->n = v.n;
		s->is_up = v.is_up;
		s->why = v.why;
		s->last = v.last;
	} else if (s->ipmi != NULL) {
		struct ipmi_bmc_view v = ipmi_bmc_view(s->ipmi);
		s->reading = v.reading;
		s->n = v.n;
		s->is_up = v.is_up;
		s->why = v.why;
		s->last = v.last;
	} else {
		s->n = s->read(s->read_user, now, s->made, POWERPOLL_READER_READINGS);
		s->reading = s->made;
		s->is_up = s->n > 0;
		s->why = s->n > 0 ? "" : "there is nothing to read";
		s->last = s->n > 0 ? now : s->last;
	}
}

/* A reader that has nothing is no news: most machines lack RAPL or GPUs. */
static void source_tell(struct powerpoll_source *s)
{
	bool is_new =
		!s->was_told || s->is_up != s->was_up || strncmp(s->said, s->why, sizeof s->said - 1) != 0;
	if (!is_new || s->read != NULL || (!s->is_up && s->why[0] == '\0'))
		return;
	if (!s->is_up)
		cgn_log_limited(WARN, "power.source_down", F_STR("node", s->node), F_STR("source", s->name),
			F_STR("why", s->why),
			F_STR("then", "its last readings are used until they are stale"));
	else if (s->why[0] != '\0')
		cgn_log_limited(WARN, "power.source_partly", F_STR("node", s->node), F_STR("source", s->name),
			F_STR("why", s->why));
	else
		cgn_log_limited(INFO, "power.source_up", F_STR("node", s->node), F_STR("source", s->name),
			F_U64("readings", s->n));
	s->was_told = true;
	s->was_up = s->is_up;
	(void)cgn_str_copyz(s->said, sizeof s->said, cgn_str_of(s->why));
}

static void on_poll_timer(struct cgn_timer *t)
{
	struct powerpoll *p = CGN_CONTAINER(t, struct powerpoll, timer);
	cgn_nsec now = cgn_loop_now(p->loop);
	CGN_LIVE(p, POWERPOLL_TAG);
	for (struct powerpoll_source *s = p->first; s != NULL; s = s->next) {
		powerpoll_look(s, now);
		source_tell(s);
	}
	powerpoll_show(p, now);
	cgn_timer_set(t, POLL_INTERVAL);
}

static CGN_RC source_new(struct powerpoll *p, const char *node, const char *name,
	struct powerpoll_source **out, struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	if (p->n == POWERPOLL_MAX_SOURCES)
		return CGN_FAIL(err, OVERLOADED, "more than %d sources of power", POWERPOLL_MAX_SOURCES);
	s = calloc(1, sizeof *s);
	if (s == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a source of power");
	(void)cgn_str_copyz(s->node, sizeof s->node, cgn_str_of(node));
	s->name = name;
	s->since = cgn_clock_now();
	s->why = "";
	*out = s;
	return CGN_OK;
}

/* Keep |s| when |rc| is fine; else free it. */
static cgn_rc source_keep(struct powerpoll *p, struct powerpoll_source *s, cgn_rc rc)
{
	if (!cgn_ok(rc)) {
		free(s->made);
		free(s);
		return rc;
	}
	s->next = p->first;
	p->first = s;
	p->n++;
	cgn_timer_set(&p->timer, 0);
	return rc;
}

CGN_RC powerpoll_add_redfish(struct powerpoll *p, const struct redfish_bmc_cfg *cfg, struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	CGN_LIVE(p, POWERPOLL_TAG);
	CGN_TRY(source_new(p, cfg->node, power_source_name(POWER_FROM_REDFISH), &s, err));
	return source_keep(p, s, redfish_bmc_open(p->loop, cfg, &s->redfish, err));
}

CGN_RC powerpoll_add_ipmi(struct powerpoll *p, const struct ipmi_bmc_cfg *cfg, struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	CGN_LIVE(p, POWERPOLL_TAG);
	CGN_TRY(source_new(p, cfg->node, power_source_name(POWER_FROM_IPMI), &s, err));
	return source_keep(p, s, ipmi_bmc_open(p->loop, cfg, &s->ipmi, err));
}

CGN_RC powerpoll_add_reader(struct powerpoll *p, const char *node, const char *name, powerpoll_reader *fn,
	void *user, struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	CGN_LIVE(p, POWERPOLL_TAG);
	CGN_TRY(source_new(p, node, name, &s, err));
	s->read = fn;
	s->read_user = user;
	s->made = calloc(POWERPOLL_READER_READINGS, sizeof *s->made);
	return source_keep(p, s,
		s->made != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for a source of power"));
}

/* ---- open and close ---- */

CGN_RC powerpoll_new(struct cgn_loop *l, struct telemetry *t, struct powerpoll **out, struct cgn_err *err)
{
	struct powerpoll *p = calloc(1, sizeof *p);
	if (p == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for sources of power");
	p->tag = POWERPOLL_TAG;
	p->loop = l;
	p->telemetry = t;
	cgn_timer_init(&p->timer, l, on_poll_timer);
	*out = p;
	return CGN_OK;
}

static void poll_release(struct cgn_grave *g)
{
	struct powerpoll *p = CGN_CONTAINER(g, struct powerpoll, grave);
	free(p->room);
	p->tag = 0;
	free(p);
}

static void close_finish(struct powerpoll *p)
{
	void (*closed)(void *arg) = p->closed;
	void *arg = p->closed_arg;
	cgn_loop_bury(p->loop, &p->grave, poll_release);
	if (closed != NULL)
		closed(arg);
}

static void on_bmc_closed(void *arg)
{
	struct powerpoll *p = arg;
	CGN_LIVE(p, POWERPOLL_TAG);
	if (--p->closing == 0)
		close_finish(p);
}

void powerpoll_close(struct powerpoll **take, void (*done)(void *arg), void *arg)
{
	struct powerpoll *p = *take;
	*take = NULL;
	if (p == NULL) {
		if (done != NULL)
			done(arg);
		return;
	}
	CGN_LIVE(p, POWERPOLL_TAG);
	p->closed = done;
	p->closed_arg = arg;
	p->closing = 1; /* This function's own */
	cgn_timer_cancel(&p->timer);
	while (p->first != NULL) {
		struct powerpoll_source *s = p->first;
		p->first = s->next;
		telemetry_forget(p->telemetry, "node", s->node);
		ipmi_bmc_close(&s->ipmi);
		if (s->redfish != NULL) {
			p->closing++;
			redfish_bmc_close(&s->redfish, on_bmc_closed, p);
		}
		free(s->made);
		free(s);
	}
	on_bmc_closed(p);
}
