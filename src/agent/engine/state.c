/* SPDX-License-Identifier: Apache-2.0 */
/* state: whether an engine is ready, asleep or stopped, and why not, as others ask. */
#include "agent/engine/engine.h"

/* The engine cannot answer: it sleeps, or may sleep. */
static bool engine_sleeps(const struct engine *e)
{
	return e->rest.state == REST_ASLEEP || e->rest.state == REST_UNKNOWN;
}

bool engine_is_ready(const struct engine *e)
{
	return e->process.sup.state == SUPERVISE_READY && e->view.models.known &&
		engineview_is_named(&e->view) && !engine_sleeps(e);
}

bool engine_is_stopped(const struct engine *e)
{
	return e->process.sup.state == SUPERVISE_STOPPED;
}

void engine_trouble_set(struct engine *e, const char *what)
{
	const char *ended = e->process.ended;
	char text[sizeof e->health.trouble];
	/* In a crash loop, how the last process ended says more than how the next one starts. */
	bool both = what[0] != '\0' && ended[0] != '\0' && strcmp(what, ended) != 0;
	(void)snprintf(text, sizeof text, both ? "%.180s; before: %s" : "%s", what, ended);
	engine_text_keep(e->health.trouble, sizeof e->health.trouble, cgn_str_of(text));
}
