/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/unit.h"

#include "agent/engine/engine.h"
#include "base/log/log.h"
#include "io/os/proc/proc.h"

#define UNIT_LONGEST (600 * CGN_SEC) /* systemctl waits until the unit has started or stopped. */
#define GRACE        (2 * CGN_SEC)

static void on_unit_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	struct engine *e = user;
	(void)is_stderr;
	(void)dropped;
	CGN_LIVE(e, ENGINE_TAG);
	if (line.n > 0)
		engine_text_keep(e->unit.said, sizeof e->unit.said, line);
}

static void unit_tell(struct engine *e, const struct proc_exit *end)
{
	struct engine_unit *u = &e->unit;
	char how[64], why[400];
	if (end->exec_errno == 0 && end->code == 0) {
		engine_rest_unit_done(e, u->starts, NULL);
		return;
	}
	(void)snprintf(why, sizeof why, "%s %s %.64s: %s%s%.200s", u->systemctl[0],
		u->starts ? "start" : "stop", u->name,
		u->late ? "it took longer than ten minutes" : proc_exit_text(end, how, sizeof how),
		u->said[0] != '\0' ? ": " : "", u->said);
	engine_rest_unit_done(e, u->starts, why);
}

static void on_unit_exit(void *user, const struct proc_exit *end)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	cgn_timer_cancel(&e->unit.limit);
	e->unit.proc = NULL;
	unit_tell(e, end);
}

static void on_unit_limit(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, unit.limit);
	CGN_LIVE(e, ENGINE_TAG);
	e->unit.late = true;
	proc_stop(e->unit.proc);
}

void engine_unit_ask(struct engine *e, bool start)
{
	static const struct proc_ops ops = {.on_line = on_unit_line, .on_exit = on_unit_exit};
	struct engine_unit *u = &e->unit;
	struct cgn_err err;
	const char *argv[UNIT_WORDS + 5];
	size_t n = 0;
	if (u->proc != NULL)
		return;
	for (; n < u->n_systemctl; n++)
		argv[n] = u->systemctl[n];
	argv[n++] = "--no-ask-password";
	argv[n++] = start ? "start" : "stop";
	argv[n++] = "--";
	argv[n++] = u->name;
	argv[n] = NULL;
	u->starts = start;
	u->late = false;
	u->said[0] = '\0';
	const struct proc_cfg cfg = {.argv = argv, .grace = GRACE};
	cgn_log(INFO, "engine.unit", F_STR("engine", e->name), F_STR("unit", u->name),
		F_STR("then", start ? "it is started" : "it is stopped"));
	if (cgn_ok(proc_spawn(e->host->loop, &cfg, &ops, e, &u->proc, &err)))
		cgn_timer_set(&u->limit, UNIT_LONGEST);
	else
		engine_rest_unit_done(e, start, err.msg);
}

CGN_RC engine_unit_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err)
{
	struct engine_unit *u = &e->unit;
	cgn_timer_init(&u->limit, e->host->loop, on_unit_limit);
	if (ce->systemd_unit == NULL)
		return CGN_OK;
	u->name = cgn_arena_strz(&e->arena, cgn_str_of(ce->systemd_unit));
	for (; u->n_systemctl < cfg->agent.systemctl.n; u->n_systemctl++) {
		const char *word = cfg->agent.systemctl.v[u->n_systemctl];
		u->systemctl[u->n_systemctl] = cgn_arena_strz(&e->arena, cgn_str_of(word));
		if (u->systemctl[u->n_systemctl] == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for engine %s", e->name);
	}
	return u->name != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for engine %s", e->name);
}

void engine_unit_close(struct engine *e)
{
	cgn_timer_cancel(&e->unit.limit);
	proc_free(&e->unit.proc);
}
