/* SPDX-License-Identifier: Apache-2.0 */
/* keys: loads the file of API keys, at the start and whenever it changes. A large file takes a second, so that
 * all loads but the first run on the pool. */
#include <stdlib.h>

#include <sys/stat.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "router/control/control/router.h"

/* A changed file is looked at again after this time, and loaded if it has not changed meanwhile. */
#define LOOK_AGAIN (200 * CGN_MSEC)

/* A load of the file: the pool has it while it works, then the loop. */
struct router_keys_job {
	struct router *r; /* NULL: the router has closed meanwhile. */
	char *path;
	struct digest seed;
	struct auth_keys *old; /* A reference to the set before; NULL: none. */
	struct auth_keys *keys;
	cgn_rc rc;
	struct cgn_err err;
};

static CGN_RC keys_read(const char *path, const struct digest *seed, struct auth_keys **out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why;
	if (!cgn_ok(disk_read_file(path, AUTH_MAX_FILE, &text, &why)))
		/* The configuration is at fault, so INVALID. */
		return CGN_FAIL(err, INVALID, "auth.api_keys_file: %s", why.msg);
	return auth_keys_parse(path, cgn_buf_view(&text), seed, out, err);
}

bool router_wants_keys(const struct config *cfg)
{
	return cfg->auth.enabled && cfg->auth.api_keys_file != NULL;
}

void router_gateway_warn(const struct config *cfg)
{
	if (!cfg->auth.enabled && !identity_is_local(cgn_str_of(cfg->router.listen)))
		cgn_log(WARN, "router.open", F_STR("listen", cfg->router.listen),
			F_STR("why",
				"no API keys are asked for (auth.enabled): everybody who reaches router.listen may use all models"));
}

/* Return a number that changes when the file does; 0: authentication is off. */
static uint64_t keys_fingerprint(const struct config *cfg)
{
	struct stat st = {.st_ino = 0};
	const char *path = cfg->auth.api_keys_file;
	if (!router_wants_keys(cfg))
		return 0;
	if (stat(path, &st) != 0)
		st = (struct stat){.st_ino = 0};
	const uint64_t parts[] = {route_hash(path, strlen(path)), (uint64_t)st.st_ino, (uint64_t)st.st_size,
		(uint64_t)st.st_ctim.tv_sec, (uint64_t)st.st_ctim.tv_nsec};
	return route_hash(parts, sizeof parts) | 1;
}

static void keys_adopt(struct router *r, struct auth_keys **take, const char *path)
{
	auth_keys_unref(&r->keys.set);
	r->keys.set = *take;
	*take = NULL;
	r->keys.uses_written = UINT64_MAX; /* Nothing of this set is in the file. */
	cgn_log(INFO, "router.keys", F_STR("file", path), F_U64("keys", auth_keys_count(r->keys.set)),
		F_U64("bytes", auth_keys_bytes(r->keys.set)));
}

static void look_again(struct cgn_timer *t)
{
	(void)router_keys_refresh(CGN_CONTAINER(t, struct router, keys.look), false);
}

CGN_RC router_keys_open(struct router *r, struct cgn_err *err)
{
	struct auth_keys *keys = NULL;
	cgn_timer_init(&r->keys.look, r->loop, look_again);
	cgn_random(&r->keys.seed, sizeof r->keys.seed);
	/* Taken first: a change of the file during the read is seen at the next tick. */
	r->keys.fingerprint = r->keys.seen = keys_fingerprint(r->cfg);
	if (!router_wants_keys(r->cfg))
		return CGN_OK;
	CGN_TRY(keys_read(r->cfg->auth.api_keys_file, &r->keys.seed, &keys, err));
	keys_adopt(r, &keys, r->cfg->auth.api_keys_file);
	return CGN_OK;
}

CGN_RC router_keys_check(const struct config *cfg, struct cgn_err *err)
{
	struct auth_keys *keys = NULL;
	struct digest seed;
	cgn_random(&seed, sizeof seed);
	CGN_TRY(keys_read(cfg->auth.api_keys_file, &seed, &keys, err));
	auth_keys_unref(&keys);
	return CGN_OK;
}

void router_keys_close(struct router *r)
{
	cgn_timer_cancel(&r->keys.look);
	if (r->keys.job != NULL)
		r->keys.job->r = NULL;
	r->keys.job = NULL;
	auth_keys_unref(&r->keys.set);
}

static void job_free(struct router_keys_job *j)
{
	auth_keys_unref(&j->keys);
	auth_keys_unref(&j->old);
	free(j->path);
	free(j);
}

static void keys_refused(const struct router *r, const struct cgn_err *why)
{
	cgn_log(ERROR, "router.keys_refused", F_STR("why", why->msg),
		F_STR("then", r->keys.set != NULL ? "the old keys stay" : "the old rules stay"));
	svc_reload_refused(r->svc, why->msg);
}

/* Runs on the pool. */
static void job_work(void *arg)
{
	struct router_keys_job *j = arg;
	j->rc = keys_read(j->path, &j->seed, &j->keys, &j->err);
	if (cgn_ok(j->rc) && j->old != NULL)
		j->rc = router_key_use_move(j->old, j->keys, &j->err);
}

/* The reload that waited for this load of the file, if any, goes on. */
static void reload_release(struct router *r)
{
	if (r->keys.reload_waits)
		svc_reload_release(r->svc);
	r->keys.reload_waits = false;
}

static void job_done(void *arg)
{
	struct router_keys_job *j = arg;
	struct router *r = j->r;
	if (r == NULL) {
		job_free(j);
		return;
	}
	CGN_LIVE(r, ROUTER_TAG);
	r->keys.job = NULL;
	if (cgn_ok(j->rc))
		keys_adopt(r, &j->keys, j->path);
	else
		keys_refused(r, &j->err);
	job_free(j);
	/* The configuration may have changed meanwhile: a second load follows, and its rules with it. */
	bool waits = router_keys_refresh(r, r->keys.again);
	if (!waits && (!router_wants_keys(r->cfg) || r->keys.set != NULL))
		router_rules_refresh(r);
	if (r->keys.job == NULL)
		reload_release(r);
}

static void job_start(struct router *r)
{
	struct router_keys_job *j = CGN_NEW(struct router_keys_job);
	*j = (struct router_keys_job){.r = r,
		.path = cgn_str_dupz(cgn_str_of(r->cfg->auth.api_keys_file)),
		.seed = r->keys.seed,
		.old = r->keys.set};
	if (j->old != NULL)
		auth_keys_ref(j->old);
	r->keys.job = j;
	cgn_loop_work(r->loop, job_work, job_done, j);
}

void router_keys_reload(struct router *r)
{
	bool waits = router_keys_refresh(r, true);
	if (!waits)
		router_rules_refresh(r);
	if (r->keys.job != NULL && !r->keys.reload_waits) {
		r->keys.reload_waits = true;
		svc_reload_hold(r->svc);
	}
}

bool router_keys_refresh(struct router *r, bool force)
{
	r->keys.again = r->keys.job != NULL && (r->keys.again || force);
	if (r->keys.job != NULL)
		return true;
	uint64_t now = keys_fingerprint(r->cfg);
	bool settled = now == r->keys.seen; /* The file has not changed since the last look. */
	r->keys.seen = now;
	if (!router_wants_keys(r->cfg))
		auth_keys_unref(&r->keys.set);
	if (!force && now != r->keys.fingerprint && !settled)
		cgn_timer_set(&r->keys.look, LOOK_AGAIN);
	if (!force && (now == r->keys.fingerprint || !settled))
		return false;
	r->keys.fingerprint = now;
	if (!router_wants_keys(r->cfg))
		return false;
	job_start(r);
	return true;
}
