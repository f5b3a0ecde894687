/* SPDX-License-Identifier: Apache-2.0 */
/* admit: decides who may ask a route of the admin port. */
#include "joint/daemon/svc/svc_priv.h"

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

/* Is |origin| ("https://host:port") the site that the request was sent to? */
static bool is_own_origin(struct cgn_str origin, struct cgn_str authority)
{
	struct cgn_str rest = origin;
	if (cgn_str_starts(rest, "https://"))
		rest = (struct cgn_str){rest.p + 8, rest.n - 8};
	else if (cgn_str_starts(rest, "http://"))
		rest = (struct cgn_str){rest.p + 7, rest.n - 7};
	return cgn_str_eq(rest, authority);
}

bool svc_admin_same_site(const struct http_head *h, struct svc_admin_reply *r)
{
	struct cgn_str origin = http_head_get(h, "origin"), site = http_head_get(h, "sec-fetch-site");
	bool same = (origin.n == 0 || is_own_origin(origin, h->authority)) &&
		(site.n == 0 || cgn_str_is(site, "same-origin") || cgn_str_is(site, "none"));
	if (!same)
		svc_admin_error(r, 403, "another_site",
			"a page of another site may not send this (fields origin and sec-fetch-site)");
	return same;
}
