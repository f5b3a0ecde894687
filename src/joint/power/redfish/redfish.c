/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/power/redfish/redfish.h"

#include <stdlib.h>
#include <string.h>

#include "base/weburl/weburl.h"
#include "joint/web/webclient/webclient.h"
#include "redfish_priv.h"

#define FAIL_LAST   (300 * CGN_SEC)
#define REFUSE_LAST (900 * CGN_SEC)
#define CLOSE_LIMIT (2 * CGN_SEC)

/* ---- rounds ---- */

/* Keep readings that a part of the round did not renew: they become stale by their age. */
static void readings_keep(const struct redfish_bmc *b, struct redfish_round *r)
{
	for (size_t i = 0; i < b->n_reading && r->n_reading < REDFISH_MAX_READINGS; i++) {
		const struct power_reading *old = &b->reading[i];
		bool is_there = false;
		for (size_t k = 0; k < r->n_reading && !is_there; k++)
			is_there = power_same(old, &r->reading[k]);
		if (!is_there)
			r->reading[r->n_reading++] = *old;
	}
}

static void round_judge(struct redfish_bmc *b, enum cgn_code code, const char *fault)
{
	bool is_refused = code == CGN_FORBIDDEN;
	if (code == CGN_FINE) {
		cgn_backoff_reset(&b->backoff);
		b->seen.last = cgn_loop_now(b->loop);
	} else {
		if (is_refused != b->is_refused)
			cgn_backoff_reset(&b->backoff);
		b->backoff.first = b->interval;
		b->backoff.last = is_refused ? REFUSE_LAST : FAIL_LAST;
		b->seen.failures++;
	}
	b->is_refused = is_refused;
	b->seen.is_up = code == CGN_FINE;
	(void)cgn_str_copyz(b->why, sizeof b->why, cgn_str_of(fault));
	cgn_nsec delay = code == CGN_FINE ? b->interval : cgn_backoff_next(&b->backoff);
	b->not_before = cgn_loop_now(b->loop) + delay;
}

void redfish_round_end(struct redfish_bmc *b, enum cgn_code code, const char *fault)
{
	struct redfish_round *r = b->round;
	cgn_timer_cancel(&b->round_limit);
	/* A slow BMC's readings are older by the time it takes to read them. */
	cgn_nsec took = cgn_since(cgn_loop_now(b->loop), b->round_since);
	for (size_t i = 0; i < r->n_reading; i++)
		r->reading[i].max_age = 3 * b->interval + 2 * took;
	if (code != CGN_FINE || fault[0] != '\0')
		readings_keep(b, r);
	memcpy(b->reading, r->reading, r->n_reading * sizeof r->reading[0]);
	b->n_reading = r->n_reading;
	round_judge(b, code, fault);
	free(r);
	b->round = NULL;
	cgn_buf_fini(&b->request.body);
	cgn_timer_set(&b->timer, b->interval);
}

static void on_bmc_timer(struct cgn_timer *t)
{
	struct redfish_bmc *b = CGN_CONTAINER(t, struct redfish_bmc, timer);
	struct cgn_err err = {0};
	CGN_LIVE(b, REDFISH_BMC_TAG);
	bool is_other = redfish_password_read(b, &err);
	cgn_timer_set(t, b->interval); /* In case that no round can begin */
	if (err.code != CGN_FINE) {
		b->seen.is_up = false;
		b->seen.failures++;
		(void)cgn_str_copyz(b->why, sizeof b->why, cgn_str_of(err.msg));
		return;
	}
	if (is_other) { /* The old session may live on, but the account has changed */
		b->session.token[0] = '\0';
		b->session.auth = REDFISH_NO_AUTH;
	}
	if (!(is_other && b->is_refused) && cgn_loop_now(b->loop) < b->not_before)
		return;
	cgn_timer_cancel(t);
	redfish_round_begin(b);
	if (b->round == NULL && !b->timer.at)
		cgn_timer_set(t, b->interval);
}

/* ---- open and close ---- */

static void bmc_release(struct cgn_grave *g)
{
	struct redfish_bmc *b = CGN_CONTAINER(g, struct redfish_bmc, grave);
	cgn_buf_fini(&b->request.body);
	free(b->round);
	free(b->node);
	free(b->user);
	free(b->password_file);
	explicit_bzero(&b->session, sizeof b->session);
	b->tag = 0;
	free(b);
}

static void bmc_bury(struct redfish_bmc *b)
{
	cgn_timer_cancel(&b->timer);
	cgn_timer_cancel(&b->round_limit);
	redfish_ask_cancel(b);
	void (*closed)(void *arg) = b->closed;
	void *arg = b->closed_arg;
	cgn_loop_bury(b->loop, &b->grave, bmc_release);
	if (closed != NULL)
		closed(arg);
}

static struct webclient_cfg client_cfg(const struct redfish_bmc_cfg *cfg)
{
	return (struct webclient_cfg){.url = cfg->url,
		.ca_file = cfg->ca_file,
		.fingerprint = cfg->fingerprint,
		.max_conns = 1,
		.connect_timeout = cfg->timeout};
}

CGN_RC redfish_bmc_check(const struct redfish_bmc_cfg *cfg, struct cgn_err *err)
{
	struct weburl url;
	CGN_TRY(cgn_err_of(weburl_parse(cfg->url, &url, err), "a BMC is at https://HOST or https://HOST:PORT",
		err));
	if (url.base[0] != '\0' && strcmp(url.base, "/redfish") != 0 && strcmp(url.base, "/redfish/v1") != 0)
		return CGN_FAIL(err, INVALID, "\"%s\": a BMC's documents begin at /redfish/v1, not at %s",
			cfg->url, url.base);
	if (cfg->user != NULL && cfg->password_file == NULL)
		return CGN_FAIL(err, INVALID, "the user %s of %s needs a password file", cfg->user, cfg->url);
	const struct webclient_cfg client = client_cfg(cfg);
	return webclient_check(&client, err);
}

CGN_RC redfish_bmc_open(struct cgn_loop *l, const struct redfish_bmc_cfg *cfg, struct redfish_bmc **out,
	struct cgn_err *err)
{
	CGN_TRY(redfish_bmc_check(cfg, err));
	struct redfish_bmc *b = CGN_NEW(struct redfish_bmc);
	*b = (struct redfish_bmc){.tag = REDFISH_BMC_TAG,
		.loop = l,
		.interval = cfg->interval,
		.timeout = cfg->timeout};
	cgn_timer_init(&b->timer, l, on_bmc_timer);
	redfish_ask_init(b);
	redfish_round_init(b);
	const struct webclient_cfg client = client_cfg(cfg);
	b->node = cgn_str_dup_maybe(cfg->node);
	b->user = cgn_str_dup_maybe(cfg->user);
	b->password_file = cgn_str_dup_maybe(cfg->password_file);
	cgn_rc rc = webclient_open(l, &client, &b->url, &b->client, err);
	if (!cgn_ok(rc)) {
		bmc_release(&b->grave);
		return rc;
	}
	cgn_timer_set(&b->timer, cfg->delay);
	*out = b;
	return CGN_OK;
}

static void close_finish(struct redfish_bmc *b)
{
	redfish_ask_cancel(b);
	http_client_free(&b->client);
	bmc_bury(b);
}

static void on_close_timer(struct cgn_timer *t)
{
	struct redfish_bmc *b = CGN_CONTAINER(t, struct redfish_bmc, timer);
	CGN_LIVE(b, REDFISH_BMC_TAG);
	close_finish(b);
}

/* The client must not be freed within a callback of its call. */
static void on_logout(struct redfish_bmc *b, const struct redfish_answer *a)
{
	(void)a;
	cgn_timer_set(&b->timer, 0);
}

void redfish_leave(struct redfish_bmc *b)
{
	redfish_logout(b, on_logout);
}

void redfish_bmc_close(struct redfish_bmc **take, void (*done)(void *arg), void *arg)
{
	struct redfish_bmc *b = CGN_TAKE_LIVE(take, REDFISH_BMC_TAG);
	if (b == NULL)
		return;
	b->closed = done;
	b->closed_arg = arg;
	cgn_timer_cancel(&b->round_limit);
	cgn_timer_cancel(&b->timer);
	cgn_timer_init(&b->timer, b->loop, on_close_timer);
	cgn_timer_set(&b->timer, CLOSE_LIMIT);
	b->is_closing = redfish_login_is_open(b);
	if (b->is_closing)
		return;
	redfish_ask_cancel(b);
	redfish_leave(b);
}

struct redfish_bmc_view redfish_bmc_view(const struct redfish_bmc *b)
{
	static const char *const auths[] = {"none", "session", "basic"};
	struct redfish_bmc_view v = b->seen;
	CGN_LIVE(b, REDFISH_BMC_TAG);
	v.reading = b->reading;
	v.n = b->n_reading;
	v.why = b->why;
	v.auth = auths[b->session.auth];
	v.logins = b->session.logins;
	return v;
}
