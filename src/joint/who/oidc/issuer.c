/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/who/oidc/issuer.h"

#include <stdlib.h>

#include "base/weburl/weburl.h"
#include "io/os/loop/backoff.h"
#include "io/wire/webask/webask.h"
#include "joint/web/webclient/webclient.h"

#define ISSUER_TAG 0x155e4001U
#define WELL_KNOWN "/.well-known/openid-configuration"
#define FAIL_FIRST CGN_SEC
#define FAIL_LAST  (60 * CGN_SEC)

/* A server of the provider, and the document that is asked for. */
struct place {
	char text[OIDC_URL_MAX];
	struct http_client *client;
	struct weburl url;
	char path[OIDC_URL_MAX];
};

struct issuer {
	uint32_t tag;
	struct cgn_loop *loop;
	struct issuer_cfg cfg; /* With the texts |name| and |ca_file|. */
	char name[OIDC_URL_MAX], *ca_file;
	struct place discovery, keys;
	char keys_url[OIDC_URL_MAX]; /* As the provider's configuration says. */
	bool asks_keys;              /* The next step of the round: discovery or keys. */
	struct cgn_timer timer;
	struct cgn_backoff backoff;
	struct webask *ask; /* NULL: between two steps. */
	struct oidc_endpoints endpoints;
	struct jwt_keys *read; /* Room for the keys of a round. */
	struct cgn_grave grave;
};

/* ---- places ---- */

static void place_close(struct place *p)
{
	if (p->client != NULL)
		http_client_free(&p->client);
	p->text[0] = '\0';
}

/* Let |p| lead to the document at |url|, which may have a query; |rest| is appended to its path. */
static CGN_RC place_open(const struct issuer *s, struct place *p, const char *url, const char *rest,
	struct cgn_err *err)
{
	char server[OIDC_URL_MAX];
	struct cgn_str query = cgn_str_of(url);
	(void)cgn_str_copyz(server, sizeof server, cgn_str_split(&query, '?'));
	const struct webclient_cfg cfg = {.url = server,
		.ca_file = cgn_str_starts(cgn_str_of(url), "https://") ? s->ca_file : NULL,
		.max_conns = 1,
		.connect_timeout = OIDC_TIMEOUT};
	if (p->client != NULL && strcmp(p->text, url) == 0)
		return CGN_OK;
	place_close(p);
	CGN_TRY(webclient_open(s->loop, &cfg, &p->url, &p->client, err));
	(void)cgn_str_copyz(p->text, sizeof p->text, cgn_str_of(url));
	(void)snprintf(p->path, sizeof p->path, "%s%s%s%.*s", p->url.base, rest, query.p != NULL ? "?" : "",
		CGN_STR_ARG(query));
	p->url.base[0] = '\0';
	p->url.base_is_version = false;
	return CGN_OK;
}

/* ---- rounds ---- */

static void round_fail(struct issuer *s, const char *where, const char *why)
{
	char text[400];
	(void)snprintf(text, sizeof text, "%s: %s", where, why);
	s->asks_keys = false;
	cgn_timer_set(&s->timer, cgn_backoff_next(&s->backoff));
	s->cfg.done(s->cfg.user, NULL, text);
}

static void answer_fail(struct issuer *s, const char *where, const struct webask_answer *a)
{
	char text[100];
	if (a->err->code == CGN_FINE)
		(void)snprintf(text, sizeof text, "it answers with status %d%s", a->status,
			a->status >= 300 && a->status < 400 ? ", and redirects are not followed" : "");
	else if (a->err->code == CGN_DEADLINE)
		(void)snprintf(text, sizeof text, "no whole answer within %d s",
			(int)(OIDC_TIMEOUT / CGN_SEC));
	else if (a->err->code == CGN_TOO_LARGE)
		(void)snprintf(text, sizeof text, "the answer is longer than %zu bytes", OIDC_MAX_ANSWER);
	else
		text[0] = '\0';
	round_fail(s, where, text[0] != '\0' ? text : a->err->msg);
}

/* Copy the URL that the provider names. Only the provider itself, when it is asked in clear on this machine, may name one
 * that is in clear. */
static CGN_RC url_take(const struct issuer *s, struct json_val doc, const char *name, char out[OIDC_URL_MAX],
	struct cgn_err *err)
{
	struct cgn_buf b = cgn_buf_over(out, OIDC_URL_MAX - 1);
	struct json_val v;
	if (!json_get(doc, name, &v) || v.type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "it names no %s", name);
	json_str_to(v, &b);
	if (b.bad)
		return CGN_FAIL(err, INVALID, "its %s is longer than %d bytes", name, OIDC_URL_MAX - 1);
	out[b.n] = '\0';
	bool clear = cgn_str_starts(cgn_str_of(s->cfg.url), "http://");
	if (strlen(out) != b.n ||
		(!cgn_str_starts(cgn_str_of(out), "https://") &&
			!(clear && cgn_str_starts(cgn_str_of(out), "http://"))))
		return CGN_FAIL(err, INVALID, "its %s does not begin with https://", name);
	return CGN_OK;
}

static CGN_RC discovery_read(struct issuer *s, struct cgn_str text, struct cgn_err *err)
{
	struct json_val doc, issuer;
	char name[OIDC_URL_MAX];
	struct cgn_buf b = cgn_buf_over(name, sizeof name);
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "it is not a JSON object");
	if (!json_is_unique(doc, JSON_UNIQUE_MAX))
		return CGN_FAIL(err, INVALID, "it has a member twice");
	if (json_get(doc, "issuer", &issuer) && issuer.type == JSON_STRING)
		json_str_to(issuer, &b);
	if (b.bad || !cgn_str_is(cgn_buf_view(&b), s->cfg.url))
		return CGN_FAIL(err, INVALID,
			"it is of the issuer \"%.*s\", and auth.oidc_issuer is \"%.200s\": both must be the same, letter by letter",
			(int)(b.n < 100 ? b.n : 100), name, s->cfg.url);
	CGN_TRY(url_take(s, doc, "jwks_uri", s->keys_url, err));
	/* Providers without people who sign in have none. */
	if (!cgn_ok(url_take(s, doc, "authorization_endpoint", s->endpoints.authorize, NULL)) ||
		!cgn_ok(url_take(s, doc, "token_endpoint", s->endpoints.token, NULL)))
		s->endpoints = (struct oidc_endpoints){.authorize = ""};
	return CGN_OK;
}

static void on_discovery(void *user, const struct webask_answer *a)
{
	struct issuer *s = user;
	struct cgn_err err = {0};
	CGN_LIVE(s, ISSUER_TAG);
	s->ask = NULL;
	if (!webask_is_ok(a)) {
		answer_fail(s, s->discovery.text, a);
		return;
	}
	if (!cgn_ok(discovery_read(s, a->body, &err))) {
		round_fail(s, "the provider's configuration", err.msg);
		return;
	}
	s->asks_keys = true;
	cgn_timer_set(&s->timer, 0);
}

static void on_keys(void *user, const struct webask_answer *a)
{
	struct issuer *s = user;
	struct cgn_err err = {0};
	CGN_LIVE(s, ISSUER_TAG);
	s->ask = NULL;
	if (!webask_is_ok(a)) {
		answer_fail(s, s->keys.text, a);
		return;
	}
	if (!cgn_ok(jwt_keys_read(a->body, s->read, &err))) {
		round_fail(s, s->keys.text, err.msg);
		return;
	}
	s->asks_keys = false;
	cgn_backoff_reset(&s->backoff);
	cgn_timer_set(&s->timer, OIDC_REFRESH);
	s->cfg.done(s->cfg.user, s->read, NULL);
}

static CGN_RC step_start(struct issuer *s, struct cgn_err *err)
{
	struct place *p = s->asks_keys ? &s->keys : &s->discovery;
	const struct webask_question ask = {.path = p->path,
		.max_bytes = OIDC_MAX_ANSWER,
		.timeout = OIDC_TIMEOUT};
	const struct webask_endpoint to = {.client = p->client, .url = &p->url};
	return webask_start(s->loop, &to, &ask, s->asks_keys ? on_keys : on_discovery, s, &s->ask, err);
}

static void on_step(struct cgn_timer *t)
{
	struct issuer *s = CGN_CONTAINER(t, struct issuer, timer);
	struct cgn_err err = {0};
	CGN_LIVE(s, ISSUER_TAG);
	if (!s->asks_keys)
		s->cfg.began(s->cfg.user);
	cgn_rc rc = s->asks_keys ? place_open(s, &s->keys, s->keys_url, "", &err) : CGN_OK;
	if (cgn_ok(rc))
		rc = step_start(s, &err);
	if (!cgn_ok(rc))
		round_fail(s, s->cfg.url, err.msg);
}

void issuer_ask(struct issuer *s, cgn_nsec in)
{
	CGN_LIVE(s, ISSUER_TAG);
	if (s->ask == NULL && !s->asks_keys)
		cgn_timer_set(&s->timer, in);
}

bool issuer_endpoints(const struct issuer *s, struct oidc_endpoints *out)
{
	CGN_LIVE(s, ISSUER_TAG);
	*out = s->endpoints;
	return out->authorize[0] != '\0';
}

/* ---- life ---- */

static void issuer_release(struct cgn_grave *g)
{
	struct issuer *s = CGN_CONTAINER(g, struct issuer, grave);
	free(s->read);
	free(s->ca_file);
	s->tag = 0;
	free(s);
}

CGN_RC issuer_open(struct cgn_loop *l, const struct issuer_cfg *cfg, struct issuer **out, struct cgn_err *err)
{
	struct issuer *s = CGN_NEW(struct issuer);
	s->tag = ISSUER_TAG;
	s->loop = l;
	s->cfg = *cfg;
	s->backoff = (struct cgn_backoff){.first = FAIL_FIRST, .last = FAIL_LAST};
	s->read = CGN_NEW(struct jwt_keys);
	(void)cgn_str_copyz(s->name, sizeof s->name, cgn_str_of(cfg->url));
	s->cfg.url = s->name;
	s->ca_file = cgn_str_dup_maybe(cfg->ca_file);
	cgn_timer_init(&s->timer, l, on_step);
	cgn_rc rc = place_open(s, &s->discovery, cfg->url, WELL_KNOWN, err);
	if (!cgn_ok(rc)) {
		issuer_release(&s->grave);
		return rc;
	}
	cgn_timer_set(&s->timer, 0);
	*out = s;
	return CGN_OK;
}

void issuer_close(struct issuer **take)
{
	struct issuer *s = CGN_TAKE_LIVE(take, ISSUER_TAG);
	if (s == NULL)
		return;
	cgn_timer_cancel(&s->timer);
	webask_cancel(&s->ask);
	place_close(&s->discovery);
	place_close(&s->keys);
	cgn_loop_bury(s->loop, &s->grave, issuer_release);
}
