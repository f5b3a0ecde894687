/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"

/* A managed engine that is being started is silent by nature; it has engine.start_failed, and a timeout. */
static void trouble_log(struct engine *e)
{
	const struct supervise *s = &e->process.sup;
	if (!s->cfg.managed || s->state != SUPERVISE_STARTING)
		engineview_trouble_log(&e->view, supervise_state_name(s->state), e->health.trouble);
}

void engine_probed(void *user, enum supervise_event verdict, const char *why)
{
	struct engine *e = user;
	char before[sizeof e->health.trouble];
	CGN_LIVE(e, ENGINE_TAG);
	(void)cgn_str_copyz(before, sizeof before, cgn_str_of(e->health.trouble));
	engine_trouble_set(e, why);
	if (verdict == SUPERVISE_PROBE_UP)
		engine_output_well(e);
	else
		trouble_log(e);
	engine_step(e, verdict);
	bool cleared = verdict == SUPERVISE_PROBE_UP && engine_doubt_end(e);
	if (cleared || strcmp(before, e->health.trouble) != 0)
		e->host->ops->changed(e->host->user); /* Routers show the reason. */
}

void engine_probe_slow(void *user, const char *why)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	if (e->process.sup.state == SUPERVISE_READY)
		return;
	engine_trouble_set(e, why);
	trouble_log(e);
	e->host->ops->changed(e->host->user);
}

void engine_stalled(void *user)
{
	struct engine *e = user;
	char text[sizeof e->health.trouble];
	CGN_LIVE(e, ENGINE_TAG);
	(void)snprintf(text, sizeof text,
		"stalled: it answers no check and brings no byte (%u requests there)",
		e->requests.inflight + e->requests.direct);
	engine_trouble_set(e, text);
	e->health.stalled = true;
	/* Routers learn of the stall first, so that they send the requests that end here elsewhere. */
	engine_step(e, SUPERVISE_STALLED);
	e->host->ops->stalled(e->host->user, e);
}
