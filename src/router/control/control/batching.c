/* SPDX-License-Identifier: Apache-2.0 */
/* batching: opens the files and batches of the router, and starts what carries batches out. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "router/control/control/batching.h"

#include "io/os/disk/disk.h"
#include "router/answer/batch/runner.h"
#include "router/answer/files/files.h"
#include "router/control/control/self.h"
#include "router/shared/filestore/objects.h"

#define POOL_THREADS 4 /* Threads of libuv's pool, for all but buckets. */

CGN_RC router_state_path_by(const struct config *cfg, const char *kind, char out[PATH_MAX],
	struct cgn_err *err)
{
	char name[300];
	(void)snprintf(name, sizeof name, "%.120s.%.150s", cfg->cluster.name, cfg->router.listen);
	for (char *p = name; *p != '\0'; p++)
		*p = *p == '/' ? '_' : *p;
	int n = snprintf(out, PATH_MAX, "%s/%s.%s", cfg->cluster.state_dir, name, kind);
	if (n < 0 || n >= PATH_MAX)
		return CGN_FAIL(err, INVALID, "cluster.state_dir is too long");
	return CGN_OK;
}

CGN_RC router_state_path(const struct router *r, const char *kind, char out[PATH_MAX], struct cgn_err *err)
{
	return router_state_path_by(r->cfg, kind, out, err);
}

CGN_RC router_state_lock(const struct router *r, struct cgn_err *err)
{
	char path[PATH_MAX];
	struct cgn_err why;
	const char *port = strrchr(r->cfg->router.listen, ':');
	int fd = -1; /* The end of the process closes it: writes may outlive |r|. */
	if (port != NULL && strcmp(port, ":0") == 0)
		return CGN_OK;
	CGN_TRY(router_state_path(r, "lock", path, err));
	cgn_rc rc = disk_mkdirs(r->cfg->cluster.state_dir, 0755, &why);
	if (cgn_ok(rc))
		rc = disk_lock_file(path, &fd, &why);
	if (rc.code != CGN_CONFLICT)
		return CGN_OK;
	return CGN_FAIL(err, ADDRESS_IN_USE,
		"%s, a router with the same router.listen, %s: stop it, or give each a cluster.state_dir of its own",
		why.msg, r->cfg->router.listen);
}

static CGN_RC bucket_open(const struct config *cfg, struct objects **out, struct cgn_err *err)
{
	const struct objects_cfg bucket = {.endpoint = cfg->batch.s3_endpoint,
		.bucket = cfg->batch.s3_bucket,
		.region = cfg->batch.s3_region,
		.prefix = cfg->batch.s3_prefix,
		.credentials_file = cfg->batch.s3_credentials_file,
		.ca_file = cfg->batch.s3_ca_file};
	return cgn_err_of(objects_open(&bucket, out, err), "batch.storage", err);
}

/* Requests to a bucket may hold threads of libuv's pool; look-ups and tokenizers need some too. The size is read before its first job. */
void router_pool_size(const struct config *cfg)
{
	char text[16];
	if (!cfg->batch.enabled || cfg->batch.storage != BATCH_STORAGE_S3)
		return;
	(void)snprintf(text, sizeof text, "%d", POOL_THREADS + FILES_REMOTE_CALLS + BATCH_POOL_JOBS);
	(void)setenv("UV_THREADPOOL_SIZE", text, 0);
}

/* Hold the places of the results of a batch that goes on. */
static void places_hold(void *user, const struct batch *b)
{
	filestore_reserve_again(user, cgn_str_of(b->tenant), b->output);
	filestore_reserve_again(user, cgn_str_of(b->tenant), b->error);
}

/* Open the files and batches, before workers run. */
CGN_RC router_batches_load(struct router *r, struct cgn_err *err)
{
	const struct config *cfg = r->cfg;
	char folder[PATH_MAX];
	uint64_t secret[4];
	if (!cfg->batch.enabled)
		return CGN_OK;
	if (cfg->batch.dir != NULL && !cgn_str_copyz(folder, sizeof folder, cgn_str_of(cfg->batch.dir)))
		return CGN_FAIL(err, INVALID, "batch.dir is too long");
	if (cfg->batch.dir == NULL)
		CGN_TRY(router_state_path(r, "batch", folder, err));
	struct filestore_cfg files = {.folder = folder,
		.max_tenant = cfg->batch.max_tenant,
		.max_files = cfg->batch.max_files,
		.keep_s = cfg->batch.keep / CGN_SEC};
	const struct batches_cfg batches = {.folder = folder,
		.max_batches = cfg->batch.max_batches,
		.keep_s = cfg->batch.keep / CGN_SEC};
	if (cfg->batch.storage == BATCH_STORAGE_S3)
		CGN_TRY(bucket_open(cfg, &files.objects, err));
	r->shared.batch_max_calls = files.objects != NULL ? FILES_REMOTE_CALLS : FILES_CALLS;
	CGN_TRY(cgn_err_of(filestore_open(&files, &r->shared.files, err), "batch.dir", err));
	CGN_TRY(cgn_err_of(batches_open(&batches, &r->shared.batches, err), "batch.dir", err));
	batches_each_open(r->shared.batches, places_hold, r->shared.files);
	r->shared.batch_max_file = cfg->batch.max_file;
	cgn_random(secret, sizeof secret);
	(void)snprintf(r->shared.batch_pass, sizeof r->shared.batch_pass, "%016llx%016llx%016llx%016llx.",
		(unsigned long long)secret[0], (unsigned long long)secret[1], (unsigned long long)secret[2],
		(unsigned long long)secret[3]);
	return CGN_OK;
}

CGN_RC router_batches_run(struct router *r, struct cgn_err *err)
{
	struct router_self self;
	if (r->shared.batches == NULL)
		return CGN_OK;
	CGN_TRY(router_self_find(r, &self, err));
	struct batch_gate gate = {.max_price = r->cfg->batch.max_price,
		.margin_s = r->cfg->batch.deadline_margin / CGN_SEC};
	for (size_t i = 0; i < r->cfg->batch.hours.n; i++)
		CGN_TRY(batch_hours_add(&gate.hours, cgn_str_of(r->cfg->batch.hours.v[i]), err));
	const struct batch_runner_cfg cfg = {.addr = self.addr,
		.tls = self.tls,
		.server_name = self.name[0] != '\0' ? self.name : NULL,
		.shared = &r->shared,
		.max_concurrent = r->cfg->batch.max_concurrent,
		.max_lines = r->cfg->batch.max_lines,
		.gate = gate};
	cgn_rc rc = batch_runner_new(&cfg, &r->batch, err);
	tls_ctx_free(&self.tls); /* The client holds its own reference. */
	return rc;
}
