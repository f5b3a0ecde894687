/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/power/powerfetch/powerfetch.h"

#include <stdlib.h>
#include <string.h>

#include "base/weburl/weburl.h"
#include "io/os/loop/backoff.h"
#include "io/wire/webask/webask.h"
#include "joint/web/webclient/webclient.h"
#include "policy/power/powertext/powertext.h"

#define POWERFETCH_TAG 0x50f37c41U
#define FAIL_LAST      (300 * CGN_SEC)

struct powerfetch {
	uint32_t tag;
	struct cgn_loop *loop;
	struct http_client *client;
	struct weburl url; /* Without its base, which is in |path| */
	char path[256], node[POWER_NAME_BYTES];
	cgn_nsec timeout, interval, since; /* since: begin of the round */
	struct cgn_timer timer;
	struct cgn_backoff backoff;
	struct webask *ask;            /* NULL: between rounds */
	struct power_reading *reading; /* As many as the last text had */
	struct powerfetch_view seen;   /* The readings are above */
	char why[200];
	struct cgn_grave grave;
};

/* ---- rounds ---- */

static void round_fail(struct powerfetch *f, const char *why)
{
	f->seen.is_up = false;
	(void)cgn_str_copyz(f->why, sizeof f->why, cgn_str_of(why));
	f->backoff.first = f->interval;
	f->backoff.last = FAIL_LAST;
	cgn_timer_set(&f->timer, cgn_backoff_next(&f->backoff));
}

/* Take over the readings of |text|. Those of the last round stay when the text is of something else. */
static void round_read(struct powerfetch *f, struct cgn_str text)
{
	cgn_nsec now = cgn_loop_now(f->loop);
	struct powertext t = {.node = f->node,
		.time = now,
		.max_age = 3 * f->interval + 2 * cgn_since(now, f->since),
		.cap = POWERFETCH_MAX_READINGS};
	t.out = CGN_NEW_ARRAY(struct power_reading, POWERFETCH_MAX_READINGS);
	if (!powertext_read(text, &t)) {
		round_fail(f, "the text has neither DCGM_FI_DEV_ nor cgn_power_ series");
	} else {
		free(f->reading);
		f->reading = CGN_GROWN(t.out, t.n);
		t.out = NULL;
		f->seen.n = t.n;
		f->seen.is_up = true;
		f->seen.last = now;
		(void)cgn_str_copyz(f->why, sizeof f->why, cgn_str_of(t.why));
		cgn_backoff_reset(&f->backoff);
		cgn_timer_set(&f->timer, f->interval);
	}
	free(t.out);
}

static void on_answer(void *user, const struct webask_answer *a)
{
	struct powerfetch *f = user;
	char text[100];
	CGN_LIVE(f, POWERFETCH_TAG);
	f->ask = NULL;
	if (webask_is_ok(a)) {
		round_read(f, a->body);
		return;
	}
	if (a->err->code == CGN_FINE)
		(void)snprintf(text, sizeof text, "it answers with status %d%s", a->status,
			a->status >= 300 && a->status < 400 ? ", and redirects are not followed" : "");
	else if (a->err->code == CGN_DEADLINE)
		(void)snprintf(text, sizeof text, "the text was not whole within %g s",
			(double)f->timeout / (double)CGN_SEC);
	else if (a->err->code == CGN_TOO_LARGE)
		(void)snprintf(text, sizeof text, "the text is longer than %zu bytes", POWERFETCH_MAX_TEXT);
	round_fail(f,
		a->err->code == CGN_FINE || a->err->code == CGN_DEADLINE || a->err->code == CGN_TOO_LARGE
			? text
			: a->err->msg);
}

static void on_round_timer(struct cgn_timer *t)
{
	struct powerfetch *f = CGN_CONTAINER(t, struct powerfetch, timer);
	struct cgn_err err = {0};
	CGN_LIVE(f, POWERFETCH_TAG);
	const struct webask_endpoint to = {.client = f->client, .url = &f->url};
	const struct webask_question ask = {.path = f->path,
		.max_bytes = POWERFETCH_MAX_TEXT,
		.timeout = f->timeout};
	f->since = cgn_loop_now(f->loop);
	if (!cgn_ok(webask_start(f->loop, &to, &ask, on_answer, f, &f->ask, &err)))
		round_fail(f, err.msg);
}

/* ---- open and close ---- */

static struct webclient_cfg client_cfg(const struct powerfetch_cfg *cfg)
{
	return (struct webclient_cfg){.url = cfg->url,
		.ca_file = cfg->ca_file,
		.fingerprint = cfg->fingerprint,
		.max_conns = 1,
		.connect_timeout = cfg->timeout};
}

CGN_RC powerfetch_check(const struct powerfetch_cfg *cfg, struct cgn_err *err)
{
	const struct webclient_cfg client = client_cfg(cfg);
	return webclient_check(&client, err);
}

static void fetch_release(struct cgn_grave *g)
{
	struct powerfetch *f = CGN_CONTAINER(g, struct powerfetch, grave);
	free(f->reading);
	f->tag = 0;
	free(f);
}

CGN_RC powerfetch_open(struct cgn_loop *l, const struct powerfetch_cfg *cfg, struct powerfetch **out,
	struct cgn_err *err)
{
	const struct webclient_cfg client = client_cfg(cfg);
	struct powerfetch *f = CGN_NEW(struct powerfetch);
	f->tag = POWERFETCH_TAG;
	f->loop = l;
	f->timeout = cfg->timeout;
	f->interval = cfg->interval;
	cgn_timer_init(&f->timer, l, on_round_timer);
	(void)cgn_str_copyz(f->node, sizeof f->node, cgn_str_of(cfg->node));
	cgn_rc rc = webclient_open(l, &client, &f->url, &f->client, err);
	if (!cgn_ok(rc)) {
		fetch_release(&f->grave);
		return rc;
	}
	(void)snprintf(f->path, sizeof f->path, "%s", f->url.base[0] != '\0' ? f->url.base : "/metrics");
	f->url.base[0] = '\0';
	f->url.base_is_version = false;
	cgn_timer_set(&f->timer, cfg->delay);
	*out = f;
	return CGN_OK;
}

void powerfetch_close(struct powerfetch **take)
{
	struct powerfetch *f = CGN_TAKE_LIVE(take, POWERFETCH_TAG);
	if (f == NULL)
		return;
	cgn_timer_cancel(&f->timer);
	webask_cancel(&f->ask);
	http_client_free(&f->client);
	cgn_loop_bury(f->loop, &f->grave, fetch_release);
}

struct powerfetch_view powerfetch_view(const struct powerfetch *f)
{
	struct powerfetch_view v = f->seen;
	CGN_LIVE(f, POWERFETCH_TAG);
	v.reading = f->reading;
	v.why = f->why;
	return v;
}
