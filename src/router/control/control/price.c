/* SPDX-License-Identifier: Apache-2.0 */
/* price: the series of router.energy.series, read again now and then: the price of a joule follows it. And the power of
 * the nodes beside its budget. */
#include <stdlib.h>

#include "router/control/control/price.h"

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "joint/web/webclient/webclient.h"
#include "policy/power/energy/series.h"
#include "router/control/control/powerbudget.h"
#include "router/control/control/router.h"
#include "router/metrics.h"

#define PRICE_EVERY   (10 * CGN_SEC)
#define PRICE_TIMEOUT (10 * CGN_SEC)
#define PRICE_MOST    100.0 /* Times the reference. */

/* ---- a URL ---- */

static bool is_url(const char *series)
{
	return strncmp(series, "http://", 7) == 0 || strncmp(series, "https://", 8) == 0;
}

static void source_close(struct router_price *p)
{
	webask_cancel(&p->ask);
	if (p->http != NULL)
		http_client_free(&p->http);
	free(p->where);
	p->where = NULL;
	p->why[0] = '\0';
	cgn_buf_fini(&p->text);
}

static CGN_RC source_open(struct router *r, const char *url, struct cgn_err *err)
{
	struct router_price *p = &r->price;
	const struct webclient_cfg cfg = {.url = url,
		.ca_file = r->cfg->router.energy.series_ca_file,
		.max_conns = 1,
		.connect_timeout = PRICE_TIMEOUT};
	source_close(p);
	CGN_TRY(webclient_open(r->loop, &cfg, &p->url, &p->http, err));
	p->where = cgn_str_dupz(cgn_str_of(url));
	(void)snprintf(p->path, sizeof p->path, "%s", p->url.base[0] != '\0' ? p->url.base : "/");
	p->url.base[0] = '\0';
	p->url.base_is_version = false;
	p->ask_at = 0;
	return CGN_OK;
}

static CGN_RC price_of(const struct router *r, struct cgn_str text, double *out, struct cgn_err *err)
{
	return energy_series_at(text, cgn_clock_wall_ms() / 1000,
		r->cfg->router.energy.series_max_age / CGN_SEC, out, err);
}

/* Keep a text that can be read, also if no value of it holds now. */
static void text_keep(struct router *r, struct cgn_str text)
{
	struct router_price *p = &r->price;
	struct cgn_err err = {0};
	double value = 0;
	cgn_rc rc = price_of(r, text, &value, &err);
	if (!cgn_ok(rc) && rc.code != CGN_NOT_FOUND) {
		(void)snprintf(p->why, sizeof p->why, "its answer is not a series: %.200s", err.msg);
		return;
	}
	p->why[0] = '\0';
	p->text.n = 0;
	p->text.bad = false;
	p->text.limit = PRICE_MAX_TEXT;
	cgn_buf_str(&p->text, text);
}

static void on_series(void *user, const struct webask_answer *a)
{
	struct router *r = user;
	struct router_price *p = &r->price;
	CGN_LIVE(r, ROUTER_TAG);
	p->ask = NULL;
	cgn_nsec pause = r->cfg->router.energy.series_interval;
	if (webask_is_ok(a))
		text_keep(r, a->body);
	else if (a->err->code != CGN_FINE)
		(void)cgn_str_copyz(p->why, sizeof p->why, cgn_str_of(a->err->msg));
	else
		(void)snprintf(p->why, sizeof p->why, "it answers with status %d%s", a->status,
			a->status >= 300 && a->status < 400 ? ", and redirects are not followed" : "");
	p->ask_at = cgn_loop_now(r->loop) + (p->why[0] != '\0' ? pause / 5 : pause);
	p->next = 0; /* Look at it now. */
	if (p->why[0] != '\0')
		cgn_log_limited(WARN, "router.energy_price_failed", F_STR("url", p->where),
			F_STR("why", p->why),
			F_STR("then", "the last series is used while it is fresh; asked again"));
}

static CGN_RC price_ask(struct router *r, const char *url, double *out, struct cgn_err *err)
{
	struct router_price *p = &r->price;
	if (p->where == NULL || strcmp(p->where, url) != 0)
		CGN_TRY(source_open(r, url, err));
	const struct webask_endpoint to = {.client = p->http, .url = &p->url};
	const struct webask_question ask = {.path = p->path,
		.max_bytes = PRICE_MAX_TEXT,
		.timeout = PRICE_TIMEOUT};
	if (p->ask == NULL && cgn_loop_now(r->loop) >= p->ask_at)
		CGN_TRY(webask_start(r->loop, &to, &ask, on_series, r, &p->ask, err));
	if (p->text.n == 0)
		return CGN_FAIL(err, UNAVAILABLE, "%s",
			p->why[0] != '\0' ? p->why : "it has not answered yet");
	return price_of(r, cgn_buf_view(&p->text), out, err);
}

/* ---- the price ---- */

static CGN_RC price_find(struct router *r, double *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const char *series = r->cfg->router.energy.series;
	if (is_url(series))
		return price_ask(r, series, out, err);
	source_close(&r->price);
	CGN_TRY(disk_read_file(series, PRICE_MAX_TEXT, &text, err));
	return price_of(r, cgn_buf_view(&text), out, err);
}

void router_price_close(struct router *r)
{
	source_close(&r->price);
}

static void price_tell(struct router *r, bool fresh, const char *why)
{
	if (!fresh)
		cgn_log(WARN, "router.energy_price_unknown", F_STR("series", r->cfg->router.energy.series),
			F_STR("why", why), F_STR("then", "a joule has its usual price"));
	else
		cgn_log(INFO, "router.energy_price", F_STR("series", r->cfg->router.energy.series));
}

void router_energy_follow(struct router *r, cgn_nsec now)
{
	struct router_price *p = &r->price;
	metric_set(METRIC_ONE(r->shared.telemetry, ENERGY_BUDGET), r->cfg->router.energy.budget);
	metric_set(METRIC_ONE(r->shared.telemetry, ENERGY_NODES), chooser_watts(&r->shared.choice, now));
	metric_set(METRIC_ONE(r->shared.telemetry, ENERGY_MEASURED),
		chooser_watts_measured(&r->shared.choice, now));
	router_power_follow(r, now);
	struct cgn_err err = {0};
	double value = 0, ratio = 1;
	if (p->next > now)
		return;
	p->next = now + PRICE_EVERY;
	bool asked = r->cfg->router.energy.series != NULL, fresh = false;
	if (asked) {
		fresh = cgn_ok(price_find(r, &value, &err));
		bool waits = !fresh && p->ask != NULL && p->text.n == 0;
		if (!waits && (!p->told || p->fresh != fresh))
			price_tell(r, fresh, err.msg);
		asked = !waits; /* Told once the first answer came. */
	}
	p->told = asked;
	p->fresh = fresh;
	if (fresh)
		ratio = value / r->cfg->router.energy.series_reference;
	ratio = ratio < PRICE_MOST ? ratio : PRICE_MOST;
	energy_board_price(r->shared.choice.energy, ratio);
	if (fresh)
		atomic_store_explicit(&r->shared.price_state, PRICE_KNOWN, memory_order_relaxed);
	else if (asked || r->cfg->router.energy.series == NULL)
		atomic_store_explicit(&r->shared.price_state, PRICE_NOT_KNOWN, memory_order_relaxed);
	metric_set(METRIC_ONE(r->shared.telemetry, ENERGY_PRICE), ratio);
}
