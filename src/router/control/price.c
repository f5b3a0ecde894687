/* SPDX-License-Identifier: Apache-2.0 */
/* price: the series of router.energy.series, read again now and then: the price of a joule follows it. And the power of
 * the nodes beside its budget. */
#include "base/log/log.h"
#include "io/disk/disk.h"
#include "policy/energy/series.h"
#include "router/control/router.h"
#include "router/metrics.h"

#define PRICE_EVERY    (10 * CGN_SEC)
#define PRICE_MAX_FILE ((size_t)1 << 20)
#define PRICE_MOST     100.0 /* Times the reference. */

static CGN_RC price_find(const struct config *cfg, double *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(disk_read_file(cfg->router.energy.series, PRICE_MAX_FILE, &text, err));
	return energy_series_at(cgn_buf_view(&text), cgn_clock_wall_ms() / 1000,
		cfg->router.energy.series_max_age / CGN_SEC, out, err);
}

static void price_tell(struct router *r, bool fresh, const char *why)
{
	if (!fresh)
		cgn_log(WARN, "router.energy_price_unknown", F_STR("file", r->cfg->router.energy.series),
			F_STR("why", why), F_STR("then", "a joule has its usual price"));
	else
		cgn_log(INFO, "router.energy_price", F_STR("file", r->cfg->router.energy.series));
}

void router_energy_follow(struct router *r, cgn_nsec now)
{
	struct router_price *p = &r->price;
	metric_set(METRIC_ONE(r->shared.telemetry, ENERGY_BUDGET), r->cfg->router.energy.budget);
	metric_set(METRIC_ONE(r->shared.telemetry, ENERGY_NODES), chooser_watts(&r->shared.choice, now));
	struct cgn_err err = {0};
	double value = 0, ratio = 1;
	if (p->next > now)
		return;
	p->next = now + PRICE_EVERY;
	bool asked = r->cfg->router.energy.series != NULL, fresh = false;
	if (asked) {
		fresh = cgn_ok(price_find(r->cfg, &value, &err));
		if (!p->told || p->fresh != fresh)
			price_tell(r, fresh, err.msg);
	}
	p->told = asked;
	p->fresh = fresh;
	if (fresh)
		ratio = value / r->cfg->router.energy.series_reference;
	ratio = ratio < PRICE_MOST ? ratio : PRICE_MOST;
	energy_board_price(r->shared.choice.energy, ratio);
	metric_set(METRIC_ONE(r->shared.telemetry, ENERGY_PRICE), ratio);
}
