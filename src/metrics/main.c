/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-metrics: scrapes the programs of a cluster and tells their metrics as one text, reads the power of a rack's nodes
 * from their BMCs, and serves the page of several routers. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/daemon/page/page.h"
#include "joint/daemon/svc/svc.h"
#include "joint/power/powerpoll/powerpoll.h"
#include "metrics/federate/federate.h"
#include "metrics/metrics.h"
#include "metrics/routers/routers.h"
#include "metrics/scrape/scrape.h"

#define METRICS_TAG 0x3e741c50U

struct metrics {
	uint32_t tag;
	struct svc *svc;
	struct powerpoll *power;
	struct routers *routers;
	struct scrape *scrape;
	struct federate *federate;
};

static void metrics_stop(void **take)
{
	struct metrics *m = CGN_TAKE(take);
	if (m == NULL)
		return;
	CGN_LIVE(m, METRICS_TAG);
	federate_free(&m->federate);
	scrape_close(&m->scrape);
	if (m->power != NULL)
		powerpoll_close(&m->power, NULL, NULL);
	routers_close(&m->routers);
	m->tag = 0;
	free(m);
}

static void on_scraped(void *user, const char *name, struct cgn_str text, cgn_nsec max_age)
{
	struct metrics *m = user;
	CGN_LIVE(m, METRICS_TAG);
	if (m->power != NULL)
		powerpoll_take_text(m->power, name, text, max_age);
}

static CGN_RC metrics_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	struct metrics *m = CGN_NEW(struct metrics);
	*m = (struct metrics){.tag = METRICS_TAG, .svc = s};
	m->power = powerpoll_new(svc_loop(s), svc_telemetry(s));
	cgn_rc rc = powerpoll_configure(m->power, cfg, err);
	if (cgn_ok(rc))
		rc = routers_open(svc_loop(s), cfg, &m->routers, err);
	if (cgn_ok(rc))
		rc = scrape_open(svc_loop(s), svc_telemetry(s), cfg, &m->scrape, err);
	if (!cgn_ok(rc)) {
		void *take = m;
		metrics_stop(&take);
		return rc;
	}
	m->federate = federate_new(svc_loop(s), svc_telemetry(s), m->scrape);
	scrape_listen(m->scrape, on_scraped, m);
	cgn_log(INFO, "metrics.start", F_U64("bmcs", cfg->n_bmcs));
	*state = m;
	return CGN_OK;
}

/* Settings that cannot be used leave the BMCs, and the routers, of before. */
static void metrics_reload(void *state, const struct config *cfg)
{
	struct metrics *m = state;
	struct routers *fresh = NULL;
	struct cgn_err err = {0};
	CGN_LIVE(m, METRICS_TAG);
	if (cgn_ok(routers_open(svc_loop(m->svc), cfg, &fresh, &err))) {
		routers_close(&m->routers);
		m->routers = fresh;
	} else {
		svc_reload_refused(m->svc, err.msg);
	}
	if (m->power != NULL && !cgn_ok(powerpoll_configure(m->power, cfg, &err)))
		svc_reload_refused(m->svc, err.msg);
	if (!cgn_ok(scrape_reload(m->scrape, cfg, &err)))
		svc_reload_refused(m->svc, err.msg);
}

static void on_power_closed(void *arg)
{
	svc_drained(((struct metrics *)arg)->svc);
}

static void metrics_drain(void *state)
{
	struct metrics *m = state;
	CGN_LIVE(m, METRICS_TAG);
	powerpoll_close(&m->power, on_power_closed, m);
}

static bool power_fill(void *state, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	struct metrics *m = state;
	CGN_LIVE(m, METRICS_TAG);
	if (m->power != NULL)
		powerpoll_fill(m->power, t, message);
	else
		svc_admin_error(r, 503, "draining", "the program is ending");
	return m->power != NULL;
}

static bool targets_fill(void *state, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	struct metrics *m = state;
	(void)r;
	CGN_LIVE(m, METRICS_TAG);
	scrape_fill(m->scrape, t, message);
	return true;
}

static bool router_list_fill(void *state, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	const struct metrics *m = state;
	(void)r;
	CGN_LIVE(m, METRICS_TAG);
	routers_fill(m->routers, t, message);
	return true;
}

static void admin_federate(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	struct metrics *m = state;
	(void)body;
	CGN_LIVE(m, METRICS_TAG);
	federate_answer(m->federate, h, r);
}

static void admin_relay(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	struct metrics *m = state;
	CGN_LIVE(m, METRICS_TAG);
	routers_relay(m->routers, h, body, r);
}

/* Note each file and setting that cannot be used. */
static void metrics_check(const struct config *cfg, struct svc_problems *out)
{
	struct cgn_err err = {0};
	powerpoll_check(cfg, out);
	svc_check_cluster(out, cfg);
	svc_problem(out, routers_check(cfg, &err), &err);
	svc_problem(out, scrape_check(cfg, &err), &err);
}

static const char *admin_addr(const struct config *cfg)
{
	return cfg->metrics.listen;
}

static cgn_nsec drain_timeout(const struct config *cfg)
{
	(void)cfg;
	return 5 * CGN_SEC;
}

static const struct svc_flag flags[] = {
	{"listen", "metrics.listen", "ADDR", "HTTP address of /metrics, /federate, /targets and /power"},
};

static const struct metric_row metric_rows[] = {
#define METRIC METRIC_ROW
#include "metrics/metrics.def"
#undef METRIC
};

static const struct svc_admin_route routes[] = {
#define DOCUMENT SVC_DOCUMENT
#include "metrics/documents.def"
#undef DOCUMENT
	{"GET", "/federate", admin_federate, ACTION_METRICS_READ},
	{"GET", "/page/*", page_get_of_several, ACTION_STATUS_READ},
	{"GET", "/routers/*", admin_relay, ACTION_STATUS_READ},
	{"POST", "/routers/*", admin_relay, ACTION_ADMIN_CHANGE}};

int main(int argc, char **argv)
{
	static const struct svc_program program = {
		.name = "cgn-metrics",
		.summary =
			"tells the metrics of a cluster's programs as one text, reads the power of a rack's nodes (Redfish, IPMI, DCGM), and serves the page of several routers",
		.examples = "  cgn-metrics --config /etc/cognitora/cognitora.toml\n",
		.flags = flags,
		.n_flags = CGN_COUNT(flags),
		.admin = {"metrics.listen", admin_addr},
		.drain_timeout = drain_timeout,
		.routes = routes,
		.n_routes = CGN_COUNT(routes),
		.start = metrics_start,
		.metrics = metric_rows,
		.n_metrics = CGN_COUNT(metric_rows),
		.check = metrics_check,
		.root = page_redirect,
		.reload = metrics_reload,
		.drain = metrics_drain,
		.stop = metrics_stop,
	};
	return svc_main(&program, argc, argv);
}
