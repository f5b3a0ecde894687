/* SPDX-License-Identifier: Apache-2.0 */
/* admit: decides who may ask a route of the admin port. */
#include "joint/daemon/svc/svc_priv.h"
#include "policy/who/site/site.h"

#define FIELD(name, value) {{name, sizeof(name) - 1}, {value, sizeof(value) - 1}}

/* Ask a browser for a key, and tell other clients how to show one. */
static void challenge_put(struct svc_admin_reply *r, const char *message)
{
	static const struct http_field fields[] =
		{FIELD("www-authenticate", "Basic realm=\"cognitora: a key as password\", charset=\"UTF-8\""),
			FIELD("www-authenticate", "Bearer realm=\"cognitora\"")};
	svc_admin_error(r, 401, "unauthorized", message);
	r->fields = fields;
	r->n_fields = CGN_COUNT(fields);
}

static void refusal_put(const struct login_caller *caller, cgn_rc rc, const struct cgn_err *err,
	struct svc_admin_reply *r)
{
	if (rc.code == CGN_OVERLOADED) {
		svc_admin_error(r, 429, "too_many_attempts", err->msg);
		r->retry_s = caller->retry_s;
	} else if (rc.code == CGN_UNAVAILABLE) {
		svc_admin_error(r, 503, "identity_provider_unavailable", err->msg);
		r->retry_s = 1;
	} else if (rc.code == CGN_UNAUTHENTICATED || caller->who.kind == IDENTITY_NONE) {
		challenge_put(r, err->msg);
	} else {
		svc_admin_error(r, 403, "forbidden", err->msg);
	}
}

bool svc_admin_admit(const struct svc_admin_cfg *cfg, const struct login_shown *shown, cgn_nsec now,
	enum identity_action action, struct login_caller *out, struct svc_admin_reply *r)
{
	struct cgn_err err;
	cgn_rc rc = login_judge(cfg->login, shown, now, out, &err);
	if (cgn_ok(rc))
		rc = access_check(cfg->access, &out->who, action, (struct cgn_str){0}, &err);
	if (cgn_ok(rc))
		return true;
	refusal_put(out, rc, &err, r);
	return false;
}

/* ---- pages of other sites ---- */

static bool site_answer(enum site_verdict v, struct svc_admin_reply *r)
{
	if (v == SITE_OTHER_NAME)
		svc_admin_error(r, 403, "another_name",
			"the request was sent to a name that is not known as one of this machine (field host): use its address or localhost, or add the name to security.allowed_hosts");
	else if (v == SITE_OTHER_PAGE)
		svc_admin_error(r, 403, "another_site",
			"a page of another site may not send this (fields origin and sec-fetch-site)");
	return v == SITE_FINE;
}

static struct site_request site_request_of(const struct http_head *h)
{
	return (struct site_request){.method = h->method,
		.host = h->authority,
		.origin = http_head_get(h, "origin"),
		.fetch_site = http_head_get(h, "sec-fetch-site"),
		.fetch_mode = http_head_get(h, "sec-fetch-mode")};
}

bool svc_admin_site_fits(const struct svc_admin_cfg *cfg, const char *port, const struct http_head *h,
	const struct login_caller *caller, struct cgn_str from, struct svc_admin_reply *r)
{
	const struct config *boot, *loaded;
	cfg->configs(cfg->svc, &boot, &loaded);
	const struct site_rules rules = {.machine = cfg->machine,
		.listen = port,
		.hosts = loaded->security.allowed_hosts.v,
		.n_hosts = loaded->security.allowed_hosts.n};
	struct site_request q = site_request_of(h);
	q.local = identity_is_local(from);
	/* No browser asks a Unix socket. */
	q.credential = caller->who.kind != IDENTITY_NONE || cgn_str_is(from, "unix");
	return site_answer(site_judge(&rules, &q), r);
}

bool svc_admin_same_site(const struct http_head *h, struct svc_admin_reply *r)
{
	const struct site_rules rules = {.n_hosts = 0};
	struct site_request q = site_request_of(h);
	q.credential = true;
	return site_answer(site_judge(&rules, &q), r);
}
