/* SPDX-License-Identifier: Apache-2.0 */
/* peer: the settings of [peers]: what leaves the cluster leaves only as it was meant to. */
#include "policy/route/peer/check.h"
#include "policy/config/config.h"
#include "policy/who/auth/auth.h"

/* The name stands in a header, in the log and in the name of an account. */
static cgn_rc check_name(const struct config_peer *p, struct cgn_err *err)
{
	for (const char *s = p->name; *s != '\0'; s++)
		if (*s <= ' ' || *s > '~' || *s == '"')
			return CGN_FAIL(err, INVALID,
				"peers.\"%.40s\": a peer's name has visible ASCII characters only, no spaces and quotes",
				p->name);
	return CGN_OK;
}

/* Requests are known by the model's own name, whatever alias they used. */
static cgn_rc check_own_name(const struct config *c, const struct config_peer *p, struct cgn_str ours,
	struct cgn_err *err)
{
	char name[300];
	if (!cgn_str_copyz(name, sizeof name, ours))
		return CGN_OK;
	const struct config_model *m = config_model_find(c, name);
	if (m == NULL || strcmp(m->name, name) == 0)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"peers.\"%.40s\".models has \"%.100s\", an alias of the model \"%.100s\": name the model itself",
		p->name, name, m->name);
}

static cgn_rc check_models(const struct config *c, const struct config_peer *p, struct cgn_err *err)
{
	struct cgn_str ours, theirs;
	for (size_t i = 0; i < p->models.n; i++) {
		if (!config_peer_model_read(cgn_str_of(p->models.v[i]), &ours, &theirs))
			return CGN_FAIL(err, INVALID,
				"peers.\"%.40s\".models has \"%.100s\", must be a model's name, or NAME=NAME AT THE PEER",
				p->name, p->models.v[i]);
		CGN_TRY(check_own_name(c, p, ours, err));
	}
	return CGN_OK;
}

/* Both sides show a certificate, and each believes the other's CA alone. */
static cgn_rc check_cluster(const struct config_peer *p, struct cgn_err *err)
{
	if (p->ca_file == NULL || p->cert_file == NULL || p->key_file == NULL)
		return CGN_FAIL(err, INVALID,
			"peers.\"%.40s\" is a cluster and needs ca_file (the CA of that cluster), cert_file and key_file (what this one shows there)",
			p->name);
	if (p->url == NULL && p->listen == NULL)
		return CGN_FAIL(err, INVALID,
			"peers.\"%.40s\" has no url and no listen: nothing can leave for it or come from it",
			p->name);
	if (p->url != NULL && strncmp(p->url, "https://", 8) != 0)
		return CGN_FAIL(err, INVALID,
			"peers.\"%.40s\".url is \"%.100s\", must begin with https://: clusters know each other by certificates",
			p->name, p->url);
	return CGN_OK;
}

static cgn_rc check_arrivals(const struct config_peer *p, struct cgn_err *err)
{
	struct cgn_str theirs, ours;
	for (size_t i = 0; i < p->accepts_tenants.n; i++) {
		struct cgn_str row = cgn_str_of(p->accepts_tenants.v[i]);
		bool is_map =
			config_peer_model_read(row, &theirs, &ours) && memchr(row.p, '=', row.n) != NULL;
		if (theirs.n == 0 || ours.n == 0 || (is_map && !auth_tenant_ok(ours)))
			return CGN_FAIL(err, INVALID,
				"peers.\"%.40s\".accepts_tenants has \"%.100s\": write a pattern of the peer's tenants, or THEIRS=OURS with a tenant of this cluster",
				p->name, p->accepts_tenants.v[i]);
	}
	return CGN_OK;
}

static cgn_rc check_hosted(const struct config_peer *p, struct cgn_err *err)
{
	if (p->cert_file != NULL || p->key_file != NULL || p->listen != NULL || p->accepts.n > 0 ||
		p->accepts_tenants.n > 0)
		return CGN_FAIL(err, INVALID,
			"peers.\"%.40s\" has cert_file, key_file, listen, accepts or accepts_tenants: these are for kind = \"cognitora\"",
			p->name);
	if (p->url == NULL || !config_is_safe_url(p->url))
		return CGN_FAIL(err, INVALID,
			"peers.\"%.40s\".url is %s%.100s%s, must begin with https:// (http:// only with 127.0.0.1, [::1] or localhost and a port)",
			p->name, p->url != NULL ? "\"" : "", p->url != NULL ? p->url : "not set",
			p->url != NULL ? "\"" : "");
	return CGN_OK;
}

static cgn_rc check_peer(const struct config *c, const struct config_peer *p, struct cgn_err *err)
{
	CGN_TRY(check_name(p, err));
	CGN_TRY(p->kind == CONFIG_PEER_COGNITORA ? check_cluster(p, err) : check_hosted(p, err));
	CGN_TRY(check_arrivals(p, err));
	if ((p->input > 0 || p->output > 0) && p->daily_budget <= 0)
		return CGN_FAIL(err, INVALID,
			"peers.\"%.40s\" has a price and no daily_budget: say what may be spent there in a day, in router.currency",
			p->name);
	return check_models(c, p, err);
}

CGN_RC peer_check_config(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_peers; i++)
		CGN_TRY(check_peer(c, &c->peers[i], err));
	return CGN_OK;
}
