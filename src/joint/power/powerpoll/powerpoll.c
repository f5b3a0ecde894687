/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/log/log.h"
#include "powerpoll_priv.h"

#define POLL_INTERVAL CGN_SEC
#define START_GAP     (10 * CGN_MSEC)

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
	} else if (s->text != NULL) {
		struct powerfetch_view v = powerfetch_view(s->text);
		s->reading = v.reading;
		s->n = v.n;
		s->is_up = v.is_up;
		s->why = v.why;
		s->last = v.last;
	} else if (s->max_age > 0) {
		powerpoll_scraped_look(s, now);
	} else {
		s->n = s->read(s->read_user, now, s->made, POWERPOLL_READER_READINGS);
		s->reading = s->made;
		s->is_up = s->n > 0;
		s->why = s->n > 0 ? "" : "there is nothing to read";
		s->last = s->n > 0 ? now : s->last;
	}
}

/* Do not log a reader that has nothing: most machines lack RAPL or GPUs. */
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

static void source_close(struct powerpoll *p, struct powerpoll_source *s);

/* Forget nodes that are not scraped any more. */
static void over_drop(struct powerpoll *p, cgn_nsec now)
{
	for (struct powerpoll_source **at = &p->first; *at != NULL;) {
		struct powerpoll_source *s = *at;
		if (!powerpoll_scraped_is_over(s, now)) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		p->n--;
		source_close(p, s);
	}
}

static void on_poll_timer(struct cgn_timer *t)
{
	struct powerpoll *p = CGN_CONTAINER(t, struct powerpoll, timer);
	cgn_nsec now = cgn_loop_now(p->loop);
	CGN_LIVE(p, POWERPOLL_TAG);
	over_drop(p, now);
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
	if (p->n == POWERPOLL_MAX_SOURCES)
		return CGN_FAIL(err, OVERLOADED, "more than %d sources of power", POWERPOLL_MAX_SOURCES);
	struct powerpoll_source *s = CGN_NEW(struct powerpoll_source);
	(void)cgn_str_copyz(s->node, sizeof s->node, cgn_str_of(node));
	s->name = name;
	s->since = cgn_clock_now();
	s->why = "";
	*out = s;
	return CGN_OK;
}

static void source_free(struct powerpoll_source *s)
{
	free(s->made);
	free(s->key);
	free(s);
}

/* Keep |s| when |rc| is fine, before the first source of its node; else free it. */
static cgn_rc source_keep(struct powerpoll *p, struct powerpoll_source *s, cgn_rc rc)
{
	struct powerpoll_source **at = &p->first;
	if (!cgn_ok(rc)) {
		source_free(s);
		return rc;
	}
	while (*at != NULL && strcmp((*at)->node, s->node) != 0)
		at = &(*at)->next;
	s->next = *at;
	*at = s;
	p->n++;
	cgn_timer_set(&p->timer, 0);
	return rc;
}

struct powerpoll_source *powerpoll_source_add(struct powerpoll *p, const char *node, const char *name)
{
	struct powerpoll_source *s = NULL;
	if (cgn_ok(source_new(p, node, name, &s, NULL)))
		(void)source_keep(p, s, CGN_OK);
	return s;
}

/* ---- the end of a source ---- */

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
	if (--p->closing == 0 && p->is_closing)
		close_finish(p);
}

/* Close a source that is not in the list any more. Its series go; those of the node's other sources come again with the
 * next tick. */
static void source_close(struct powerpoll *p, struct powerpoll_source *s)
{
	telemetry_forget(p->telemetry, "node", s->node);
	for (struct powerpoll_source *k = p->first; k != NULL; k = k->next)
		if (strcmp(k->node, s->node) == 0)
			powerpoll_counters_renew(k);
	ipmi_bmc_close(&s->ipmi);
	powerfetch_close(&s->text);
	if (s->redfish != NULL) {
		p->closing++;
		redfish_bmc_close(&s->redfish, on_bmc_closed, p);
	}
	source_free(s);
	if (!p->is_closing)
		cgn_timer_set(&p->timer, 0);
}

/* ---- sources of the settings ---- */

static bool source_is_known(struct powerpoll *p, const char *key)
{
	for (struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		if (s->key != NULL && strcmp(s->key, key) == 0) {
			s->is_wanted = true;
			return true;
		}
	return false;
}

static CGN_RC wanted_new(struct powerpoll *p, const char *node, const char *name, const char *key,
	struct powerpoll_source **out, struct cgn_err *err)
{
	CGN_TRY(source_new(p, node, name, out, err));
	(*out)->is_wanted = (*out)->is_new = true;
	(*out)->key = cgn_str_dupz(cgn_str_of(key));
	return CGN_OK;
}

/* Spread the first rounds, and with them all that follow: a thousand at once are more than the network takes. */
static cgn_nsec start_delay(const struct powerpoll *p, cgn_nsec interval)
{
	return p->n * START_GAP % interval;
}

CGN_RC powerpoll_want_redfish(struct powerpoll *p, const struct redfish_bmc_cfg *cfg, const char *key,
	struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	struct redfish_bmc_cfg late = *cfg;
	late.delay = start_delay(p, cfg->interval);
	CGN_LIVE(p, POWERPOLL_TAG);
	if (source_is_known(p, key))
		return CGN_OK;
	CGN_TRY(wanted_new(p, cfg->node, power_source_name(POWER_FROM_REDFISH), key, &s, err));
	return source_keep(p, s, redfish_bmc_open(p->loop, &late, &s->redfish, err));
}

CGN_RC powerpoll_want_ipmi(struct powerpoll *p, const struct ipmi_bmc_cfg *cfg, const char *key,
	struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	struct ipmi_bmc_cfg late = *cfg;
	late.delay = start_delay(p, cfg->interval);
	CGN_LIVE(p, POWERPOLL_TAG);
	if (source_is_known(p, key))
		return CGN_OK;
	CGN_TRY(wanted_new(p, cfg->node, power_source_name(POWER_FROM_IPMI), key, &s, err));
	s->ipmi = ipmi_bmc_open(p->loop, &late);
	return source_keep(p, s, CGN_OK);
}

CGN_RC powerpoll_want_text(struct powerpoll *p, const struct powerfetch_cfg *cfg, const char *key,
	struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	struct powerfetch_cfg late = *cfg;
	late.delay = start_delay(p, cfg->interval);
	CGN_LIVE(p, POWERPOLL_TAG);
	if (source_is_known(p, key))
		return CGN_OK;
	CGN_TRY(wanted_new(p, cfg->node, "text", key, &s, err));
	return source_keep(p, s, powerfetch_open(p->loop, &late, &s->text, err));
}

void powerpoll_want_none(struct powerpoll *p)
{
	for (struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		s->is_wanted = s->is_new = false;
}

void powerpoll_want_end(struct powerpoll *p, bool is_taken)
{
	for (struct powerpoll_source **at = &p->first; *at != NULL;) {
		struct powerpoll_source *s = *at;
		if (s->key == NULL || (is_taken ? s->is_wanted : !s->is_new)) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		p->n--;
		source_close(p, s);
	}
}

/* ---- readers ---- */

CGN_RC powerpoll_add_reader(struct powerpoll *p, const char *node, const char *name, powerpoll_reader *fn,
	void *user, struct cgn_err *err)
{
	struct powerpoll_source *s = NULL;
	CGN_LIVE(p, POWERPOLL_TAG);
	CGN_TRY(source_new(p, node, name, &s, err));
	s->read = fn;
	s->read_user = user;
	s->made = CGN_NEW_ARRAY(struct power_reading, POWERPOLL_READER_READINGS);
	return source_keep(p, s, CGN_OK);
}

/* ---- open and close ---- */

struct powerpoll *powerpoll_new(struct cgn_loop *l, struct telemetry *t)
{
	struct powerpoll *p = CGN_NEW(struct powerpoll);
	p->tag = POWERPOLL_TAG;
	p->loop = l;
	p->telemetry = t;
	cgn_timer_init(&p->timer, l, on_poll_timer);
	return p;
}

void powerpoll_close(struct powerpoll **take, void (*done)(void *arg), void *arg)
{
	struct powerpoll *p = CGN_TAKE(take);
	if (p == NULL) {
		if (done != NULL)
			done(arg);
		return;
	}
	CGN_LIVE(p, POWERPOLL_TAG);
	p->closed = done;
	p->closed_arg = arg;
	p->is_closing = true;
	p->closing++; /* This function's own */
	cgn_timer_cancel(&p->timer);
	while (p->first != NULL) {
		struct powerpoll_source *s = p->first;
		p->first = s->next;
		source_close(p, s);
	}
	on_bmc_closed(p);
}
