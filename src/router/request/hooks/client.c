/* SPDX-License-Identifier: Apache-2.0 */
/* client: a worker's HTTP clients of the external checks. A reload replaces them; a question that is under way keeps the
 * client that it was sent with. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/weburl/weburl.h"
#include "io/wire/webask/webask.h"
#include "joint/web/webclient/webclient.h"
#include "router/request/hooks/hooks_priv.h"

#define CLIENT_TAG 0x64800c02U
#define MAX_CONNS  256           /* connections of a worker to one hook; more questions wait */
#define IDLE       (4 * CGN_SEC) /* Many servers close a connection after 5 s. */

struct gw_hook_client {
	uint32_t tag, refs;
	struct cgn_loop *loop;
	struct http_client *http;
	struct weburl url; /* Without its path. */
	char path[sizeof(((struct weburl *)NULL)->base) + 1];
	struct cgn_grave grave;
};

static void client_release(struct cgn_grave *g)
{
	struct gw_hook_client *c = CGN_CONTAINER(g, struct gw_hook_client, grave);
	http_client_free(&c->http);
	c->tag = 0;
	free(c);
}

struct gw_hook_client *gw_hook_client_ref(struct gw_hook_client *c)
{
	if (c != NULL)
		c->refs++;
	return c;
}

/* The last reference may end in a callback of a call, where an HTTP client cannot be freed. */
void gw_hook_client_unref(struct gw_hook_client **take)
{
	struct gw_hook_client *c = CGN_TAKE_LIVE(take, CLIENT_TAG);
	if (c == NULL)
		return;
	if (--c->refs == 0)
		cgn_loop_bury(c->loop, &c->grave, client_release);
}

static CGN_RC client_new(struct cgn_loop *l, const struct webclient_cfg *cfg, struct gw_hook_client **out,
	struct cgn_err *err)
{
	struct gw_hook_client *c = CGN_NEW(struct gw_hook_client);
	c->tag = CLIENT_TAG;
	c->refs = 1;
	c->loop = l;
	cgn_rc rc = webclient_open(l, cfg, &c->url, &c->http, err);
	if (!cgn_ok(rc)) {
		free(c);
		return rc;
	}
	/* The path is asked for as it is: nothing is put before it. */
	(void)snprintf(c->path, sizeof c->path, "%s", c->url.base[0] != '\0' ? c->url.base : "/");
	c->url.base[0] = '\0';
	c->url.base_is_version = false;
	*out = c;
	return CGN_OK;
}

CGN_RC gw_hook_client_post(struct gw_hook_client *c, struct cgn_str json, cgn_nsec timeout, webask_done *done,
	void *user, struct webask **out, struct cgn_err *err)
{
	CGN_LIVE(c, CLIENT_TAG);
	const struct webask_endpoint to = {.client = c->http, .url = &c->url};
	const struct webask_question ask = {.path = c->path,
		.json = json,
		.max_bytes = HOOK_ANSWER_MAX,
		.timeout = timeout};
	return webask_start(c->loop, &to, &ask, done, user, out, err);
}

void gw_hooks_open(struct gw_worker *w)
{
	const struct gw_hook_rules *rules = &w->rules->hooks;
	gw_hooks_close(w);
	for (size_t i = 0; i < GW_HOOKS; i++) {
		const struct webclient_cfg cfg = {.url = rules->url[i],
			.tls = rules->tls,
			.max_conns = MAX_CONNS,
			.connect_timeout = rules->timeout,
			.idle_timeout = IDLE};
		struct cgn_err err;
		if (cfg.url != NULL && !cgn_ok(client_new(w->loop, &cfg, &w->hooks[i], &err)))
			cgn_log(ERROR, "router.hook_lost", F_STR("url", cfg.url), F_STR("why", err.msg),
				F_STR("then", "each question to it fails until a reload"));
	}
}

void gw_hooks_close(struct gw_worker *w)
{
	for (size_t i = 0; i < GW_HOOKS; i++)
		gw_hook_client_unref(&w->hooks[i]);
}
