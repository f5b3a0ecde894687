/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/control/powerbudget.h"

#include "base/log/log.h"
#include "base/seal/seal.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/statefile/statefile.h"
#include "router/control/control/batching.h"
#include "router/control/control/router.h"

#define POWER_KIND   "cognitora-power"
#define POWER_FORMAT 1
#define FILE_MOST    4096
#define KEPT_AFTER \
	(10 * CGN_SEC) /* Seconds within the budget follow each other for so long before that is said. */

static bool is_starved(const struct config *cfg, double least_w)
{
	return cfg->router.energy.mode == ENERGY_MODE_ON && cfg->router.energy.budget > 0 &&
		least_w > chooser_budget(cfg->router.energy.budget);
}

static void least_write(struct router_power *p, double least_w)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	double change = least_w - p->written_w;
	change = change < 0 ? -change : change;
	if (p->file == NULL || !(least_w > 0) || change < 0.1 * p->written_w || statefile_is_busy(p->file))
		return;
	p->written_w = least_w;
	seal_begin(&text, POWER_KIND, POWER_FORMAT);
	cgn_buf_fmt(&text, "%.0f\n", least_w);
	seal_end(&text);
	if (!text.bad)
		statefile_write(p->file, &text);
}

static bool least_read(struct cgn_str text, double *least_w)
{
	struct cgn_str lines;
	uint64_t watts = 0;
	bool sound = cgn_ok(seal_open(text, POWER_KIND, POWER_FORMAT, &lines, NULL)) && lines.n > 0 &&
		cgn_str_u64((struct cgn_str){lines.p, lines.n - 1}, &watts);
	*least_w = (double)watts;
	return sound;
}

void router_power_open(struct router *r, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct router_power *p = &r->power;
	p->file = statefile_open(r->loop, path, "power of the nodes");
	if (statefile_read(p->file, FILE_MOST, &text) && !least_read(cgn_buf_view(&text), &p->written_w))
		statefile_set_aside(p->file, "damaged");
}

void router_power_close(struct router *r)
{
	if (r->power.file != NULL)
		statefile_close(&r->power.file, NULL);
}

/* Say when the nodes draw more than the budget, and when they have kept it again. */
static void budget_follow(struct router *r, cgn_nsec now)
{
	struct router_power *p = &r->power;
	double budget = r->cfg->router.energy.budget, watts = chooser_watts_measured(&r->shared.choice, now);
	bool counts = r->cfg->router.energy.mode == ENERGY_MODE_ON && budget > 0;
	if (counts && watts > budget) {
		p->passed_at = now;
		if (!p->passed)
			cgn_log(WARN, "router.power_budget_passed", F_F64("budget_w", budget),
				F_F64("measured_w", watts),
				F_STR("why",
					"requests that run draw more than was expected of them, or the budget was lowered"),
				F_STR("then",
					"no request is sent until the nodes draw less; none that runs is ended"));
		p->passed = true;
	} else if (p->passed && (!counts || cgn_since(now, p->passed_at) >= KEPT_AFTER)) {
		p->passed = false;
		cgn_log(INFO, "router.power_budget_kept", F_F64("budget_w", budget),
			F_F64("measured_w", watts));
	}
}

void router_power_follow(struct router *r, cgn_nsec now)
{
	struct router_power *p = &r->power;
	budget_follow(r, now);
	double budget = r->cfg->router.energy.budget, least = chooser_watts_least(&r->shared.choice, now);
	bool starved = is_starved(r->cfg, least);
	least_write(p, least);
	if (starved == p->starved)
		return;
	p->starved = starved;
	if (starved)
		cgn_log(WARN, "router.power_budget_too_low", F_F64("budget_w", budget),
			F_F64("least_w", least),
			F_STR("why",
				"with one stream the nodes would draw least_w; 3 % of the budget are kept free"),
			F_STR("then",
				"every request is refused: raise router.energy.budget, or remove nodes"));
	else
		cgn_log(INFO, "router.power_budget_enough", F_F64("budget_w", budget),
			F_F64("least_w", least));
}

CGN_RC router_power_check(const struct config *cfg, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char path[PATH_MAX];
	double least = 0;
	CGN_TRY(router_state_path_by(cfg, "power", path, err));
	if (!cgn_ok(disk_read_file(path, FILE_MOST, &text, NULL)) ||
		!least_read(cgn_buf_view(&text), &least) || !is_starved(cfg, least))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"router.energy.budget = %.0f lets no request pass: with one stream the nodes of this router's last run would draw %.0f W, and 3 %% of the budget are kept free (%s)",
		cfg->router.energy.budget, least, path);
}
