/* SPDX-License-Identifier: Apache-2.0 */
/* access: the file of the access log, at the start, at each reload and once a second. */
#include "router/control/control/access.h"

#include "base/log/log.h"
#include "io/os/linefile/linefile.h"
#include "router/control/control/router.h"

CGN_RC router_access_open(struct router *r, struct cgn_err *err)
{
	const char *to = r->cfg->router.access_log;
	struct linefile *f = atomic_load_explicit(&r->shared.access, memory_order_relaxed);
	if (strchr(to, '/') == NULL)
		return CGN_OK;
	if (f != NULL)
		return cgn_err_of(linefile_reopen(f, to, err), "router.access_log", err);
	CGN_TRY(cgn_err_of(linefile_open(to, &f, err), "router.access_log", err));
	atomic_store_explicit(&r->shared.access, f, memory_order_release);
	return CGN_OK;
}

void router_access_reload(struct router *r)
{
	struct cgn_err err;
	if (cgn_ok(router_access_open(r, &err)))
		return;
	cgn_log(ERROR, "router.access_log_refused", F_STR("why", err.msg),
		F_STR("then", "the old file stays"));
	svc_reload_refused(r->svc, err.msg);
}

void router_access_report(struct router *r)
{
	struct linefile *f = atomic_load_explicit(&r->shared.access, memory_order_relaxed);
	uint64_t now = f != NULL ? linefile_dropped(f) : 0;
	uint64_t lost = now - r->reported.access_dropped;
	if (lost == 0)
		return;
	metric_add(METRIC_ONE(r->shared.telemetry, ACCESS_LOG_DROPPED), lost);
	cgn_log(WARN, "router.access_log_dropped", F_U64("lines", lost),
		F_STR("file", r->cfg->router.access_log), F_STR("why", "the disk is too slow or full"));
	r->reported.access_dropped = now;
}

void router_access_close(struct router *r)
{
	struct linefile *f = atomic_load_explicit(&r->shared.access, memory_order_relaxed);
	linefile_close(&f);
	atomic_store_explicit(&r->shared.access, NULL, memory_order_relaxed);
}
