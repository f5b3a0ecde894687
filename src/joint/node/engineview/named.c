/* SPDX-License-Identifier: Apache-2.0 */
/* named: whether the engine knows the model's configured name, and under which name it serves the model else. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/node/engineview/engineview_priv.h"

#define NAMED_TIMEOUT (3 * CGN_SEC)
#define NAMED_BYTES   ((size_t)4 * 1024 * 1024)
#define NAMED_AGAIN   (30 * CGN_SEC)
#define LACKS_AGAIN   (2 * CGN_SEC)

static void named_tell(struct engineview *v, const struct engine_named *now)
{
	struct engineview_named *m = &v->named;
	if (now->lacks) {
		(void)snprintf(m->why, sizeof m->why,
			"its model is configured as \"%.100s\", and it lists %s: name one of them, or unset the model",
			m->model, now->listed);
		v->ops->models_unknown(v->user, m->why);
		return;
	}
	if (now->served[0] != '\0')
		cgn_log(INFO, "engine.model_renamed", F_STR("engine", v->name), F_STR("model", m->model),
			F_STR("served", now->served),
			F_STR("then", "requests for the model name it as the engine does"));
	m->why[0] = '\0';
	v->ops->models_known(v->user);
}

/* An engine without a list, or with one that cannot be read, serves what the configuration says. */
static void on_named(void *user, const struct webask_answer *r)
{
	struct engineview *v = user;
	struct engineview_named *m = &v->named;
	struct engine_named now;
	m->fetch = NULL;
	m->asked_at = cgn_loop_now(v->loop);
	bool told = webask_is_ok(r) && engine_named_judge(r->body, m->model, &now);
	if (!told && m->judged)
		return;
	if (!told)
		now = (struct engine_named){.lacks = false};
	bool same = m->judged && m->lacks == now.lacks && strcmp(m->served, now.served) == 0;
	m->judged = true;
	m->lacks = now.lacks;
	memcpy(m->served, now.served, sizeof m->served);
	if (!same)
		named_tell(v, &now);
}

void engineview_named_ask(struct engineview *v)
{
	struct engineview_named *m = &v->named;
	const struct webask_question ask = {.path = "/v1/models",
		.max_bytes = NAMED_BYTES,
		.timeout = NAMED_TIMEOUT};
	cgn_nsec age = cgn_since(cgn_loop_now(v->loop), m->asked_at);
	if (m->model == NULL || m->fetch != NULL ||
		(m->judged && age < (m->lacks ? LACKS_AGAIN : NAMED_AGAIN)))
		return;
	(void)webask_start(v->loop, &v->at, &ask, on_named, v, &m->fetch, NULL)
		.code; /* A fetch that cannot start is tried with the next reading. */
}

void engineview_named_reset(struct engineview *v)
{
	v->named.judged = false;
	v->named.why[0] = '\0';
}

void engineview_named_moved(struct engineview *v)
{
	v->named.asked_at = 0;
}

void engineview_named_stop(struct engineview *v)
{
	webask_cancel(&v->named.fetch);
}

void engineview_named_close(struct engineview *v)
{
	engineview_named_stop(v);
	free(v->named.model);
	v->named.model = NULL;
}

bool engineview_is_named(const struct engineview *v)
{
	return v->named.model == NULL || (v->named.judged && !v->named.lacks);
}

const char *engineview_served(const struct engineview *v)
{
	return engineview_is_named(v) ? v->named.served : "";
}

void engineview_named_init(struct engineview *v, const struct config_engine *ce)
{
	if (ce->model != NULL && !ce->managed) /* A managed engine is started with the name. */
		v->named.model = cgn_str_dupz(cgn_str_of(ce->model));
}
