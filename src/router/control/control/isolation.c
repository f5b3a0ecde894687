/* SPDX-License-Identifier: Apache-2.0 */
/* isolation: the secret of the tenants' salts, which outlives the router in a file: another secret would make what
 * engines and block stores hold useless. */
#include <unistd.h>

#include "router/control/control/isolation.h"

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "router/control/control/router.h"

#define NAMED_MAX 800 /* Bytes of the list of nodes; the others are not named. */
#define PATH_ROOM 400 /* cluster.state_dir, cluster.name and the end */

static bool is_on(const struct config *cfg)
{
	return cfg->auth.enabled && cfg->security.isolation == CONFIG_ISOLATION_TENANT;
}

static CGN_RC secret_read(const char *path, struct digest *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why;
	if (!cgn_ok(disk_read_file(path, ISOLATION_FILE_BYTES, &text, &why)))
		/* The configuration is at fault, so INVALID. */
		return CGN_FAIL(err, INVALID,
			"security.isolation_secret_file: %s; cgn-ctl pki isolation --out FILE makes one",
			why.msg);
	if (!cgn_ok(isolation_secret_read(cgn_buf_view(&text), out, &why)))
		return CGN_FAIL(err, INVALID, "security.isolation_secret_file: %s: %s", path, why.msg);
	return CGN_OK;
}

/* Read the router's own file, or make it. Without a folder that can be written the secret lasts as long as the router:
 * tenants are kept apart, but a restart empties their caches. */
static CGN_RC secret_keep(const struct config *cfg, struct digest *out, struct cgn_err *err)
{
	char path[PATH_ROOM];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why;
	(void)snprintf(path, sizeof path, "%s/%s.isolation", cfg->cluster.state_dir, cfg->cluster.name);
	if (access(path, F_OK) == 0)
		return secret_read(path, out, err);
	cgn_random(out, sizeof *out);
	isolation_secret_put(out, &text);
	cgn_rc rc = disk_mkdirs(cfg->cluster.state_dir, 0755, &why);
	if (cgn_ok(rc))
		rc = disk_write_file_atomic(path, cgn_buf_view(&text), 0600, &why);
	if (!cgn_ok(rc))
		cgn_log(WARN, "router.isolation_secret_lost", F_STR("why", why.msg),
			F_STR("then", "a restart of the router empties the caches of all tenants"));
	return CGN_OK;
}

CGN_RC router_isolation_load(struct router *r, struct cgn_err *err)
{
	const char *path = r->cfg->security.isolation_secret_file;
	struct digest secret;
	if (!is_on(r->cfg) || (path == NULL && r->isolation.own))
		return CGN_OK;
	CGN_TRY(path != NULL ? secret_read(path, &secret, err) : secret_keep(r->cfg, &secret, err));
	r->isolation.secret = secret;
	r->isolation.own = path == NULL;
	cgn_log(INFO, "router.isolation", F_STR("between", "tenants"),
		F_STR("secret", path != NULL ? path : "the router's own, in cluster.state_dir"));
	return CGN_OK;
}

void router_isolation_reload(struct router *r)
{
	struct cgn_err err;
	if (cgn_ok(router_isolation_load(r, &err)))
		return;
	cgn_log(ERROR, "router.isolation_refused", F_STR("why", err.msg),
		F_STR("then", "the old secret stays"));
	svc_reload_refused(r->svc, err.msg);
}

CGN_RC router_isolation_check(const struct config *cfg, struct cgn_err *err)
{
	struct digest secret;
	if (!is_on(cfg) || cfg->security.isolation_secret_file == NULL)
		return CGN_OK;
	return secret_read(cfg->security.isolation_secret_file, &secret, err);
}

/* True unless tenants are to be kept apart and an engine of |kind| (NULL: unknown), which |mixes|, cannot do it. */
static bool keeps_apart(const struct router *r, const struct engine_ops *kind, bool mixes)
{
	return !r->published.rules->isolation.on || (kind != NULL && kind->salts != NULL && !mixes);
}

/* Call |fn| for each ready node that does not keep tenants apart, once. |seen|: the slots of those. */
static void leaky_each(const struct router *r, bool seen[ROUTE_MAX_NODES],
	void (*fn)(void *user, const struct view_node *n, const char *kind), void *user)
{
	const struct cluster_view *v = r->published.view;
	for (size_t i = 0; v != NULL && i < v->n_models; i++)
		for (size_t k = 0; k < v->models[i].n_ready; k++) {
			const struct engine_ops *kind = v->models[i].kinds[k];
			const struct view_node *n = v->models[i].ready[k];
			if (keeps_apart(r, kind, v->models[i].mixes[k]) || seen[n->slot])
				continue;
			seen[n->slot] = true;
			fn(user, n, kind != NULL ? config_enum_text(kind->kind) : "unknown");
		}
}

static void leaky_log(void *user, const struct view_node *n, const char *kind)
{
	const struct router *r = user;
	if (!r->isolation.leaky[n->slot])
		cgn_log_limited(WARN, "router.not_isolated", F_STR("node", n->id), F_STR("kind", kind),
			F_STR("why", "the engine cannot keep the prompts of tenants apart"),
			F_STR("then",
				r->published.rules->isolation.strict
					? "it gets no prompts (security.isolation_strict)"
					: "tenants can measure each other's prompts there"));
}

static void leaky_put(void *user, const struct view_node *n, const char *kind)
{
	struct cgn_buf *out = user;
	if (out->n < NAMED_MAX)
		cgn_buf_fmt(out, "%s%s (%s)", out->n > 0 ? ", " : "", n->id, kind);
}

void router_isolation_log_changes(struct router *r)
{
	bool seen[ROUTE_MAX_NODES] = {false};
	leaky_each(r, seen, leaky_log, r);
	memcpy(r->isolation.leaky, seen, sizeof seen);
}

void router_isolation_leaky(const struct router *r, struct cgn_buf *out)
{
	bool seen[ROUTE_MAX_NODES] = {false};
	leaky_each(r, seen, leaky_put, out);
}
